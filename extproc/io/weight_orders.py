"""What operators ask of versions' weights: read out of a query, and made whole by the weights that hold."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from extproc.core.versions import MOST_WEIGHT, Weights
from extproc.oneline import one_line

#: Longest word of who and why, in characters.
_MOST_TEXT: Final = 300
#: A weight as people write one.
_NUMBER: Final = re.compile(r"\d{1,3}(\.\d{1,12})?", re.ASCII)


def completed(
    now: Weights, asked: Mapping[str, float], known: Weights, stepped: Collection[str] = ()
) -> dict[str, float]:
    """Weights in percent with some as `asked`; the others share the rest of 100 in the proportion that they have.

    Args:
        now: the weights that hold.
        known: the versions of this gateway's configuration with their weights there.
        stepped: those that the guard took back, which nobody is advised to give weight.

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
    return _shared({version: now.get(version, weight) for version, weight in known.items()}, asked, stepped)


def _shared(weights: Weights, asked: Mapping[str, float], stepped: Collection[str]) -> dict[str, float]:
    """All `weights` as `completed`; `asked` are good ones."""
    others = {version: weight for version, weight in weights.items() if version not in asked}
    rest, whole = MOST_WEIGHT - sum(asked.values()), sum(others.values())
    if others and rest < 0:
        raise ValueError("the weights are more than 100 together; give less, or give every version's")
    if others and rest > 0 and not whole:
        raise ValueError(_nobodys(rest, list(others), asked, stepped))
    if not others and not any(asked.values()):
        raise ValueError("every weight is 0; give one of them some")
    return {
        **{version: rest * weight / whole if whole else 0.0 for version, weight in others.items()},
        **asked,
    }


def _nobodys(rest: float, others: list[str], asked: Iterable[str], stepped: Collection[str]) -> str:
    """That a rest would go to versions without any weight, and what to write instead."""
    said = f"the rest, {rest:.15g}, would go to {' and '.join(others)}, without any weight now"
    good = [version for version in others if version not in stepped]
    if good:
        return f"{said}; say who gets it, for example {good[0]}={rest:.15g}"
    return f"{said} and taken back by the guard; give {' or '.join(asked)} more"


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
    return one_line(said.get(name, ""), _MOST_TEXT, name)
