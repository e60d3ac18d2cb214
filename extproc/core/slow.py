"""Slow replicas, found against the fleet and weighted down, never out (L6).

Each replica's pace is seconds for an output token and seconds of prefill for a prompt, from the counters of its
samples, decayed over half a minute. A replica is found slow when its pace is worse than the fleet's median by more
than chance: even two standard errors below what was seen of it, it is worse by a quarter, and by three times the
fleet's spread (median absolute deviation, which one slow replica can't inflate). It stays slow until what was seen is
within 0.6 of that distance, so that a pace near the limit does not switch it to and fro. Meanwhile

    share -> median pace / own pace,   at least `floor`

of the requests it would be a candidate for: a third of the way at every judgement, one a second, down and up. It
keeps getting some, so it proves itself when it is well again. When too little is seen of it to say anything, the
share grows back by itself, from nothing to all in a minute: more requests come, and show how it is.

The standard error takes the scrapes for the observations, since the tokens between two of them come from the same few
steps: a long prompt beside a few answers makes all of their tokens late at once.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from extproc.core.sample import Sample

#: Seconds after which a sample counts half: a few scrapes must agree, and a minute is long enough to recover in.
_HALF_LIFE = 15.0
#: Least output tokens or prompts in the decayed sums, and least scrapes with any (counted by how evenly they spread),
#: before a pace means anything.
_LEAST_TOKENS = 30.0
_LEAST_PROMPTS = 3.0
_LEAST_SCRAPES = 5.0
#: Standard errors that chance is granted: 1 in 40 beyond them.
_ERRORS = 2.0
#: How much worse than the median is slow, how many spreads, and how far of it is still slow.
_MARGIN = 1.25
_SPREADS = 3.0
_STAYS = 0.6
#: Part of the way to its new share that a judgement moves a replica, and where that is no longer worth a step.
_MOVE = 1 / 3
_THERE = 0.01
#: What a judgement gives back to a replica of which nothing can be said.
_BACK = 1 / 60
#: No counter grows by so much between two samples; it is garbage.
_MOST = 1e12
#: Fewest replicas with a known pace to speak of a fleet.
_LEAST_FLEET = 3


class _Mean:
    """A decayed mean of seconds for one thing, over scrapes, and how sure it is."""

    __slots__ = ("_least", "_seconds", "_squares", "_things", "_weights")

    def __init__(self, least: float) -> None:
        self._least = least
        self._things = self._seconds = 0.0
        self._squares = self._weights = (
            0.0  # things * (seconds for each) ** 2, and things ** 2, summed over scrapes
        )

    def add(self, things: float, seconds: float, keep: float) -> None:
        """What was done since the last scrape; `keep` of all before is left."""
        if not things and not self._things:
            return
        self._things *= keep
        self._seconds *= keep
        self._squares *= keep
        self._weights *= keep * keep
        if things > 0:
            self._things += things
            self._seconds += seconds
            self._squares += seconds * seconds / things
            self._weights += things * things

    @property
    def known(self) -> tuple[float, float] | None:
        """The mean and its standard error; None while too little was seen."""
        if self._things < self._least or self._things**2 < _LEAST_SCRAPES * self._weights:
            return None
        mean = self._seconds / self._things
        scrapes = self._things**2 / self._weights  # as many as if all had had as many things (Kish)
        variance = max(self._squares / self._things - mean * mean, 0.0)
        return mean, math.sqrt(variance / (scrapes - 1))


class Pace:
    """How fast one incarnation works, from successive samples."""

    __slots__ = ("_last", "_prompts", "_tokens", "share", "slow")

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._tokens, self._prompts = _Mean(_LEAST_TOKENS), _Mean(_LEAST_PROMPTS)
        #: Share 0..1 of requests, as `judge` left it, and whether it was found slow.
        self.share = 1.0
        self.slow = False

    def observe(self, sample: Sample) -> None:
        """Take in a sample; what a counter did since the last one is work at this replica's pace."""
        last, self._last = self._last, sample
        if last is None or sample.at <= last.at:
            return
        keep = 0.5 ** ((sample.at - last.at) / _HALF_LIFE)
        tokens = _grown(last.tpot_count, sample.tpot_count), _grown(last.tpot_sum, sample.tpot_sum)
        prompts = (
            _grown(last.prefill_count, sample.prefill_count),
            _grown(last.prefill_sum, sample.prefill_sum),
        )
        self._tokens.add(*_both(*tokens), keep)
        self._prompts.add(*_both(*prompts), keep)

    @property
    def token(self) -> tuple[float, float] | None:
        """Seconds for an output token and their standard error; None while too few were seen."""
        return self._tokens.known

    @property
    def prompt(self) -> tuple[float, float] | None:
        """Seconds of prefill for a prompt and their standard error; None while too few were seen."""
        return self._prompts.known

    def judged(self, known: tuple[float, float] | None, middle: float, limit: float, floor: float) -> None:
        """Compare with the fleet's median and the limit above which a pace is slow."""
        if known is None:
            self.unknown()
            return
        mean, error = known
        if self.slow:
            self.slow = mean > middle + _STAYS * (limit - middle)
        else:
            self.slow = mean - _ERRORS * error > limit
        target = max(floor, middle / mean) if self.slow else 1.0
        self.share += (target - self.share) * _MOVE
        if abs(target - self.share) < _THERE:
            self.share = target

    def unknown(self) -> None:
        """Nothing can be said of it."""
        self.share = min(self.share + _BACK, 1.0)
        self.slow = self.slow and self.share < 1.0


class Paced(Protocol):
    """What has a pace."""

    pace: Pace


def judge(replicas: Sequence[Paced], floor: float) -> None:
    """Move every pace's share by comparing them; called once a second. `floor` is the least share, 0..1.

    Output tokens are compared first: every request makes some, and they do not depend on what was cached. Prompts are
    compared only where no fleet of output paces is known.
    """
    for kind in ("token", "prompt"):
        known = [getattr(replica.pace, kind) for replica in replicas]
        means = [pace[0] for pace in known if pace is not None]
        if len(means) >= _LEAST_FLEET:
            break
    else:
        for replica in replicas:
            replica.pace.unknown()
        return
    middle = median(means)
    spread = median(abs(mean - middle) for mean in means)
    limit = max(middle * _MARGIN, middle + _SPREADS * spread)
    for replica, pace in zip(replicas, known, strict=True):
        replica.pace.judged(pace, middle, limit, floor)


def _both(things: float, seconds: float) -> tuple[float, float]:
    """How many things were done between two samples, and the seconds they took; zeros where either isn't known."""
    return (things, seconds) if things > 0 and seconds >= 0 else (0.0, 0.0)


def _grown(first: float | None, last: float | None) -> float:
    """How far a counter went on; below 0 where that is not known."""
    if first is None or last is None or not last - first < _MOST:  # also NaN
        return -1.0
    return last - first
