"""The headroom score of a replica: 0 (full) to 1 (idle), from its samples; None while nothing is known.

score = weighted mean of the known parts of
        free KV            1 - kv_used, forecast ahead when it falls      (C1, C4)
        free running slots 1 - running / max_running                      (C1)
        empty queue        1 - waiting / max_running                      (C1)
        times the queue penalty: 1 below 2 waiting, else max(0.2, 1 / (1 + waiting))   (C2)
smoothed as the mean over a window of samples (C3).

A part the engine does not tell leaves the mean; it does not count as free.

Long requests weigh free KV more, short ones free running slots (C6). A long one moves `shift` of the smaller of
the two weights from slots to KV, a short one from KV to slots, those between in proportion:

    score for a request = score + lean * toward_kv          toward_kv = (s - TYPICAL) / (s + TYPICAL), -1..1
    lean                = shift * min(w_kv, w_running) / (sum of weights) * (free KV - free slots) * queue penalty

where s is the share of the replica's KV cache that the request's prompt and answer take. A request of TYPICAL
share sees the score as it is. `score` and `lean` are of the sample; a decision adds one product.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from extproc.core.sample import Sample

#: Share of a replica's KV cache that a request of usual length takes: 100 such requests fill it. An engine sized
#: for its load runs some ten to some hundred at once.
TYPICAL: Final = 0.01
#: Waiting requests from which a queue is more than a passing one (C2).
_QUEUE_STARTS = 2
#: Least the queue penalty may leave of a score (C2).
_QUEUE_FLOOR = 0.2
#: Fewest samples a forecast is made from (C4).
_FORECAST_SAMPLES = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class Weights:
    """How the parts count, and over what they are smoothed. `horizon` in seconds, `shift` 0..1."""

    kv: float = 0.4
    running: float = 0.3
    waiting: float = 0.3
    window: int = 5
    horizon: float = 3.0
    shift: float = 0.5

    @property
    def moved(self) -> float:
        """Share of all weight that a request's length can move between free KV and free slots, 0..0.5."""
        whole = self.kv + self.running + self.waiting
        return self.shift * min(self.kv, self.running) / whole if whole else 0.0


class Parts(NamedTuple):
    """What the last sample gave each part, 0..1; None where the engine does not tell. `penalty` is the queue's."""

    kv: float | None = None
    running: float | None = None
    waiting: float | None = None
    penalty: float = 1.0


class Headroom:
    """The score of one replica, fed with its samples."""

    __slots__ = (
        "_alike",
        "_kv",
        "_leans",
        "_scores",
        "_settled",
        "_told",
        "_weights",
        "lean",
        "parts",
        "score",
    )

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._scores: deque[float] = deque(maxlen=weights.window)
        self._leans: deque[float] = deque(maxlen=weights.window)
        points = max(weights.window, _FORECAST_SAMPLES)
        self._kv: deque[tuple[float, float]] = deque(maxlen=points)
        self._told: tuple[
            float | None, ...
        ] = ()  # what the last sample told, and how many alike came behind it
        self._alike = 0
        self._settled = points + weights.window  # so many that neither the points nor the scores hold another
        #: The smoothed score 0..1; None while no sample told anything.
        self.score: float | None = None
        #: How much more room there is for long requests than for short ones, -0.5..0.5, smoothed.
        self.lean = 0.0
        self.parts = Parts()

    def update(self, sample: Sample, max_running: int) -> None:
        """Take one more sample in. `max_running` is used where the sample does not know its own."""
        kv, most = sample.kv_used, sample.max_running or max_running
        if kv is not None:
            self._kv.append((sample.at, kv))
        told = kv, sample.running, sample.waiting, most
        self._alike = self._alike + 1 if told == self._told else 0
        self._told = told
        if self._alike <= self._settled:
            self._read(kv, sample.running, sample.waiting, most)

    def _read(self, kv: float | None, running: float | None, waiting: float | None, most: int) -> None:
        weights = self._weights
        free_kv = None if kv is None else _clamp(1 - forecast(self._kv, kv, weights.horizon))
        free_slots = None if running is None else _clamp(1 - running / most)
        no_queue = None if waiting is None else _clamp(1 - waiting / most)
        penalty = queue_penalty(waiting)
        self.parts = Parts(free_kv, free_slots, no_queue, penalty)
        weight = score = 0.0
        weighed = (weights.kv, free_kv), (weights.running, free_slots), (weights.waiting, no_queue)
        for counts, part in weighed:
            if part is not None:
                weight += counts
                score += counts * part
        if not weight:
            return
        self._scores.append(score / weight * penalty)
        self.score = sum(self._scores) / len(self._scores)
        both = free_kv is not None and free_slots is not None
        self._leans.append(lean(weights, free_kv or 0.0, free_slots or 0.0, penalty) if both else 0.0)
        self.lean = sum(self._leans) / len(self._leans)


def lean(weights: Weights, free_kv: float, free_slots: float, penalty: float = 1.0) -> float:
    """What length moves a score by at most: above 0 where long requests find more room than short ones."""
    return weights.moved * (free_kv - free_slots) * penalty


def toward_kv(tokens: float, kv_tokens: float) -> float:
    """-1 for a request that takes nothing of a KV cache, 0 for one that takes TYPICAL of it, towards 1 beyond."""
    share = tokens / kv_tokens
    return (share - TYPICAL) / (share + TYPICAL)


def leaned(score: float, lean: float, tokens: float, kv_tokens: float) -> float:
    """A score 0..1 as it is for a request of so many tokens, by how much more there is for long ones (`lean`)."""
    return min(max(score + lean * toward_kv(tokens, kv_tokens), 0.0), 1.0)


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
    return value if 0.0 <= value <= 1.0 else 1.0 if value > 1.0 else 0.0
