"""The headroom score of a replica: 0 (full) to 1 (idle), from its samples; None while nothing is known.

score = weighted mean of the known parts of
        free KV            1 - kv_used, forecast ahead when it falls      (C1, C4)
        free running slots 1 - running / max_running                      (C1)
        empty queue        1 - waiting / max_running                      (C1)
        times the queue penalty: 1 below 2 waiting, else max(0.2, 1 / (1 + waiting))   (C2)
smoothed as the mean over a window of samples (C3).

A part the engine does not tell leaves the mean; it does not count as free.
"""

from collections import deque
from dataclasses import dataclass

from extproc.core.sample import Sample

#: Waiting requests from which a queue is more than a passing one (C2).
_QUEUE_STARTS = 2
#: Least the queue penalty may leave of a score (C2).
_QUEUE_FLOOR = 0.2
#: Fewest samples a forecast is made from (C4).
_FORECAST_SAMPLES = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class Weights:
    """How the parts count, and over what they are smoothed. `horizon` in seconds."""

    kv: float = 0.4
    running: float = 0.3
    waiting: float = 0.3
    window: int = 5
    horizon: float = 3.0


class Headroom:
    """The score of one replica, fed with its samples."""

    __slots__ = ("_kv", "_scores", "_weights", "score")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._scores: deque[float] = deque(maxlen=weights.window)
        self._kv: deque[tuple[float, float]] = deque(maxlen=max(weights.window, _FORECAST_SAMPLES))
        #: The smoothed score 0..1; None while no sample told anything.
        self.score: float | None = None

    def update(self, sample: Sample, max_running: int) -> None:
        """Take one more sample in. `max_running` is used where the sample does not know its own."""
        if sample.kv_used is not None:
            self._kv.append((sample.at, sample.kv_used))
        parts = self._parts(sample, sample.max_running or max_running)
        weight = sum(share for share, _ in parts)
        if not weight:
            return
        mean = sum(share * _clamp(part) for share, part in parts) / weight
        self._scores.append(mean * queue_penalty(sample.waiting))
        self.score = sum(self._scores) / len(self._scores)

    def _parts(self, sample: Sample, most: int) -> list[tuple[float, float]]:
        weights = self._weights
        parts = []
        if sample.kv_used is not None:
            parts.append((weights.kv, 1 - forecast(self._kv, sample.kv_used, weights.horizon)))
        if sample.running is not None:
            parts.append((weights.running, 1 - sample.running / most))
        if sample.waiting is not None:
            parts.append((weights.waiting, 1 - sample.waiting / most))
        return parts


def queue_penalty(waiting: float | None) -> float:
    """Factor 0.2..1 for a queue of `waiting` requests; an unknown queue is not punished (C2)."""
    if waiting is None or waiting < _QUEUE_STARTS:
        return 1.0
    return max(_QUEUE_FLOOR, 1 / (1 + waiting))


def forecast(points: "deque[tuple[float, float]]", used: float, horizon: float) -> float:
    """KV use `horizon` seconds ahead, by a straight line through (time, use) points; never below `used` (C4)."""
    if len(points) < _FORECAST_SAMPLES or horizon <= 0:
        return used
    (first_at, first), (last_at, last) = points[0], points[-1]
    if last_at <= first_at or last <= first:
        return used
    return min(1.0, used + (last - first) / (last_at - first_at) * horizon)


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
