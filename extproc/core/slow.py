"""Slow replicas, found against the fleet and weighted down, never out (L6).

Each replica's pace is seconds for an output token and seconds for a prompt token, from the counters of its samples,
decayed over half a minute. A replica is slow when its pace is worse than the fleet's median by more than chance:
by a quarter, and by three times the fleet's spread (median absolute deviation, which one slow replica can't inflate).
Then it stands for

    share = median pace / own pace,   at least `floor`

of the requests it would be a candidate for. It keeps getting some, so it proves itself when it is well again.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from extproc.core.sample import Sample

#: Seconds after which a sample counts half: a few scrapes must agree, and a minute is long enough to recover in.
_HALF_LIFE = 15.0
#: Least output tokens, and least prompts, in the decayed sums before a pace means anything.
_LEAST_TOKENS = 30.0
_LEAST_PROMPTS = 3.0
#: How much worse than the median is slow, and how many spreads.
_MARGIN = 1.25
_SPREADS = 3.0
#: Fewest replicas with a known pace to speak of a fleet.
_LEAST_FLEET = 3


class Pace:
    """How fast one incarnation works, from successive samples."""

    __slots__ = ("_last", "_prompt_count", "_prompt_seconds", "_token_count", "_token_seconds", "share")

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._token_seconds = self._token_count = 0.0
        self._prompt_seconds = self._prompt_count = 0.0
        #: Share 0..1 of requests, as `judge` left it.
        self.share = 1.0

    def observe(self, sample: Sample) -> None:
        """Take in a sample; what a counter did since the last one is work at this replica's pace."""
        last, self._last = self._last, sample
        if last is None or sample.at <= last.at:
            return
        keep = 0.5 ** ((sample.at - last.at) / _HALF_LIFE)
        tokens, spent = _grown(last, sample, "tpot_count"), _grown(last, sample, "tpot_sum")
        self._token_count = self._token_count * keep + tokens
        self._token_seconds = self._token_seconds * keep + spent
        prompts, took = _grown(last, sample, "prefill_count"), _grown(last, sample, "prefill_sum")
        self._prompt_count = self._prompt_count * keep + prompts
        self._prompt_seconds = self._prompt_seconds * keep + took

    @property
    def token(self) -> float | None:
        """Seconds for an output token; None while too few were seen."""
        return self._token_seconds / self._token_count if self._token_count >= _LEAST_TOKENS else None

    @property
    def prompt(self) -> float | None:
        """Seconds of prefill for a prompt; None while too few were seen."""
        return self._prompt_seconds / self._prompt_count if self._prompt_count >= _LEAST_PROMPTS else None


class Paced(Protocol):
    """What has a pace."""

    pace: Pace


def judge(replicas: Sequence[Paced], floor: float) -> None:
    """Set every pace's share by comparing them. `floor` is the least share, 0..1.

    Output tokens are compared first: every request makes some, and they do not depend on what was cached. Prompts are
    compared only where no fleet of output paces is known.
    """
    for known in ("token", "prompt"):
        paces = {i: pace for i, r in enumerate(replicas) if (pace := getattr(r.pace, known)) is not None}
        if len(paces) >= _LEAST_FLEET:
            break
    else:
        for replica in replicas:
            replica.pace.share = 1.0
        return
    middle = median(paces.values())
    spread = median(abs(pace - middle) for pace in paces.values())
    limit = max(middle * _MARGIN, middle + _SPREADS * spread)
    for i, replica in enumerate(replicas):
        pace = paces.get(i)
        slow = pace is not None and pace > limit and not math.isinf(pace)
        replica.pace.share = max(floor, middle / pace) if slow and pace else 1.0


def _grown(before: Sample, after: Sample, name: str) -> float:
    first, last = getattr(before, name), getattr(after, name)
    if first is None or last is None:
        return 0.0
    return float(max(0.0, last - first))
