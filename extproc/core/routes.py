"""Which pool answers a request: one ordered table of what pools take, by model, kind and prompt tokens.

A pool that lists a model comes before those that take every model, which fill what is left open. Where several pools
take the same, they are versions, and `core/versions.py` chooses among them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Final, NamedTuple

#: Kinds of requests, as dialects tell them (`Prompt.kind`).
KINDS: Final = ("generate", "embed", "rerank")
#: Stands for models that no pool lists.
ANY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What one pool takes.

    Attributes:
        pool: its name.
        models: names it lists; empty for every model.
        kinds: of KINDS, at least one.
        least, below: prompt tokens from `least` on and less than `below`.
        version: what it serves of these models; "" where there are no versions.
        weight: share of the conversations against that of the other versions, 0 and up.
    """

    pool: str
    models: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset(KINDS)
    least: int = 0
    below: float = inf
    version: str = ""
    weight: float = 100.0

    def takes(self, least: float) -> bool:
        """Whether it takes prompts of so many tokens."""
        return self.least <= least < self.below


class Band(NamedTuple):
    """Who takes prompts from `least` tokens on and less than `below`, in the pools' order; empty for nobody."""

    least: int
    below: float
    takers: tuple[Route, ...]


def bands(routes: Sequence[Route], model: str, kind: str) -> list[Band]:
    """Who takes one model's requests of one kind, by prompt tokens from 0 up without a gap; ANY for unlisted ones."""
    named = [route for route in routes if model in route.models and kind in route.kinds]
    others = [route for route in routes if not route.models and kind in route.kinds]
    cuts = sorted({0, *(route.least for route in [*named, *others])} | _ends([*named, *others]))
    found = []
    for least, below in zip(cuts, [*cuts[1:], inf], strict=True):
        takers = [it for it in named if it.takes(least)] or [it for it in others if it.takes(least)]
        found.append(Band(least, below, tuple(takers)))
    return _joined(found)


def _ends(routes: Iterable[Route]) -> set[int]:
    return {int(route.below) for route in routes if route.below < inf}


def _joined(found: list[Band]) -> list[Band]:
    """Neighbours with the same takers made one."""
    joined: list[Band] = []
    for band in found:
        if joined and joined[-1].takers == band.takers:
            band = Band(joined.pop().least, band.below, band.takers)
        joined.append(band)
    return joined


class Row(NamedTuple):
    """The bands of a model and a kind, by prompt tokens from 0 up, and where each begins."""

    leasts: list[int]
    bands: list[Band]

    def takers(self, tokens: float) -> tuple[Route, ...]:
        """Who takes prompts of so many tokens."""
        return self.bands[bisect_right(self.leasts, tokens) - 1].takers


class Table:
    """The routes, looked up by one or two dict reads and a bisection over a model's bands."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        self._nameless: dict[str, Route] = {}
        models = {ANY, *(model for route in routes for model in route.models)}
        for kind in KINDS:
            for model in models:
                row = bands(routes, model, kind)
                self._rows[model, kind] = Row([band.least for band in row], row)
            self._nameless[kind] = next((it for it in routes if kind in it.kinds), routes[0])
        #: Model -> the pool that takes everything of it; None where more has to be known.
        self.lone = {model: self._only_taker(model) for model in models}
        self.takes_any = any(not route.models for route in routes)

    def row(self, model: str, kind: str) -> "Row":
        """A model's bands. Unknown kinds are taken for generation."""
        found = self._rows.get((model, kind))
        if found is not None:
            return found
        kind = kind if kind in KINDS else KINDS[0]
        return self._rows.get((model, kind)) or self._rows[ANY, kind]

    def find(self, model: str, kind: str, tokens: float) -> tuple[Route, ...]:
        """Who takes it, in the pools' order; empty for nobody."""
        return self.row(model, kind).takers(tokens)

    def knows(self, model: str) -> bool:
        """Whether a pool lists the model."""
        return model != ANY and (model, KINDS[0]) in self._rows

    def nameless(self, kind: str) -> Route:
        """Who takes what nobody takes, and what names no model: the first pool that takes its kind."""
        return self._nameless.get(kind) or self._nameless[KINDS[0]]

    def _only_taker(self, model: str) -> str | None:
        takers = {band.takers for kind in KINDS for band in self._rows[model, kind].bands}
        only = takers.pop() if len(takers) == 1 else ()
        return only[0].pool if len(only) == 1 else None


# -- what can be wrong with it ---------------------------------------------------------------------------


