"""A breaker for one replica: it opens when requests fail, and lets one at a time try whether it is well again.

    closed     enough failures          -> open, for a first short time; for twice the last one when it was
                                           open within the last `window`, up to the longest
    open       its time is over         -> half open
    half open  a probe succeeds         -> closed
               a probe fails            -> open, for twice as long, up to the longest
               it is cancelled, or has
               no verdict for a while   -> half open; its place is free again, and its verdict counts when it comes
    half open  an answer ends well that
               was picked since it may
               try again                -> closed, whoever's it was

One probe is let through at a time, so the next goes when the one before was decided, cancelled, or is silent for
`patience`. Verdicts come when an answer has ended (Envoy's access log); with answers of minutes the first one to end
decides, or where first tokens are told the first of them. That headers came decides nothing: an engine whose
worker has died still sends them with 200.

A replica that fails half of its requests passes half of its probes. What counts against it is that it opens again
soon after: it is away for longer each time, until it was well for a whole `window`.

Failures are what says the engine is broken: no connection, a reset, a 5xx, a time-out, or a try
that Envoy repeated elsewhere, of which nothing more is told. What says that the
request was wrong (4xx) or that the engine is full (429, or 503 with Retry-After) opens nothing: it is pushback,
and lowers the replica's headroom for as long as it asks (`pushed_until`).

News of a try that Envoy repeated may be as late as the other replica's answer is long. So it counts at its own time
(`tried`), as if it had been told then: the breaker opens for the time that is left of the one it would have been open
for. Where nothing is left it stays closed, and remembers: a replica that goes on failing has it opened for longer and
longer, until that is longer than the news are late. At the longest of these times it is half open at least, unless an
answer that was picked later is known to be good. Such an answer ends a row of failures that were picked before it,
even where it was told before them; among the share of failures they count.

A success that is told ends every row, however long ago it was picked: failures are told sooner than long answers, so
that among those picked last there are always too many.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"

SUCCESS: Final = "success"
FAILURE: Final = "failure"
PUSHBACK: Final = "pushback"
NEUTRAL: Final = "neutral"


#: Probes whose late verdict is still listened to; one goes every `patience`, so these are a minute's.
_MOST_PROBES = 32


@dataclass(slots=True, frozen=True, kw_only=True)
class BreakerSettings:
    """When it opens and for how long. Times in seconds.

    The defaults find a replica that fails everything at its third request in a row, and one that fails half of
    them within some ten. One that fails one in five is out for a second now and then, and its fallbacks carry it.
    Other gateways open at 3 (two of them) or 5 in a row and stay open for 5 to 60 s; so long is not needed where one
    probe at a time tries.
    """

    #: Failures in a row that open it.
    row: int = 3
    #: Share of failures within `window` that opens it, once there were `least` requests. Of ten requests to a replica
    #: that fails half, 4 fail with a chance of 83 %, 5 with 62 %; to one that fails a fifth, 12 % and 3 %.
    share: float = 0.4
    window: float = 30.0
    least: int = 10
    #: First and longest time open; each failed probe doubles it.
    first: float = 1.0
    longest: float = 8.0
    #: Pushback counts for at least this long, for as long as Retry-After says, and at most for `most_pushback`.
    pushback: float = 1.0
    most_pushback: float = 15.0
    #: How long a probe's verdict is waited for before the next may try; verdicts come in batches.
    patience: float = 2.0
    #: Outcomes remembered within the window.
    memory: int = 200


def verdict(status: int | None, retry_after: float | None = None) -> str:
    """What a response's status says of the replica; None stands for a reset, no connection or a time-out."""
    if status is None:
        return FAILURE
    if status == 429 or (status == 503 and retry_after is not None):
        return PUSHBACK
    if status >= 500:
        return NEUTRAL if status == 501 else FAILURE  # 501: it can't do that, and says so in good health
    return SUCCESS if status < 400 else NEUTRAL


