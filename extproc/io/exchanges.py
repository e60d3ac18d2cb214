"""Every exchange of this gateway: its session is made here, and all who count or keep it are told what came of it."""

import traceback
from collections.abc import Callable
from pathlib import Path

import structlog

from extproc.core import outcome
from extproc.core.exchange import Exchange
from extproc.core.opening import LESSER
from extproc.core.steering import Steering
from extproc.io import clock
from extproc.io.endings import Endings
from extproc.io.metrics import Metrics
from extproc.io.records import Records
from extproc.io.sessions import BodyReader, ExchangeSession
from extproc.io.waiting_metrics import WaitingMetrics
from extproc.pb import ext_proc_pb2 as pb

_log = structlog.get_logger("kvsteer")


class Exchanges:
    """Watches the sessions that it makes (`sessions.Watcher`).

    Args:
        steering: one for all of them.
        metrics, waits, records, endings: who is told.
        reader: reads large bodies; None where that is done at once.
        in_log: whether each request has a line in the log.
        shared: how the shared state is, for that line.

    Attributes:
        open: streams that have not ended.
    """

    def __init__(
        self,
        steering: Steering,
        metrics: Metrics,
        waits: WaitingMetrics,
        records: Records,
        endings: Endings,
        *,
        reader: BodyReader | None,
        in_log: bool,
        shared: Callable[[], str],
    ) -> None:
        self._steering = steering
        self._metrics = metrics
        self._waits = waits
        self._records = records
        self._endings = endings
        self._reader = reader
        self._in_log = in_log
        self._shared = shared
        self.open = 0
        self._told: set[int] = set()

    def session(self) -> ExchangeSession:
        """The session of a new stream."""
        self.open += 1
        return ExchangeSession(self._steering, self, clock.monotonic, self._reader)

    def settled(self, exchange: Exchange, seconds: float) -> None:
        """Tell everybody who counts or keeps decisions."""
        self._metrics.settled(exchange, seconds)
        self._records.settled(exchange, seconds)
        if (mode := exchange.opening.mode) in LESSER and mode not in self._told:
            self._told.add(mode)
            _log.warning("body mode", mode=pb.ProcessingMode.BodySendMode.Name(mode), means=LESSER[mode])
        if exchange.waited:
            self._waits.bound(exchange.waited, exchange.request_id)
        if self._in_log:
            self._tell(exchange, seconds)

    def _tell(self, exchange: Exchange, seconds: float) -> None:
        decision = exchange.decision
        _log.info(
            "request",
            request_id=exchange.request_id,
            outcome=exchange.outcome,
            replica=decision.replica.address if decision and decision.replica else None,
            seconds=round(seconds, 6),
            shared=self._shared(),
        )

    def failed(self, exchange: Exchange, error: Exception) -> None:
        """The gateway itself failed on an exchange: told and counted, with no word of the request."""
        self._metrics.internal_errors.inc()
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
        _log.error("exchange failed", error=type(error).__name__, where=where)

    def ended(self, exchange: Exchange) -> None:
        """A stream is over."""
        self.open -= 1
        self._endings.ended(exchange, clock.monotonic())

    def logged(self, data: bytes) -> None:
        """A message of Envoy's access log came."""
        self._endings.heard(outcome.read(data, self._endings.asks), clock.monotonic())
