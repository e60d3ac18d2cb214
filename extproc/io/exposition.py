"""Metrics in the form that a scraper asks for: OpenMetrics with request ids as exemplars, or Prometheus' text."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

_OPEN: Final = "application/openmetrics-text"
_generate_open: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest


def exposed(registry: CollectorRegistry, accept: Iterable[str]) -> tuple[bytes, str]:
    """The body and its content type; `accept` are the values of the Accept headers."""
    if wants_openmetrics(accept):
        return _generate_open(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_LATEST


def wants_openmetrics(accept: Iterable[str]) -> bool:
    """Whether OpenMetrics is named, and not refused by a weight of 0 (RFC 9110, 12.4.2). Who takes all gets text."""
    for wanted in ",".join(accept).lower().split(","):
        kind, *parameters = (part.strip() for part in wanted.split(";"))
        if kind == _OPEN and not any(_is_nothing(parameter) for parameter in parameters):
            return True
    return False


def _is_nothing(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", "0.", ".")
