"""How each exchange ended, joined from its own stream and Envoy's access log, then learned from, counted and kept.

Trailers tell at once. Of what they don't tell, a client that left, an answer without usage, the access log does a
little later; an exchange waits for that, and is learned from as unknown when nothing comes. An entry may also come
first, as it travels on a stream of its own; it is kept for as long. Entries are joined by request id: where two
exchanges have one id at a time, neither is told anything, since the log can't tell them apart.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from extproc.core.ending import GATEWAY, UNKNOWN, Ending
from extproc.core.exchange import Exchange
from extproc.core.outcome import Ended
from extproc.core.steering import Steering
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.records import Records
from extproc.io.tracing import Tracer

#: Seconds an exchange waits for the access log: Envoy sends it every 0.2 s, and once more when that fails.
_PATIENCE: Final = 2.0
#: Most exchanges that wait, entries that came first, and ids that are over; the oldest go first, many at once.
_MOST: Final = 20_000
_AT_ONCE: Final = 64

#: What is kept of an id that is not closed.
_OPEN: Final = (0.0, False)


class Endings:
    """Every exchange that is over passes here once.

    Args:
        steering: learns from them.
        metrics, records: count and keep them.
        logged: whether the access log comes, so that waiting for it makes sense.
    """

    def __init__(
        self, steering: Steering, metrics: OutcomeMetrics, records: Records, *, logged: bool
    ) -> None:
        self._steering = steering
        self._metrics = metrics
        self._records = records
        self._logged = logged
        #: By request id, oldest first: exchanges over of which the log is to tell ...
        self._waiting: dict[str, tuple[Exchange, float]] = {}
        #: ... entries of which no exchange is over yet ...
        self._early: dict[str, tuple[Ended, float]] = {}
        #: ... and ids whose entries tell nothing: all was told, or it can't be told whose they are; since when, and
        #: whether breakers learned of it too.
        self._closed: dict[str, tuple[float, bool]] = {}
        #: Who makes spans of them, where that is asked for.
        self.tracer: Tracer | None = None

    def __len__(self) -> int:
        """Exchanges that wait for the access log."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """Entries and ids kept beside them."""
        return len(self._early) + len(self._closed)

    def ended(self, exchange: Exchange, now: float) -> None:
        """The stream of an exchange is over."""
        decision, ending = exchange.decision, exchange.ending
        if decision is None or decision.replica is None:
            self._refused(exchange, now)
            return
        if self._logged:
            if ending is None or ending.by == UNKNOWN:
                self._wait(exchange, now)
                return
            self._known(exchange.request_id, ending, decision.at, now)
        self._done(exchange, now)

    def _known(self, request_id: str, ending: Ending, picked: float, now: float) -> None:
        """Its stream told all. If even that, its breaker learns it here, as no entry may come."""
        learns = ending.told and request_id not in self._early
        self._close(request_id, now, learned=learns)
        if learns and ending.status is not None:
            self._steering.succeeded(ending.served, request_id, ending.status, picked, now)

    def _refused(self, exchange: Exchange, now: float) -> None:
        """It was never sent anywhere; its entry, which comes all the same, tells nothing new."""
        if self._logged and exchange.request_id:
            self._close(exchange.request_id, now)
        if exchange.decision is not None:
            exchange.ending = exchange.ending or Ending()
            exchange.ending.by = GATEWAY
            self._done(exchange, now)

    def asks(self, request_id: str) -> bool:
        """Whether an entry of the access log may tell anything of this request that is not known."""
        return request_id not in self._closed

    def heard(self, entries: Iterable[Ended], now: float) -> None:
        """Entries of the access log came: breakers learn of all of them, and exchanges of theirs."""
        closed, waiting, answered, logged = self._closed, self._waiting, self._steering.answered, self.logged
        for entry in entries:
            name = entry.request_id
            if not (closed.get(name, _OPEN)[1] and entry.well):  # else breakers learned that it ended well
                waits = waiting.get(name)
                decision = waits[0].decision if waits is not None else None
                answered(entry, now, entry.arrived(now) if decision is None else decision.at)
            logged(entry, now)

    def logged(self, entry: Ended, now: float) -> None:
        """An entry of the access log; those of other gateways' requests are kept a little and forgotten."""
        request_id = entry.request_id
        exchange, ended = self._waiting.pop(request_id, (None, 0.0))
        if exchange is not None:
            self._closed[request_id] = now, False  # a second entry of it tells nothing
            _bound(self._closed)
            self._join(exchange, entry, now, ended)
        elif request_id in self._closed or request_id in self._early:
            self._metrics.log_entry("known")
        else:
            self._early[request_id] = entry, now
            _bound(self._early)

    def sweep(self, now: float) -> None:
        """Give up on entries that don't come. Call it every second or so."""
        for request_id in _late(self._waiting, 1, now):
            exchange, ended = self._waiting.pop(request_id)
            self._metrics.log_entry("missing")
            self._done(exchange, now, ended)
        for request_id in _late(self._early, 1, now):
            del self._early[request_id]
            self._metrics.log_entry("unclaimed")
        for request_id in _late(self._closed, 0, now):
            del self._closed[request_id]

    def _wait(self, exchange: Exchange, now: float) -> None:
        request_id = exchange.request_id
        early, _ = self._early.pop(request_id, (None, 0.0))
        if early is not None:
            self._close(request_id, now)
            self._join(exchange, early, now, now)
            return
        if request_id in self._waiting or request_id in self._closed:
            self._close(request_id, now)
            self._metrics.log_entry("ambiguous")
            self._done(exchange, now)
            return
        self._waiting[request_id] = exchange, now
        if len(self._waiting) > _MOST:
            for oldest in _oldest(self._waiting):
                self._done(self._waiting.pop(oldest)[0], now)

    def _close(self, request_id: str, now: float, *, learned: bool = False) -> None:
        """Entries of this id tell nothing from now on, nor to another exchange that waits for one."""
        if request_id in self._waiting:
            self._metrics.log_entry("ambiguous")
            self._done(self._waiting.pop(request_id)[0], now)
        if request_id in self._early:
            self._metrics.log_entry("known")
            del self._early[request_id]
        self._closed[request_id] = now, learned
        _bound(self._closed)

    def _join(self, exchange: Exchange, entry: Ended, now: float, ended: float) -> None:
        self._metrics.log_entry("joined")
        exchange.ending = exchange.ending or Ending()
        exchange.ending.logged(entry)
        decision = exchange.decision
        if decision is not None and decision.order[0].address != exchange.ending.served:
            self._steering.strayed(decision, exchange.ending)
        self._done(exchange, now, ended)

    def _done(self, exchange: Exchange, now: float, ended: float | None = None) -> None:
        """All is known of an exchange that was over at `ended`, or now."""
        decision, ending = exchange.decision, exchange.ending
        assert decision is not None
        if ending is None:
            ending = exchange.ending = Ending()
        ending.over = True
        if ending.is_filters:
            ending.unguessed(decision.prompt)
        if ending.attempts != 1 and ending.retried:  # of nearly all there was one
            self._steering.retried(decision, ending, exchange.request_id, now)
        self._steering.learn(decision, ending, now)
        self._metrics.ended(exchange)
        self._records.ended(exchange)
        if self.tracer is not None:
            self.tracer.ended(exchange, now if ended is None else ended)


def _bound(kept: dict[str, Any]) -> None:
    if len(kept) > _MOST:
        for request_id in _oldest(kept):
            del kept[request_id]


def _oldest(kept: Mapping[str, Any]) -> list[str]:
    """The ids that go where there are too many: few enough to be dealt with in some milliseconds."""
    return list(islice(kept, _AT_ONCE))


def _late(kept: Mapping[str, tuple[Any, Any]], place: int, now: float) -> list[str]:
    """The ids of what came first, as far as that is too long ago; when it came has this place in it.

    They are found in one go, as to ask a dict for its first key takes the longer the more were taken out before it.
    """
    late = []
    for request_id, entry in kept.items():
        if now - entry[place] <= _PATIENCE:
            break
        late.append(request_id)
    return late
