"""The total budget follows what the pool can bear (A5).

Every `every` seconds the mean pressure since the last look decides: above `tighten` the total goes down, below
`relax` up, if it was a limit to anybody; between them it stays (hysteresis). It moves by a bounded step, and never
above the hard cap. When the capacity itself changes by more than a tenth, since replicas came or went, the total goes
along at once: that is no judgement of load. Nor does it wait where prompts queue on half of the
replicas for some looks in a row while the total is above what they bear. Every change has its cause.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from extproc.core.admission.meter import Reading

TIGHTENED: Final = "tightened"
RELAXED: Final = "relaxed"
FLEET: Final = "fleet"
CAPPED: Final = "capped"
QUEUEING: Final = "queueing"

#: Changes that are kept to be looked at.
_KEPT: Final = 100
#: Least share of the hard cap that a total becomes by tightening.
_LEAST: Final = 0.005
#: Causes for which the total changes at once, and the least seconds between two such changes of a pool.
AT_ONCE: Final = (FLEET, QUEUEING)
AGAIN: Final = 2.0
#: Looks in a row at which prompts queue on half of the replicas, before the total follows at once.
_CROWDED: Final = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class AdaptSettings:
    """`every` in seconds; `tighten` and `relax` in pressure 0..1; `down` and `up` are factors of one step.

    `cap`: hard cap in tokens, 0 for what the KV caches may hold.
    """

    every: float = 20.0
    tighten: float = 0.8
    relax: float = 0.5
    down: float = 0.85
    up: float = 1.15
    cap: float = 0.0


class Change(NamedTuple):
    """One change of the total, in tokens, at `at` seconds, with its cause and the mean pressure that led to it."""

    at: float
    before: float
    after: float
    cause: str
    pressure: float


class Controller:
    """One pool's.

    Attributes:
        changes: the last ones, oldest first.
    """

    def __init__(self, settings: AdaptSettings, now: float) -> None:
        self.settings = settings
        self.changes: deque[Change] = deque(maxlen=_KEPT)
        self._since = now
        self._sum = 0.0
        self._looks = 0
        self._limited = False
        self._crowded = 0

    def start(self, reading: Reading) -> float:
        """The total to begin with."""
        return min(reading.capacity, self.cap(reading))

    def cap(self, reading: Reading) -> float:
        """The hard cap, tokens."""
        return min(self.settings.cap or reading.limit, reading.limit)

    def look(self, total: float, basis: float, reading: Reading, limited: bool, now: float) -> Change | None:
        """Take a reading in; the change it is time for, or None.

        Args:
            total: as it is, tokens.
            basis: `reading.basis` as it was when the total was found.
            reading: of the pool now.
            limited: whether the total kept anybody waiting or out since the last look.
            now: seconds.
        """
        self._sum += reading.pressure
        self._looks += 1
        self._limited = self._limited or limited
        self._crowded = self._crowded + 1 if reading.queueing >= 0.5 else 0
        return (
            self._fleet(total, basis, reading, now)
            or self._overrun(total, reading, now)
            or self._due(total, reading, now)
        )

    def least(self, change: Change) -> float:
        """Least seconds between a change and the one before, whichever gateway made that."""
        return AGAIN if change.cause in AT_ONCE else self.settings.every * 0.9

    def made(self, change: Change) -> None:
        """A change holds now: keep it."""
        self.changes.append(change)

    def _fleet(self, total: float, basis: float, reading: Reading, now: float) -> Change | None:
        """Replicas came, left, or turned out to be larger or smaller."""
        if not reading.basis or not basis or abs(reading.basis / basis - 1.0) <= 0.1:
            return None
        return self._changed(total, min(total * reading.basis / basis, self.cap(reading)), FLEET, now)

    def _overrun(self, total: float, reading: Reading, now: float) -> Change | None:
        """Prompts queue on half of the replicas, look after look, and the total is far above what they bear."""
        if self._crowded < _CROWDED or total <= reading.capacity * 1.1:
            return None
        self._crowded = 0
        return self._changed(total, max(reading.capacity, self.cap(reading) * _LEAST), QUEUEING, now)

    def _due(self, total: float, reading: Reading, now: float) -> Change | None:
        if now - self._since < self.settings.every or not reading.replicas:
            return None
        pressure, limited = self._sum / self._looks, self._limited
        settings, cap = self.settings, self.cap(reading)
        after, cause = total, ""
        if pressure > settings.tighten:
            after, cause = max(min(total * settings.down, reading.capacity), cap * _LEAST), TIGHTENED
        elif pressure < settings.relax and limited:
            after, cause = total * settings.up, RELAXED
        if after > cap:
            after, cause = cap, CAPPED
        change = self._changed(total, after, cause, now)
        self._since, self._sum, self._looks, self._limited = now, 0.0, 0, False
        return change

    def _changed(self, before: float, after: float, cause: str, now: float) -> Change | None:
        if abs(after - before) < 1.0:
            return None
        return Change(now, before, after, cause, self._sum / self._looks)
