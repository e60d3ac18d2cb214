"""Metrics in the form that a scraper asks for: OpenMetrics with request ids as exemplars, or Prometheus' text."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

_OPEN: Final = "application/openmetrics-text"
#: Names under which text is taken, the one that counts most first.
_TEXT: Final = ("text/plain", "text/*", "*/*")
#: A weight (RFC 9110, 12.4.2).
_WEIGHT: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
_generate_open: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest


def exposed(registry: CollectorRegistry, accept: Iterable[str]) -> tuple[bytes, str]:
    """The body and its content type; `accept` are the values of the Accept headers."""
    if wants_openmetrics(accept):
        return _generate_open(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_LATEST


def wants_openmetrics(accept: Iterable[str]) -> bool:
    """Whether OpenMetrics is named, with at least the weight of text (RFC 9110, 12.5.1). Who takes all gets text."""
    weights: dict[str, float] = {}
    for wanted in ",".join(accept).lower().split(","):
        kind, *parameters = (part.strip() for part in wanted.split(";"))
        weights[kind] = max(
            weights.get(kind, 0.0), _weight(parameters)
        )  # one is named for each version of it
    text = next((weights[kind] for kind in _TEXT if kind in weights), 0.0)
    return weights.get(_OPEN, 0.0) > 0 and weights[_OPEN] >= text


def _weight(parameters: Iterable[str]) -> float:
    """That of a kind, from 0 to 1; one that can't be read counts nothing."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if _WEIGHT.fullmatch(value.strip()) else 0.0
    return 1.0
