"""The life of a replica as a state machine: every transition is in the table below, and nowhere else.

    event          who causes it     warming   healthy   backoff   quiescing   re-registering
    -------------  ----------------  --------  --------  --------  ----------  ---------------
    warm           clock             healthy   -         -         -           -
    sample         metrics, report   -         -         -         -           warming
    missed         metrics           backoff   backoff   -         -           -
    tripped        breaker           backoff   backoff   -         -           -
    back_off       operator, itself  backoff   backoff   -         -           -
    recovered      metrics, breaker  -         -         (1)       -           -
    drain          operator, itself  quiescing quiescing quiescing -           quiescing
                   discovery
    undrain        operator, itself  -         -         -         (1)         -
    restarted      metrics, report   re-reg.   re-reg.   re-reg.   quiescing   -
    left           discovery, clock  gone      gone      gone      gone        gone

    (1) healthy if the incarnation's warm-up is over, else warming.   -  no change.

`gone` has no way out: what comes back at an address is a new replica. Only `left` leads there, so a drained
replica stays visible until discovery drops it or its deadline passes.

What a state may take: warming a growing share, healthy everything, backoff and quiescing nothing, re-registering
nothing until its engine was heard. If no replica of a pool may take anything, those in backoff serve: an engine
that failed a moment ago is a better answer than none.
"""

import math
from dataclasses import dataclass
from typing import Final

WARMING: Final = "warming"
HEALTHY: Final = "healthy"
BACKOFF: Final = "backoff"
QUIESCING: Final = "quiescing"
#: Who caused a drain that the replica itself asked for.
ITSELF: Final = "replica"
REREGISTERING: Final = "re-registering"
GONE: Final = "gone"
STATES: Final = (WARMING, HEALTHY, BACKOFF, QUIESCING, REREGISTERING, GONE)

WARM: Final = "warm"
SAMPLE: Final = "sample"
MISSED: Final = "missed"
TRIPPED: Final = "tripped"
BACK_OFF: Final = "back_off"
RECOVERED: Final = "recovered"
DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
RESTARTED: Final = "restarted"
LEFT: Final = "left"
EVENTS: Final = (WARM, SAMPLE, MISSED, TRIPPED, BACK_OFF, RECOVERED, DRAIN, UNDRAIN, RESTARTED, LEFT)

_BACK = "back"  # healthy or warming, as the incarnation's age says
_TABLE: Final[dict[tuple[str, str], str]] = {
    (WARMING, WARM): HEALTHY,
    (REREGISTERING, SAMPLE): WARMING,
    (WARMING, MISSED): BACKOFF,
    (HEALTHY, MISSED): BACKOFF,
    (WARMING, TRIPPED): BACKOFF,
    (HEALTHY, TRIPPED): BACKOFF,
    (WARMING, BACK_OFF): BACKOFF,
    (HEALTHY, BACK_OFF): BACKOFF,
    (BACKOFF, RECOVERED): _BACK,
    (WARMING, DRAIN): QUIESCING,
    (HEALTHY, DRAIN): QUIESCING,
    (BACKOFF, DRAIN): QUIESCING,
    (REREGISTERING, DRAIN): QUIESCING,
    (QUIESCING, UNDRAIN): _BACK,
    (WARMING, RESTARTED): REREGISTERING,
    (HEALTHY, RESTARTED): REREGISTERING,
    (BACKOFF, RESTARTED): REREGISTERING,
    **{(state, LEFT): GONE for state in STATES if state != GONE},
}


@dataclass(slots=True, frozen=True, kw_only=True)
class WarmUp:
    """Slow start (L1), seconds from an incarnation's start: nothing until `hold`, half until `full`.

    Between the two the share grows from half to all in a straight line, so that nothing jumps at `full`.
    """

    hold: float = 30.0
    full: float = 60.0

    def share(self, age: float) -> float:
        """Share 0..1 of its score that a replica of this age (seconds) may show."""
        if age < self.hold:
            return 0.0
        if age >= self.full:
            return 1.0
        return 0.5 + 0.5 * (age - self.hold) / (self.full - self.hold)


class Lifecycle:
    """State of one incarnation.

    Args:
        now: seconds, monotonic.
        started: when the engine started, on the same clock; None takes it for warm (a gateway that has just
            started knows nothing bad of replicas that have been serving all along).
    """

    __slots__ = ("_started", "_warm_up", "born", "cause", "deadline", "since", "state", "until")

    def __init__(self, warm_up: WarmUp, now: float, started: float | None = None) -> None:
        self._warm_up = warm_up
        self._started = now - warm_up.full if started is None else started
        #: When the engine started; minus infinity when it is taken for warm.
        self.born = -math.inf if started is None else started
        self.state = self._by_age(now)
        #: When the state began.
        self.since = now
        #: Who or what caused it, a short word.
        self.cause = "discovery"
        #: When a drain's patience ends; None without one.
        self.deadline: float | None = None
        #: Until when a back-off was asked for; None when only recovery ends it.
        self.until: float | None = None

    def apply(self, event: str, cause: str, now: float) -> bool:
        """Let an event happen; True when the state changed. Events the table does not name change nothing."""
        target = _TABLE.get((self.state, event))
        if target is None:
            return False
        self.state = self._by_age(now) if target == _BACK else target
        self.since, self.cause = now, cause
        if event in (UNDRAIN, RECOVERED):
            self.deadline = self.until = None
        return True

    def drain(self, cause: str, now: float, deadline: float | None = None) -> bool:
        """Take no new work; `deadline` is the time after which `tick` calls it gone."""
        changed = self.apply(DRAIN, cause, now)
        if self.state == QUIESCING and deadline is not None:
            self.deadline = deadline
        return changed

    def back_off(self, cause: str, now: float, seconds: float) -> bool:
        """Take no new work for `seconds`, as an operator or the replica itself asked."""
        changed = self.apply(BACK_OFF, cause, now)
        if self.state == BACKOFF:
            self.until = now + seconds
        return changed

    def tick(self, now: float) -> bool:
        """Let time pass: warm-ups end, asked-for back-offs end, drains run out. True when the state changed."""
        if self.state == WARMING and self._warm_up.share(now - self._started) >= 1:
            return self.apply(WARM, "clock", now)
        if self.state == BACKOFF and self.until is not None and now >= self.until:
            return self.apply(RECOVERED, "clock", now)
        if self.state == QUIESCING and self.deadline is not None and now >= self.deadline:
            return self.apply(LEFT, "deadline", now)
        return False

    def share(self, now: float) -> float:
        """Share 0..1 of new work it may take now."""
        if self.state == HEALTHY:
            return 1.0
        return self._warm_up.share(now - self._started) if self.state == WARMING else 0.0

    def _by_age(self, now: float) -> str:
        return HEALTHY if self._warm_up.share(now - self._started) >= 1 else WARMING
