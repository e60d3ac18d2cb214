"""Weights of a model's versions as they were chosen: numbered, with who and why, and the way back. Read strictly.

In Redis those of all models stand in one string (PREFIX:versions), without a TTL, since an operator's decision must
not expire:

    {"models": {MODEL: {"number", "weights", "who", "why", "when", "past": [weights before, oldest first],
                        "stepped": [versions that the guard took back since an operator gave them weight]}}}
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from extproc.core.versions import MOST_WEIGHT, Weights
from extproc.errors import KvsteerError

#: Steps back that are kept.
KEPT: Final = 20
#: Longest texts taken, in characters; most models and versions.
_MOST_TEXT, _MOST_NAMES = 300, 1000
_MOST_NUMBER = 2**52


@dataclass(slots=True, frozen=True, kw_only=True)
class Chosen:
    """A model's weights. `number` counts changes from 1, 0 is the configuration; `when` is in seconds since 1970.

    `stepped` are the versions that the guard took back and nobody has given weight since.
    """

    number: int
    weights: Weights
    who: str
    why: str
    when: float
    past: tuple[Weights, ...] = ()
    stepped: tuple[str, ...] = ()

    def after(
        self, weights: Weights, who: str, why: str, when: float, *, stepped: Iterable[str] = ()
    ) -> "Chosen":
        """The next one, from which there is a way back to this; `stepped` are versions that the guard takes back."""
        return Chosen(
            number=self.number + 1,
            weights=weights,
            who=who,
            why=why,
            when=when,
            past=(*self.past, self.weights)[-KEPT:],
            stepped=tuple(
                version for version in dict.fromkeys((*self.stepped, *stepped)) if not weights.get(version)
            ),
        )

    def back(self, who: str, why: str, when: float) -> "Chosen | None":
        """The next one, which puts back what was before; None where nothing was. Repeated, it goes further back.

        Weights that would bring back what the guard took back are passed over: who goes back wants to be safe.
        """
        for at in reversed(range(len(self.past))):
            before = self.past[at]
            if not any(before.get(version) for version in self.stepped):
                return Chosen(
                    number=self.number + 1,
                    weights=before,
                    who=who,
                    why=why,
                    when=when,
                    past=self.past[:at],
                    stepped=self.stepped,
                )
        return None


class UntakenError(KvsteerError):
    """Redis did not answer, or refused; the message says why. Who changes something is told."""


class Store(Protocol):
    """Where all gateways' weights stand."""

    key: str

    async def get(self) -> bytes | None:
        """What stands there."""
        ...

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        """Put `after` in the place of `before`; whether it stands there."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


#: Model -> its weights.
Models = dict[str, Chosen]


def written(models: Models) -> bytes:
    """As it stands in Redis."""
    return orjson.dumps({"models": {model: _form(chosen) for model, chosen in sorted(models.items())}})


def _form(chosen: Chosen) -> dict[str, Any]:
    return {
        "number": chosen.number,
        "weights": dict(chosen.weights),
        "who": chosen.who,
        "why": chosen.why,
        "when": chosen.when,
        "past": [dict(weights) for weights in chosen.past],
        "stepped": list(chosen.stepped),
    }


def read(text: bytes | None) -> Models:
    """What stands there, without entries that can't be read. Raises ValueError for what is none of ours."""
    if not text:
        return {}
    try:
        models = orjson.loads(text)["models"]
        items = list(models.items())[:_MOST_NAMES]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("the key holds no weights of versions") from None
    found: Models = {}
    for model, said in items:
        try:
            found[model] = _read(said)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _read(said: dict[str, Any]) -> Chosen:
    number, when = said["number"], said["when"]
    if type(number) is not int or not 0 < number < _MOST_NUMBER or type(when) not in (int, float):
        raise ValueError
    return Chosen(
        number=number,
        weights=_weights(said["weights"]),
        who=_text(said["who"]),
        why=_text(said["why"]),
        when=float(when),
        past=tuple(_weights(past) for past in said["past"][-KEPT:]),
        stepped=tuple(_text(version) for version in list(said.get("stepped", ()))[:_MOST_NAMES]),
    )


def _weights(said: dict[str, Any]) -> Weights:
    found = {}
    for version, weight in list(said.items())[:_MOST_NAMES]:
        if type(weight) not in (int, float) or not 0 <= weight <= MOST_WEIGHT:
            raise ValueError
        found[version] = float(weight)
    return found


def _text(said: Any) -> str:
    if type(said) is not str:
        raise TypeError
    return "".join(letter if letter.isprintable() else "?" for letter in said[:_MOST_TEXT])
