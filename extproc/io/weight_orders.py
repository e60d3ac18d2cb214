"""What operators ask of versions' weights: read out of a query, and made whole by the weights that hold."""

import re
from collections.abc import Mapping
from typing import Final

from extproc.core.versions import MOST_WEIGHT, Weights

#: Longest word of who and why, in characters.
_MOST_TEXT: Final = 300
#: A weight as people write one.
_NUMBER: Final = re.compile(r"\d{1,3}(\.\d{1,12})?", re.ASCII)


def completed(now: Weights, asked: Mapping[str, float], known: Weights) -> dict[str, float]:
    """Weights in percent with some as `asked`; the others share the rest of 100 in the proportion that they have.

    Args:
        now: the weights that hold.
        known: the versions of this gateway's configuration with their weights there.

    Raises:
        ValueError: what is wrong with them.
    """
    strangers = [version for version, weight in now.items() if weight and version not in known]
    for version, weight in asked.items():
        if version not in known and version not in strangers:
            raise ValueError(f"{version!r} is no version of it; there are: {', '.join(known)}")
        if not 0 <= weight <= MOST_WEIGHT:
            raise ValueError(f"{version}={weight:g} is not between 0 and {MOST_WEIGHT:g}")
    for version in strangers:
        if version not in asked:
            raise ValueError(
                f"{version!r} has weight {now[version]:g}, and is not in this gateway's configuration; give it a "
                f"weight too ({version}=0 if no gateway serves it), or ask a gateway that has it"
            )
    return _shared({version: now.get(version, weight) for version, weight in known.items()}, asked)


def _shared(weights: Weights, asked: Mapping[str, float]) -> dict[str, float]:
    """All `weights` as `completed`; `asked` are good ones."""
    others = {version: weight for version, weight in weights.items() if version not in asked}
    rest, whole = MOST_WEIGHT - sum(asked.values()), sum(others.values())
    if others and rest < 0:
        raise ValueError("the weights are more than 100 together; give less, or give every version's")
    if others and rest > 0 and not whole:
        names = " and ".join(others)
        raise ValueError(
            f"the rest, {rest:g}, would go to {names}, without any weight now; say who gets it, "
            f"for example {next(iter(others))}={rest:g}"
        )
    if not others and not any(asked.values()):
        raise ValueError("every weight is 0; give one of them some")
    return {
        **{version: rest * weight / whole if whole else 0.0 for version, weight in others.items()},
        **asked,
    }


def weights_of(text: str) -> dict[str, float]:
    """What `VERSION=WEIGHT,...` says. Raises ValueError for anything else."""
    found: dict[str, float] = {}
    for pair in text.split(","):
        version, _, weight = pair.strip().partition("=")
        if not version or not _NUMBER.fullmatch(weight):
            raise ValueError(
                f"{pair[:60]!r} is no weight; write VERSION=WEIGHT, for example v2=5, between 0 and {MOST_WEIGHT:g}"
            )
        if version in found:
            raise ValueError(f"{version[:60]!r} is given twice; give it one weight")
        found[version] = float(weight)
    return found


def word(said: Mapping[str, str], name: str) -> str:
    """A line for the record. Raises ValueError for none, or what no terminal should be given."""
    text = said.get(name, "").strip()
    if not text:
        raise ValueError(f"{name} is empty; say it in one line")
    if len(text) > _MOST_TEXT:
        raise ValueError(f"{name} has {len(text)} characters; write at most {_MOST_TEXT}")
    if not text.isprintable():
        raise ValueError(f"{name} has a line break or a control character; write one line of text")
    return text
