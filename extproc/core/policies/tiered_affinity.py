"""tiered_affinity: a prefix has an owner, and goes there the more surely, the more room the owner has (R2-R4).

headroom of the owner above `high`:      there
from `floor` to `high`:                  there with the chance `stay`, else drawn by headroom
below `floor`:                           drawn by headroom, and the prefix is bound to whom it drew,
                                         unless it was moved less than `dwell` seconds ago

A prefix with more than `hot` requests a second gets one owner more for every `hot` of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.policies.base import Ask, Choice, Places, Rng, check_range, led_by, lowest
from extproc.core.policies.beginnings import Beginnings
from extproc.core.policies.recent import Recent
from extproc.core.policies.spread import drawn, headrooms

#: Seconds over which the rate of a prefix is averaged; `hot` requests at once count as `hot` a second.
_RATE_SPAN = 1.0


class _Bound:
    """A prefix and its owners' addresses, oldest first; when it was last moved, and how often it comes (1/s)."""

    __slots__ = ("came", "moved", "owners", "rate")

    def __init__(self, owner: str, now: float) -> None:
        self.owners = [owner]
        self.moved = self.came = now
        self.rate = 1.0 / _RATE_SPAN

    def note(self, now: float) -> None:
        """One more request came: an average that forgets by 1/e in `_RATE_SPAN`."""
        self.rate = self.rate * math.exp((self.came - now) / _RATE_SPAN) + 1.0 / _RATE_SPAN
        self.came = now


@dataclass(slots=True)
class TieredAffinity:
    """`high`, `floor`: scores 0..1; `stay`: a chance; `dwell`: s; `hot`: requests/s; `exponent` of the draw.

    `grain`: fair shares of one replica that prompts of one beginning may make up and still be one prefix.
    `ttl` s and `prefixes` bound what is remembered.
    """

    high: float = 0.3
    floor: float = 0.15
    stay: float = 0.7
    dwell: float = 30.0
    hot: float = 50.0
    exponent: float = 2.0
    grain: float = 1.0
    ttl: float = 1800.0
    prefixes: float = 65_536
    _bound: Recent[_Bound] = field(init=False, repr=False)
    _beginnings: Beginnings = field(init=False, repr=False)
    _places: Places = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("high", 0, 1),
            ("floor", 0, self.high),
            ("stay", 0, 1),
            ("dwell", 0, 2**30),
            ("hot", 0.001, 2**30),
            ("exponent", 0, 100),
            ("grain", 0.001, 1000),
            ("ttl", 0, 2**30),
            ("prefixes", 1, 2**24),
        ):
            check_range("tiered_affinity", name, getattr(self, name), low, high)
        self._bound = Recent(self.prefixes, self.ttl)
        self._beginnings = Beginnings(self.grain)
        self._places = Places()

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """An owner of the prompt's prefix or one drawn by headroom; the roomiest others are the fallbacks."""
        scores = headrooms(ask.replicas, ask.tokens + ask.output)
        first, reason = self._first(ask, scores, rng)
        costs = [1.0 - score for score in scores]
        return Choice(led_by(first, costs, picks), costs, reason, {"room": scores})

    def _first(self, ask: Ask, scores: list[float], rng: Rng) -> tuple[int, str]:
        if ask.prompt is None or not ask.prompt.chains:
            return self._draw(scores, rng), "no_prompt"
        key = self._beginnings.key(ask.prompt, len(scores))
        bound = self._bound.get(key, ask.now)
        if bound is None:
            first = self._draw(scores, rng)
            self._bound.put(key, _Bound(ask.replicas[first].address, ask.now), ask.now)
            return first, "new_prefix"
        bound.note(ask.now)
        place = self._places.of(ask.replicas)
        owner = self._owner(bound, ask, scores, place, rng)
        if owner >= 0 and scores[owner] > self.high:
            return owner, "owner" if bound.rate <= self.hot else "owner_of_hot"
        if owner >= 0 and scores[owner] >= self.floor:
            return (
                (owner, "owner_busy") if rng.random() < self.stay else (self._draw(scores, rng), "relieved")
            )
        return self._rebind(bound, owner, ask, scores, rng)

    def _draw(self, scores: list[float], rng: Rng) -> int:
        return drawn(scores, self.floor, self.exponent, rng)

    def _owner(self, bound: _Bound, ask: Ask, scores: list[float], place: Mapping[str, int], rng: Rng) -> int:
        """The owner to consider, of several the one with the fewest requests; -1 when none is a candidate."""
        here = [place[address] for address in bound.owners if address in place]
        width = 1
        if bound.rate > self.hot:
            width = min(math.ceil(bound.rate / self.hot), len(scores))
            while len(here) < width:
                here.append(self._widen(bound, here, ask, scores, rng))
        if len(here) < 2:
            return here[0] if here else -1
        here = [i for i in here[:width] if scores[i] > self.high] or here[:width]
        return here[lowest([ask.replicas[i].requests for i in here], 1, rng)[0]]

    def _widen(self, bound: _Bound, here: list[int], ask: Ask, scores: list[float], rng: Rng) -> int:
        """One more owner, drawn by headroom among the others."""
        others = [i for i in range(len(scores)) if i not in here]
        new = others[self._draw([scores[i] for i in others], rng)]
        bound.owners.append(ask.replicas[new].address)
        return new

    def _rebind(self, bound: _Bound, owner: int, ask: Ask, scores: list[float], rng: Rng) -> tuple[int, str]:
        """Leave an owner without room, or one that is no candidate; the prefix moves unless it moved just now."""
        first = self._draw(scores, rng)
        if ask.now - bound.moved < self.dwell:
            return first, "dwelling"
        new = ask.replicas[first].address
        left = ask.replicas[owner].address if owner >= 0 else None
        bound.owners = [new, *(a for a in bound.owners if a not in (new, left))][: len(bound.owners)]
        bound.moved = ask.now
        return first, "rebound"