def faults(routes: Sequence[Route]) -> list[str]:
    """What is wrong with the table, a sentence each that says how to mend it: overlaps, holes, weights, and versions
    that take other lengths than the others of their model.

    Nobody needs to take every kind: a model that only embeds is no fault.
    """
    models = [ANY, *dict.fromkeys(model for route in routes for model in sorted(route.models))]
    found = []
    for model in models:
        for kind in KINDS:
            row = bands(routes, model, kind)
            if any(band.takers for band in row):
                said = [_fault(model, kind, band, row) for band in row]
                found += [each for each in (*said, _parted(model, kind, row)) if each]
        found += _two_weights(model, routes)
    return list(dict.fromkeys(found))


def _fault(model: str, kind: str, band: Band, row: list[Band]) -> str:
    takers = band.takers
    if not takers:
        return _hole(model, kind, band, row)
    if len(takers) == 1:
        return ""
    for one, other in combinations(takers, 2):
        if not (one.version and other.version) or one.version == other.version:
            return _overlap(model, kind, band, one, other)
    if not any(route.weight for route in takers):
        names = " and ".join(repr(route.pool) for route in takers)
        return f"{names} share {_what(model)}, and the weight of each is 0; give one of them a weight"
    return ""


def _two_weights(model: str, routes: Sequence[Route]) -> Iterable[str]:
    """Versions whose weight depends on who is asked: a conversation that grows longer keeps its version."""
    takers = [route for route in routes if (model in route.models if model != ANY else not route.models)]
    first: dict[str, Route] = {}
    for route in takers:
        other = first.setdefault(route.version, route)
        if route.version and other.weight != route.weight:
            yield (
                f"{other.pool!r} and {route.pool!r} serve version {route.version!r} of {_what(model)} with weights "
                f"{other.weight:g} and {route.weight:g}; a version has one weight, so write the same in both"
            )


def _overlap(model: str, kind: str, band: Band, one: Route, other: Route) -> str:
    whole = band.least == 0 and band.below == inf
    if whole and not (one.version or other.version) and one.kinds == other.kinds == frozenset(KINDS):
        if model == ANY:
            return (
                f"{one.pool!r} and {other.pool!r} both answer for every model; list the models of one of them under "
                "models"
            )
        return (
            f"{one.pool!r} and {other.pool!r} both list {model!r}; remove one, or tell them apart by version, kinds "
            "or prompt_tokens"
        )
    return (
        f"{one.pool!r} and {other.pool!r} both take {_what(model)}, {kind}, {_prompts(band)}"
        f"{_apart(kind, one, other)}"
    )


def _apart(kind: str, one: Route, other: Route) -> str:
    """How two pools that take the same are told apart."""
    if one.version and one.version == other.version:
        return f", as version {one.version!r}; give one of them another version, or put the replicas into one pool"
    bare = next((it.pool for it in (one, other) if not it.version), "")
    if one.version or other.version:
        return f"; give {bare!r} a version of its own too, or remove that of the other and move a bound"
    if one.kinds != other.kinds:
        return f"; take {kind} out of the kinds of one, or give each a version of its own"
    return "; move a bound of prompt_tokens, or give each a version of its own"


def _parted(model: str, kind: str, row: list[Band]) -> str:
    """Of versions that don't all take the same lengths: a conversation that grows would change its version."""
    versioned = [band for band in row if band.takers and all(it.version for it in band.takers)]
    told = [(band, {it.version for it in band.takers}) for band in versioned]
    every: set[str] = set().union(*(versions for _, versions in told))
    for band, versions in told:
        if lacking := sorted(every - versions):
            return (
                f"version {lacking[0]!r} of {_what(model)}, {kind}, takes no {_prompts(band)}, but "
                f"{band.takers[0].pool!r} does, so conversations that grow would change their version; give both "
                "the same prompt_tokens, add a pool of that version for them, or leave out version where only one is"
            )
    return ""


def _hole(model: str, kind: str, band: Band, row: list[Band]) -> str:
    before = next((it.takers[-1].pool for it in reversed(row) if it.takers and it.below <= band.least), "")
    after = next((it.takers[0].pool for it in row if it.takers and it.least >= band.below), "")
    mend = f"raise prompt_tokens.below of {before!r}" if before else f"lower prompt_tokens.least of {after!r}"
    return f"nobody takes {_what(model)}, {kind}, {_prompts(band)}; {mend}, or add a pool for them"


def _what(model: str) -> str:
    return repr(model) if model != ANY else "models that no pool lists"


def _prompts(band: Band) -> str:
    if band.below == inf:
        return f"prompts of {band.least} tokens and more" if band.least else "prompts of any length"
    return f"prompts of {band.least} to {int(band.below) - 1} tokens"
