"""How much a replica was given since it was last given a prompt's beginning: its reuse distance, in bytes.

A cache that evicts what was unused longest still holds an entry exactly when fewer distinct bytes than its capacity
were used since (Mattson et al., 1970: the stack distance). So a hit at distance d says that the cache holds at least
d bytes, and a miss that it holds less. The index's epochs end by new bytes alone: where sessions come back with a
little more each time, all are in one epoch, which tells nothing. So uses are kept in order here.

Prompts are kept as a tree's points: where one ended, and where two part (a system prompt, a document many ask about).
Each point owns the bytes from the point before it, so the sum over points counts each byte once, and a prompt that
passes points moves their bytes to the front. A prompt that goes on from an earlier one takes its point over. Points
stand in generations, which end after 1/_SHARE of the configured capacity was used: a distance is the sum of the newer
ones, right to within one of them.
"""

import math
from bisect import insort
from itertools import islice
from typing import Final, NamedTuple

from extproc.core.prompt import Chain

#: Generations in a capacity, and generations kept: enough for what is used four times as long as the cache is large.
_SHARE: Final = 32
_GENERATIONS: Final = 128
#: Points remembered; each takes about 200 bytes.
_POINTS: Final = 4096
#: So many more are forgotten when there are too many, since a dict's first key is found the later the more went
#: before it: one by one, that was most of what a prompt cost here.
_AT_ONCE: Final = 64


class Use(NamedTuple):
    """When the first `end` bytes of a prompt were last used: bytes used since, and seconds on the caller's clock.

    `at` is when the last of these uses ended, so that they were in the cache by then; infinite while none has.
    `sure` says that they were found there, not only brought. `sent` is when the last of these uses was sent.
    """

    end: int
    distance: float
    at: float
    sure: bool = False
    sent: float = 0.0


#: The same, of which most are never looked at: a name costs as much as all else that is kept of one.
Unnamed = tuple[int, float, float, bool, float]

#: When the last use of a point ended that is still going on.
_NEVER: Final = math.inf
#: Why a point is kept: a prompt ends there, ends one hash later, or prompts part there.
_END, _BEFORE, _FORK = range(3)


class _Point:
    """A prompt's end, or where prompts part: bytes from the point before, and the last use. `_front` sets all."""

    __slots__ = ("at", "generation", "kind", "own", "sent", "sure")

    kind: int
    own: int
    generation: int
    at: float
    sent: float
    sure: bool


class Reuse:
    """Prompts of one replica in the order of their last use. `capacity`: bytes its cache is configured to hold."""

    __slots__ = ("_first", "_points", "_span", "_sums", "_used")

    def __init__(self, capacity: int) -> None:
        self._span = max(capacity // _SHARE, 1)
        self.clear()

    def clear(self) -> None:
        """Forget every use."""
        self._sums = [0]  # own bytes of each generation, oldest first
        self._first = 0  # number of the oldest generation
        self._used = 0  # bytes used in the newest
        self._points: dict[int, _Point] = {}  # by hash; oldest use first

    def __len__(self) -> int:
        """Points remembered."""
        return len(self._points)

    def look(self, chain: Chain, depth: int) -> list[Use]:
        """Last uses of the beginnings known within the first `depth` hashes, the shortest first."""
        return [Use._make(use) for use in self._walk(chain, depth)[1]]

    def use(self, chain: Chain, held: int, now: float, depth: int = 0) -> list[Unnamed]:
        """The replica is given a prompt, of which it held the first `held` hashes.

        Returns what `look` would have said before, of the first `depth`: the hashes are walked once for both.
        """
        known, uses = self._walk(chain, depth)
        self._front(chain, known, held, now)
        self._used += chain.ends[-1]
        if self._used > self._span:
            self._next()
        points = self._points
        if len(points) > _POINTS:
            for key in list(islice(points, len(points) - _POINTS + _AT_ONCE)):
                self._take(key)
        return uses

    def ended(self, chain: Chain, now: float, *, found: bool) -> None:
        """A prompt that was given is over, and in the cache; `found` says that it was as predicted."""
        for point in map(self._points.get, chain.hashes):
            if point is not None:
                point.at = now
                point.sure = found

    def _walk(self, chain: Chain, depth: int) -> tuple[list[int], list[Unnamed]]:
        """Places of the points of a prompt, and the last uses of those within the first `depth`."""
        hashes, ends = chain
        known: list[int] = []
        uses: list[Unnamed] = []
        generation = place = newer = others = 0
        for point in map(self._points.get, hashes):
            if point is not None:
                known.append(place)
                if place < depth:
                    if point.generation != generation or not uses:
                        generation = point.generation
                        newer, others = self._since(generation)
                    # Of its own generation, half of what is not of the prompt itself came later as a rule.
                    others -= point.own
                    distance = newer + others / 2 if others > 0 else newer
                    uses.append((ends[place], distance, point.at, point.sure, point.sent))
            place += 1  # noqa: SIM113 - enumerate costs more than all else here
        return known, uses

    def _since(self, generation: int) -> tuple[int, int]:
        """Bytes used in generations newer than this one, and in it; of one that is forgotten all are newer."""
        sums, age = self._sums, generation - self._first
        return (sum(sums[age + 1 :]), sums[age]) if age >= 0 else (sum(sums), 0)

    def _front(self, chain: Chain, known: list[int], held: int, now: float) -> None:
        """Points of a prompt, those known and those it makes, are used now: each owns the bytes from the one before.

        Not those that it passes and merely goes on from: they are taken.
        """
        hashes, ends = chain
        points, sums, first = self._points, self._sums, self._first
        last, newest, begin = len(hashes) - 1, first + len(sums) - 1, 0
        if 0 < held < last and held - 1 not in known:
            insort(known, held - 1)
        while known and known[-1] >= last - 1:
            known.pop()
        known += (last - 1, last) if last else (last,)
        for place in known:
            key = hashes[place]
            point = points.pop(key, None)
            if point is None:
                point = _Point()
                point.kind = _END if place == last else _FORK if place == held - 1 else _BEFORE
            else:
                if point.generation >= first:
                    sums[point.generation - first] -= point.own
                if point.kind == _BEFORE and place < last and not self._ends_at(hashes[place + 1]):
                    point.kind = _FORK
                elif point.kind != _FORK and place < last - 1:
                    continue
            end = ends[place]
            point.own = end - begin
            point.generation = newest
            point.at = _NEVER
            point.sure = False
            point.sent = now
            points[key] = point
            begin = end
        sums[-1] += begin

    def _ends_at(self, key: int) -> bool:
        """Whether a prompt ended at a hash, and none parts there."""
        point = self._points.get(key)
        return point is not None and point.kind == _END

    def _take(self, key: int) -> None:
        point = self._points.pop(key)
        age = point.generation - self._first
        if age >= 0:
            self._sums[age] -= point.own

    def _next(self) -> None:
        self._sums.append(0)
        self._used = 0
        if len(self._sums) > _GENERATIONS:
            del self._sums[0]
            self._first += 1
