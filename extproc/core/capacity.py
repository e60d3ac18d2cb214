"""How much a replica's cache truly holds, learned from what was still there and what was gone.

An engine says how many tokens its cache has room for; prompts share that room with answers being written, with other
traffic, with whatever the engine reserves. Each prompt that came back says whether the cache holds as much as was
used since (core/reuse.py). Hits and misses are counted by that distance, and the capacity believed is the one that
contradicts fewest of them: misses below it and hits above it are contradictions. Counting, not averaging: one
prompt says one thing however large it is, so no single one moves much.

Shrinking needs a few misses above and as many hits below, else it is not the size that is wrong, and goes to the best
place at once. Once smaller, nothing above is predicted any more, so growing lives on unexpected hits and on old
misses fading: a step at a time, and the next one only after _PAUSE further prompts.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

#: Steps of capacity to a factor of two, and steps in all: from the configured capacity down to 1/256 of it.
_STEPS: Final = 4
TOP: Final = 32
#: Prompts after which one has faded to 1/e.
_SPAN: Final = 256.0
#: Shares of the configured capacity at which the second step begins, and so on to that of all.
_SHARES: Final = tuple(2.0 ** ((step - TOP) / _STEPS) for step in range(1, TOP + 1))
_GROWTH: Final = 1 / (1 - 1 / _SPAN)
#: Weight of one prompt from which all are brought down to 1 again.
_RESET: Final = 1e6
#: Misses above and hits below that shrinking needs.
_ENOUGH: Final = 3.0
#: Contradictions that a smaller capacity must save; a tie of chance moves nothing.
_SAVED: Final = 2.0
#: Misses that a hit given up is worth. A prompt predicted warm that is not waits and computes where it need not have
#: been; one predicted cold may still go there. Between 1/5 and 1/3 the time to first token is the same, to within
#: what seeds differ, in the workload of benchmarks/feedback.py; with 1/5 no seed of twelve has less than 91 % of
#: the predicted tokens come.
_WORTH: Final = 1 / 5
#: Prompts that say how often such are gone.
_NEAR: Final = 10.0
#: Prompts between two steps of growth, and the share of misses among all that growing may bring.
_PAUSE: Final = 24
_RISK: Final = 0.02


class Capacity:
    """Bytes of prompt one replica's cache is believed to hold, at most `configured`."""

    __slots__ = ("_hits", "_misses", "_one", "_since", "configured", "step")

    def __init__(self, configured: int) -> None:
        self.configured = configured
        self._hits = [0.0] * TOP
        self._misses = [0.0] * TOP
        self._one = 1.0  # what the newest prompt counts
        #: The capacity believed as a number from 0 to TOP, which other gateways understand too.
        self.step = TOP
        self._since = 0

    @property
    def believed(self) -> int:
        """Bytes, 1/256 of the configured ones and up."""
        return self.at(self.step)

    def at(self, step: int) -> int:
        """Bytes of a step."""
        return int(self.configured * 2.0 ** ((step - TOP) / _STEPS))

    def adopt(self, step: int) -> None:
        """Somebody who saw more prompts found this step."""
        if step != self.step:
            self.step, self._since = step, 0

    def note(self, distance: float, *, found: bool) -> None:
        """Count a prompt, and conclude nothing: that is for somebody else to do."""
        self._count(self._bin(distance), self._hits if found else self._misses)

    def surprise(self, distance: float, doubted: Iterable[float] = ()) -> float:
        """How surprising it is that something used so long ago is gone: -ln of the share of such that were gone.

        That share is of the prompts nearest above the distance, _NEAR of them, with half a miss and half a hit added
        (the Krichevsky-Trofimov estimate): what was used later is gone more rarely. Misses at `doubted` distances
        were counted and do not count here. ln 2 where nothing is known; 0 beyond the capacity believed.
        """
        at = self._bin(distance)
        if at >= self.step:
            return 0.0
        misses = list(self._misses)
        for other in map(self._bin, doubted):
            if other < TOP:
                misses[other] = max(misses[other] - self._one, 0.0)
        there = gone = 0.0
        for place in range(at, self.step):
            there, gone = there + self._hits[place], gone + misses[place]
            if there + gone >= _NEAR * self._one:
                break
        return math.log((there + gone + self._one) / (gone + self._one / 2))

    def pardon(self, distances: Iterable[float], before: int) -> None:
        """Misses at these distances, counted lately, were of an emptied cache: they say nothing of its size, which is
        believed to be what it was `before` them (bytes), unless others gainsay."""
        for at in map(self._bin, distances):
            if at < TOP:
                self._misses[at] = max(self._misses[at] - self._one, 0.0)
        former = self._bin(before + 1)
        if former > self.step:
            wrong = self._contradictions()
            most = wrong[self.step] + _SAVED * self._one  # what shrinking would have had to save
            self.step = max(step for step in range(self.step, former + 1) if wrong[step] <= most)

    def hit(self, distance: float) -> None:
        """A prompt was still there after so many other bytes."""
        if self._count(self._bin(distance), self._hits) and self.step < TOP and self._since >= _PAUSE:
            self._grow()

    def missed(self, distance: float) -> None:
        """A prompt was gone after so many other bytes, and not because the cache was emptied."""
        if self._count(self._bin(distance), self._misses):
            self._shrink()

    def surprised(self) -> None:
        """Something was there that such a capacity would have evicted."""
        if self._count(self.step, self._hits):
            self._grow()

    def _bin(self, distance: float) -> int:
        """Number of the step whose capacity is the largest below `distance`; TOP from the configured one on."""
        return bisect_right(_SHARES, distance / self.configured) if self.configured else 0

    def _count(self, at: int, counts: list[float]) -> bool:
        """Count a prompt; False when it says nothing of capacities up to the configured one."""
        if at >= TOP:
            return False
        self._one *= _GROWTH  # the newest counts for more, which is the same as the older fading
        counts[at] += self._one
        self._since += 1
        if self._one > _RESET:
            for column in (self._hits, self._misses):
                column[:] = [value / self._one for value in column]
            self._one = 1.0
        return True

    def _shrink(self) -> None:
        """Go where the fewest contradictions are, if that is down."""
        if (
            sum(self._misses[: self.step]) < _SAVED * self._one
        ):  # no smaller capacity could save more than these
            return
        wrong = self._contradictions()
        best = min(range(self.step, 0, -1), key=wrong.__getitem__)
        if wrong[best] + _SAVED * self._one <= wrong[self.step] and self._is_size(best):
            self.step, self._since = best, 0

    def _grow(self) -> None:
        """Go up by a step, if it is time and that brings hardly any contradictions."""
        if self.step < TOP and self._since >= _PAUSE:
            self._since = 0
            wrong = self._contradictions()
            counted = sum(self._hits) + sum(self._misses)
            if wrong[self.step + 1] <= wrong[self.step] + _RISK * counted:
                self.step += 1

    def _contradictions(self) -> list[float]:
        """For each step: misses below its capacity and hits above."""
        gone = accumulate(self._misses, initial=0.0)
        there = accumulate(self._hits, initial=0.0)
        hits = sum(self._hits)
        return [misses + _WORTH * (hits - found) for misses, found in zip(gone, there, strict=True)]

    def _is_size(self, step: int) -> bool:
        """Whether what is below a step was there as a rule and what is above was not: a cache that is small."""
        hits, misses = sum(self._hits[:step]), sum(self._misses[:step])
        enough = _ENOUGH * self._one
        return hits >= enough and hits > misses and sum(self._misses[step:]) >= enough