class Breaker:
    """State of one incarnation's breaker."""

    __slots__ = (
        "_closed_at",
        "_in_row",
        "_open_for",
        "_outcomes",
        "_place",
        "_probes",
        "_settings",
        "_until",
        "pushed_until",
        "state",
        "wary_until",
        "well_from",
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=settings.memory)  # (when, failed)
        self._in_row = 0
        self._open_for = settings.first
        self._until = 0.0
        self._closed_at: float | None = None  # when it last closed
        self._place: str | None = None  # the probe that is waited for
        self._probes: dict[
            str, float
        ] = {}  # all without a verdict since it is half open, and when they were sent
        self.state = CLOSED
        #: Until when the engine asked to be left alone; 0 when it did not.
        self.pushed_until = 0.0
        #: Until when another gateway's word makes one failure enough to open it.
        self.wary_until = 0.0
        #: When the newest request was picked of which it is known that it was answered well.
        self.well_from = -math.inf

    def allows(self, now: float) -> bool:
        """Whether a new request may go there. When half open, only while no probe is under way."""
        if self.state == CLOSED:
            return True
        if self.state == OPEN and now >= self._until:
            self.state, self._place = HALF_OPEN, None
            self._probes.clear()
        return self.state == HALF_OPEN and self._place is None

    def rest(self, now: float) -> float:
        """Seconds until it lets one try; 0 when it is closed or lets one try already."""
        return max(self._until - now, 0.0) if self.state == OPEN else 0.0

    def warn(self, until: float, now: float, said: float = math.inf) -> None:
        """Another gateway found the engine broken, or (`until` in the past) well again; it said so at `said`.

        Its word opens nothing, and counts for no longer than an own breaker would stay open. It counts for nothing
        where a request that was picked since is known to have been answered well.
        """
        if until <= now or self.well_from <= said:
            self.wary_until = min(until, now + self._settings.longest)

    def sent(self, key: str, now: float) -> None:
        """An exchange was sent there; when half open it is the probe."""
        if self.state == HALF_OPEN and self._place is None:
            self._place = key
            self._probes[key] = now
            if len(self._probes) > _MOST_PROBES:
                del self._probes[next(iter(self._probes))]

    def went_well(self, status: int | None, picked: float, now: float) -> bool:
        """Whether that is all that `ended` makes of an answer with this status: it is noted, and changed nothing.

        So it is with nearly every request, picked at `picked`: a success, while closed.
        """
        if status is None or status >= 400 or self.state != CLOSED:
            return False
        if picked > self.well_from:
            self.well_from = picked
        self._outcomes.append((now, False))
        self._in_row = 0
        return True

    def ended(
        self, key: str, said: str, now: float, retry_after: float | None = None, picked: float = -math.inf
    ) -> bool:
        """An exchange ended with a verdict; True when the breaker opened or closed.

        Those that were under way before it opened tell nothing new while it is open.

        Args:
            picked: when the replica was chosen for it; -inf for unknown.
        """
        if said == SUCCESS:
            self.well_from = max(self.well_from, picked)
        if said == PUSHBACK:
            wait = max(
                self._settings.pushback, retry_after or 0.0
            )  # at 0 a full engine is not asked at once either
            self.pushed_until = max(self.pushed_until, now + min(wait, self._settings.most_pushback))
        if self.state == HALF_OPEN:
            counts = self._probes.pop(key, None) is not None or (said == SUCCESS and picked >= self._until)
            return counts and self._probe_ended(key, said, now, now)
        if self.state == OPEN or said not in (SUCCESS, FAILURE):
            return False
        self._outcomes.append((now, said == FAILURE))
        self._in_row = self._in_row + 1 if said == FAILURE else 0
        if said == FAILURE and self._is_broken(now):  # no success breaks it, so it need not be asked
            self._broke(now, now)
            return True
        return False

    def tried(self, key: str, picked: float, now: float) -> bool:
        """An exchange that was picked at `picked` failed here, and went on elsewhere; True when this opened it.

        The failure counts as of then. Those from before the time that the breaker was open tell nothing new.
        """
        if self.state == HALF_OPEN:
            return self._probes.pop(key, None) is not None and self._probe_ended(key, FAILURE, picked, now)
        if self.state == OPEN or picked < self._until:
            return False
        if picked >= now - self._settings.window:
            self._outcomes.append((picked, True))
        if picked >= self.well_from:
            self._in_row += 1
        if self._is_broken(now):
            self._broke(picked, now)
        return self.state != CLOSED

    def began(self, key: str, picked: float, now: float) -> bool:
        """The first token came of an exchange that was picked at `picked`; True when the breaker closed."""
        self.well_from = max(self.well_from, picked)
        return (
            self.state == HALF_OPEN
            and self._probes.pop(key, None) is not None
            and self._probe_ended(key, SUCCESS, now, now)
        )

    def cancelled(self, key: str) -> None:
        """An exchange was given up by its client: a probe's place is free again, and nothing is learned."""
        self._probes.pop(key, None)
        if key == self._place:
            self._place = None

    def tick(self, now: float) -> None:
        """A probe without a verdict for `patience` frees its place: its client left, or its answer is long.

        An engine that fails fails soon; one that streams for minutes is not kept out meanwhile.
        """
        if self._place is not None and now - self._probes.get(self._place, now) > self._settings.patience:
            self._place = None

    def _probe_ended(self, key: str, said: str, at: float, now: float) -> bool:
        """A probe's verdict, which counts as of `at`."""
        if key == self._place:
            self._place = None
        if said == FAILURE:
            self._open_for = self._longer()
            self._open(at, now)
        else:  # also pushback and a client's own error: the engine answered in good order
            self.state, self._closed_at, self.wary_until = CLOSED, now, 0.0
        return True

    def _broke(self, at: float, now: float) -> None:
        """Open from closed, as of `at`: for longer than the last time when that is not long ago."""
        again = self._closed_at is not None and at - self._closed_at < self._settings.window
        self._open_for = self._longer() if again else self._settings.first
        self._open(at, now)

    def _longer(self) -> float:
        return min(self._open_for * 2, self._settings.longest)

    def _open(self, at: float, now: float) -> None:
        """Be as if it had opened at `at`."""
        self._until = at + self._open_for
        self._in_row = 0
        self._outcomes.clear()
        if self._until > now:
            self.state = OPEN
        elif self.state == CLOSED:
            self._closed_at = self._until
            if self._open_for >= self._settings.longest and self.well_from < self._until:
                self.state, self._place = HALF_OPEN, None
                self._probes.clear()

    def _is_broken(self, now: float) -> bool:
        if self._in_row >= (1 if now < self.wary_until else self._settings.row):
            return True
        while self._outcomes and self._outcomes[0][0] < now - self._settings.window:
            self._outcomes.popleft()
        failed = sum(bad for _, bad in self._outcomes)
        count = len(self._outcomes)
        return count >= self._settings.least and failed >= self._settings.share * count
