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
from itertools import compress
from typing import Final, NamedTuple

from extproc.core.prompt import Chain

#: Generations in a capacity, and generations kept: enough for what is used four times as long as the cache is large.
_SHARE: Final = 32
_GENERATIONS: Final = 128
#: Points remembered; each takes about 200 bytes.
_POINTS: Final = 4096


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


#: Why a point is kept: a prompt ends there, ends one hash later, or prompts part there.
_END, _BEFORE, _FORK = range(3)


class _Point:
    """A prompt's end, or where prompts part: bytes from the point before, and the last use."""

    __slots__ = ("at", "generation", "kind", "own", "sent", "sure")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.own = self.generation = 0
        self.at = math.inf
        self.sent = 0.0
        self.sure = False


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
        known = self._points
        found, generation, mine = [], -1, 0
        for key, end in zip(chain.hashes[:depth], chain.ends, strict=False):
            point = known.get(key)
            if point is not None:
                mine = point.own + (mine if point.generation == generation else 0)
                generation = point.generation
                found.append(self._use(point, end, mine))
        return found

    def use(self, chain: Chain, depth: int, now: float) -> None:
        """The replica is given a prompt, of which it held the first `depth` hashes."""
        hashes, ends = chain
        known, last = self._points, len(hashes) - 1
        passed = list(compress(range(last), map(known.__contains__, hashes)))
        if 0 < depth <= last and hashes[depth - 1] not in known:
            known[hashes[depth - 1]] = _Point(_FORK)
            passed = sorted([*passed, depth - 1])
        kept = [place for place in passed if self._stays(hashes, place)]
        for place, kind in ((last - 1, _BEFORE), (last, _END)):
            if place >= 0 and place not in kept:
                kept.append(place)
                if hashes[place] not in known:
                    known[hashes[place]] = _Point(kind)
        self._front(chain, kept, now)
        self._used += ends[-1]
        if self._used > self._span:
            self._next()
        while len(known) > _POINTS:
            self._take(next(iter(known)))

    def ended(self, chain: Chain, now: float, *, found: bool) -> None:
        """A prompt that was given is over, and in the cache; `found` says that it was as predicted."""
        for point in map(self._points.get, chain.hashes):
            if point is not None:
                point.at, point.sure = now, found

    def _stays(self, hashes: list[int], place: int) -> bool:
        """Whether a point that a prompt passes is kept: not where it merely goes on from an earlier one."""
        point = self._points[hashes[place]]
        if point.kind == _BEFORE and place + 1 < len(hashes):
            after = self._points.get(hashes[place + 1])
            if after is None or after.kind != _END:
                point.kind = _FORK
        if point.kind == _FORK:
            return True
        if place < len(hashes) - 2:
            self._take(hashes[place])
            return False
        return True

    def _front(self, chain: Chain, places: list[int], now: float) -> None:
        """Points of a prompt are used now: each owns the bytes from the one before."""
        known, sums, first = self._points, self._sums, self._first
        begin, newest = 0, first + len(sums) - 1
        for place in places:
            key, end = chain.hashes[place], chain.ends[place]
            point = known.pop(key)
            if point.generation >= first:
                sums[point.generation - first] -= point.own
            point.own, point.generation = end - begin, newest
            point.at, point.sure, point.sent = math.inf, False, now
            sums[-1] += point.own
            known[key] = point
            begin = end

    def _use(self, point: _Point, end: int, mine: int) -> Use:
        """`mine`: bytes of the prompt itself, up to this point, in the point's generation."""
        place = point.generation - self._first
        if place < 0:
            distance: float = sum(self._sums)
        else:  # of its own generation, half came later as a rule
            distance = sum(self._sums[place + 1 :]) + max(self._sums[place] - mine, 0) / 2
        return Use(end, distance, point.at, point.sure, point.sent)

    def _take(self, key: int) -> None:
        self._drop(self._points.pop(key))

    def _drop(self, point: _Point) -> None:
        place = point.generation - self._first
        if place >= 0:
            self._sums[place] -= point.own

    def _next(self) -> None:
        self._sums.append(0)
        self._used = 0
        if len(self._sums) > _GENERATIONS:
            del self._sums[0]
            self._first += 1
