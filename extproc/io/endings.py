"""How each exchange ended, joined from its own stream and Envoy's access log, then learned from, counted and kept.

Trailers tell at once. Of what they don't tell, a client that left, an answer without usage, the access log does a
little later; an exchange waits for that, and is learned from as unknown when nothing comes.
"""

from typing import Final

from extproc.core.ending import GATEWAY, UNKNOWN, Ending
from extproc.core.exchange import Exchange
from extproc.core.outcome import Ended
from extproc.core.steering import Steering
from extproc.io.outcome_metrics import OutcomeMetrics
from extproc.io.records import Records

#: Seconds an exchange waits for the access log: Envoy sends it every 0.2 s, and once more when that fails.
_PATIENCE: Final = 2.0
#: Most exchanges that wait; the oldest goes first.
_MOST: Final = 20_000


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
        self._waiting: dict[str, tuple[Exchange, float]] = {}

    def __len__(self) -> int:
        """Exchanges that wait for the access log."""
        return len(self._waiting)

    def ended(self, exchange: Exchange, now: float) -> None:
        """The stream of an exchange is over."""
        decision, ending = exchange.decision, exchange.ending
        if decision is None:
            return
        if decision.replica is None:
            exchange.ending = ending or Ending()
            exchange.ending.by = GATEWAY
        elif self._logged and (ending is None or ending.by == UNKNOWN):
            self._wait(exchange, now)
            return
        self._done(exchange, now)

    def logged(self, entry: Ended, now: float) -> None:
        """An entry of the access log; those of other gateways' requests are passed over."""
        exchange, _ = self._waiting.pop(entry.request_id, (None, 0.0))
        if exchange is not None:
            exchange.ending = exchange.ending or Ending()
            exchange.ending.logged(entry)
            self._done(exchange, now)

    def sweep(self, now: float) -> None:
        """Give up on entries that don't come. Call it every second or so."""
        late = [key for key, (_, since) in self._waiting.items() if now - since > _PATIENCE]
        for key in late:
            self._done(self._waiting.pop(key)[0], now)

    def _wait(self, exchange: Exchange, now: float) -> None:
        before = self._waiting.pop(
            exchange.request_id, None
        )  # two with one id: the log can't tell them apart
        self._waiting[exchange.request_id] = exchange, now
        if before is None and len(self._waiting) > _MOST:
            before = self._waiting.pop(next(iter(self._waiting)))
        if before is not None:
            self._done(before[0], now)

    def _done(self, exchange: Exchange, now: float) -> None:
        assert exchange.decision is not None
        self._steering.learn(exchange.decision, exchange.ending, now)
        self._metrics.ended(exchange)
        self._records.ended(exchange)
