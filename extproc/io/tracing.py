"""Spans by OTLP over HTTP: one for each decided exchange, with the decision's reason and how it ended.

An exporter of our own: OTLP's JSON form is a page of text (`otlp.py`), the HTTP client is there anyway, and
OpenTelemetry's SDK would bring ten packages and a thread into the gateway. What is made for a request is one tuple;
text is made when a batch is sent, some spans at a time so that requests have their turn between them.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import aiohttp
import orjson
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.exchange import Exchange
from extproc.core.tracing import Traces
from extproc.io import clock, otlp
from extproc.settings.tracing import TracingSettings

_log = structlog.get_logger("kvsteer")

#: Most spans in one message to the collector, and those that are written before requests have their turn: 0.3 ms.
_BATCH: Final = 512
_PIECE: Final = 32
#: Bytes of a collector's answer that are read: it has two fields.
_ANSWER: Final = 16_384
#: What a failed call means, by its error; the first that fits.
_CAUSES: Final = (
    (TimeoutError, "it does not answer within tracing.timeout"),
    (aiohttp.ClientConnectorCertificateError, "its certificate can't be verified"),
    (aiohttp.ClientSSLError, "what answers there speaks no TLS; is it http:// in tracing.endpoint?"),
    (aiohttp.ClientConnectorDNSError, "there is no such name; check tracing.endpoint"),
    (aiohttp.ClientConnectorError, "it can't be reached, or nobody listens there; check tracing.endpoint"),
)
_HEADERS: Final = {"content-type": "application/json"}


def tracer_of(settings: TracingSettings, gateway_id: str, registry: CollectorRegistry) -> "Tracer | None":
    """A gateway's tracer; None where no endpoint is set."""
    if not settings.endpoint:
        return None
    return Tracer(settings, gateway_id, registry, random.Random())  # noqa: S311 - ids, which guard nothing


class Tracer(Collector):
    """Takes exchanges that are over and sends their spans. What can't be sent is dropped and counted.

    Args:
        settings: with an endpoint.
        gateway_id: told as `service.instance.id`.
        registry: where drops are counted.
        draw: draws the ids and the requests of `share`.

    Attributes:
        traces: says which requests have a span.
        counts: spans by what became of them.
    """

    def __init__(
        self, settings: TracingSettings, gateway_id: str, registry: CollectorRegistry, draw: random.Random
    ) -> None:
        self._settings = settings
        self._head = otlp.head_of(gateway_id)
        self.traces = Traces(settings.share, draw)
        self._queue: deque[otlp.Kept] = deque()
        self._full = asyncio.Event()
        self._failing = False
        self.counts = {"sent": 0, "dropped": 0, "failed": 0}
        registry.register(self)

    def __len__(self) -> int:
        """Spans that wait."""
        return len(self._queue)

    def ended(self, exchange: Exchange, now: float) -> None:
        """An exchange that was decided is over since `now` (seconds, monotonic). Sends nothing yet."""
        span, decision = exchange.span, exchange.decision
        if decision is not None and decision.replica is None:  # refused: nobody was told of a span
            span = self.traces.begin(exchange.caller or exchange.opening.trace)
        if span is None:
            return
        self._queue.append((span, exchange, now))
        if len(self._queue) == _BATCH:
            self._full.set()
        if len(self._queue) > self._settings.queue:
            self._queue.popleft()
            self.counts["dropped"] += 1

    async def run(self) -> None:
        """Send what waits, soon when it fills a message, until cancelled. Never raises for the collector's sake."""
        async with self.session() as session:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.every):
                        await self._full.wait()
                self._full.clear()
                while self._queue and await self.send(session):
                    pass

    async def flush(self) -> None:
        """Send what is left, within `timeout`; after the task has ended. What is left then is counted as failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout), self.session() as session:
                while self._queue and await self.send(session):
                    pass
        self.counts["failed"] += len(self._queue)
        self._queue.clear()

    def session(self) -> aiohttp.ClientSession:
        """What it sends over: every call within `timeout`, and no cookie is kept."""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def send(self, session: aiohttp.ClientSession) -> bool:
        """Send one batch; True when the collector took any of it. What it did not take is not sent again."""
        batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
        taken, why = 0, "the gateway stopped"
        try:
            taken, why = await self._post(session, await self.message(batch), len(batch))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = cause(error)
        finally:
            self.counts["sent"] += taken
            self.counts["failed"] += len(batch) - taken
        self._tell(why)
        return taken > 0

    async def _post(self, session: aiohttp.ClientSession, body: bytes, spans: int) -> tuple[int, str]:
        """How many spans the collector took, and why not all of them; "" for all."""
        url = self._settings.endpoint
        async with session.post(url, data=body, headers=_HEADERS, allow_redirects=False) as answer:
            if answer.status // 100 != 2:
                return 0, f"it answered {answer.status}"
            rejected = min(_rejected(await answer.content.read(_ANSWER)), spans)
            return spans - rejected, "it rejected some of them" if rejected else ""

    async def message(self, batch: list[otlp.Kept]) -> bytes:
        """An ExportTraceServiceRequest as JSON; others have their turn while it is written."""
        pieces, offset = [], clock.wall() - clock.monotonic()
        for start in range(0, len(batch), _PIECE):
            pieces.append(otlp.spans(batch[start : start + _PIECE], offset))
            await asyncio.sleep(0)
        return self._head + b",".join(pieces) + otlp.TAIL

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        family = CounterMetricFamily("kvsteer_spans", "Spans by what became of them.", labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        yield family

    def _tell(self, why: str) -> None:
        if bool(why) != self._failing:
            self._failing = bool(why)
            if why:
                _log.warning("traces are not taken", endpoint=self._settings.endpoint, why=why)
            else:
                _log.info("traces are taken again", endpoint=self._settings.endpoint)


def cause(error: Exception) -> str:
    """Why a collector could not be asked, in words that quote nothing of it."""
    for kind, words in _CAUSES:
        if isinstance(error, kind):
            return words
    return "its answer broke off or is no HTTP"


def _rejected(answer: bytes) -> int:
    """Spans that a collector says it did not take (`partialSuccess.rejectedSpans`); 0 where it says nothing of it."""
    try:
        told: Any = orjson.loads(answer)["partialSuccess"]["rejectedSpans"]
        return max(int(told), 0)
    except (ValueError, KeyError, TypeError):
        return 0
