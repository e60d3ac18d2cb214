"""Spans by OTLP over HTTP: one for each decided exchange, with the decision's reason and how it ended.

An exporter of our own: OTLP's JSON form is a page of text (opentelemetry.io/docs/specs/otlp, stable since 1.0), the
HTTP client is there anyway, and OpenTelemetry's SDK would bring ten packages and a thread into the gateway. What is
made for a request is one tuple; JSON is made when a batch is sent. No text of a request is in a span.
"""

import asyncio
import contextlib
import random
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import aiohttp
import orjson
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.core.exchange import Exchange
from extproc.io import clock
from extproc.settings.tracing import TracingSettings

_log = structlog.get_logger("kvsteer")

#: Most spans in one message to the collector.
_BATCH: Final = 512
#: Characters of a model's name that a span keeps.
_NAME: Final = 128
#: Trace context, level 1 (w3.org/TR/trace-context): version, trace, caller's span, flags. Version ff and ids of zeros
#: are invalid; later versions may have more behind.
_PARENT = re.compile(
    r"^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?=\Z|-)"
)
#: OTLP's numbers: SPAN_KIND_SERVER, STATUS_CODE_ERROR.
_SERVER, _ERROR = 2, 2

#: Trace, caller's span ("" for none), the exchange, its end in seconds (monotonic).
_Kept = tuple[str, str, Exchange, float]


def tracer_of(settings: TracingSettings, gateway_id: str, registry: CollectorRegistry) -> "Tracer | None":
    """A gateway's tracer; None where no endpoint is set."""
    if not settings.endpoint:
        return None
    return Tracer(settings, gateway_id, registry, random.Random())  # noqa: S311 - ids, which guard nothing


def parent_of(header: str) -> tuple[str, str, bool] | None:
    """Trace, caller's span and whether it is sampled, of a `traceparent`; None for one that is invalid."""
    found = _PARENT.match(header)
    return (found[1], found[2], bool(int(found[3], 16) & 1)) if found else None


class Tracer(Collector):
    """Takes exchanges that are over and sends their spans. What can't be sent is dropped and counted.

    Args:
        settings: with an endpoint.
        gateway_id: told as `service.instance.id`.
        registry: where drops are counted.
        draw: draws the ids and the requests of `share`.
    """

    def __init__(
        self, settings: TracingSettings, gateway_id: str, registry: CollectorRegistry, draw: random.Random
    ) -> None:
        self._settings = settings
        self._resource = _attributes(
            {"service.name": "kvsteer", "service.version": __version__, "service.instance.id": gateway_id}
        )
        self._draw = draw
        self._queue: deque[_Kept] = deque()
        self._offset = clock.wall() - clock.monotonic()
        self._failing = False
        self.counts = {"sent": 0, "dropped": 0, "failed": 0}
        registry.register(self)

    def __len__(self) -> int:
        """Spans that wait."""
        return len(self._queue)

    def ended(self, exchange: Exchange, now: float) -> None:
        """An exchange that was decided is over since `now` (seconds, monotonic). Sends nothing yet."""
        parent = parent_of(exchange.opening.trace) if exchange.opening.trace else None
        if not (parent[2] if parent else self._draw.random() < self._settings.share):
            return
        trace, span = (parent[0], parent[1]) if parent else (f"{self._draw.getrandbits(128) or 1:032x}", "")
        self._queue.append((trace, span, exchange, now))
        if len(self._queue) > self._settings.queue:
            self._queue.popleft()
            self.counts["dropped"] += 1

    async def run(self) -> None:
        """Send what waits until cancelled. Never raises for the collector's sake."""
        async with self._session() as session:
            while True:
                await asyncio.sleep(self._settings.every)
                while self._queue and await self.send(session):
                    pass

    async def flush(self) -> None:
        """Send what is left, within `timeout`; after the task has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout), self._session() as session:
                while self._queue and await self.send(session):
                    pass

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._settings.timeout))

    async def send(self, session: aiohttp.ClientSession) -> bool:
        """Send one batch; True when the collector took it. A batch that it did not take is not sent again."""
        batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
        body, headers = self.message(batch), {"content-type": "application/json"}
        why = ""
        try:
            async with session.post(
                self._settings.endpoint, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status // 100 != 2:
                    why = f"it answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = type(error).__name__
        self.counts["failed" if why else "sent"] += len(batch)
        self._tell(why)
        return not why

    def message(self, batch: Iterable[_Kept]) -> bytes:
        """An ExportTraceServiceRequest as JSON."""
        scope = {"name": "kvsteer", "version": __version__}
        spans = [self._span(*kept) for kept in batch]
        told = {"resource": {"attributes": self._resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}
        return orjson.dumps({"resourceSpans": [told]})

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        family = CounterMetricFamily("kvsteer_spans", "Spans by what became of them.", labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        yield family

    def _span(self, trace: str, parent: str, exchange: Exchange, end: float) -> dict[str, Any]:
        decision, ending = exchange.decision, exchange.ending
        assert decision is not None
        begin = decision.at - exchange.waited
        failed = ending is not None and (ending.status or 0) >= 500
        return {
            "traceId": trace,
            "spanId": f"{self._draw.getrandbits(64) or 1:016x}",
            **({"parentSpanId": parent} if parent else {}),
            "name": "kvsteer.exchange",
            "kind": _SERVER,
            "startTimeUnixNano": self._nanoseconds(begin),
            "endTimeUnixNano": self._nanoseconds(max(end, begin)),
            "attributes": _attributes(dict(_told(exchange))),
            "events": [{"timeUnixNano": self._nanoseconds(decision.at), "name": "decided"}],
            "status": {"code": _ERROR} if failed else {},
        }

    def _nanoseconds(self, moment: float) -> str:
        return str(int((moment + self._offset) * 1e9))  # 64 bits are text in OTLP's JSON

    def _tell(self, why: str) -> None:
        if bool(why) != self._failing:
            self._failing = bool(why)
            if why:
                _log.warning("traces are not taken", endpoint=self._settings.endpoint, why=why)
            else:
                _log.info("traces are taken again", endpoint=self._settings.endpoint)


def _told(exchange: Exchange) -> Iterator[tuple[str, Any]]:
    decision, ending = exchange.decision, exchange.ending
    assert decision is not None
    yield "kvsteer.request_id", exchange.request_id
    yield "kvsteer.pool", decision.pool.name
    yield "kvsteer.policy", decision.pool.policy_name
    yield "kvsteer.reason", decision.reason
    yield "kvsteer.outcome", exchange.outcome
    yield "kvsteer.replica", decision.replica.address if decision.replica else None
    yield "kvsteer.candidates", len(decision.candidates)
    yield "kvsteer.prompt_tokens", decision.tokens
    yield "kvsteer.cached_tokens_expected", decision.cached
    yield "kvsteer.held_seconds", float(exchange.waited)
    if decision.prompt is not None:
        yield "gen_ai.request.model", decision.prompt.model[:_NAME]
    if ending is not None:
        yield "kvsteer.ended_by", ending.by
        yield "kvsteer.served_by", ending.served
        yield "kvsteer.attempts", ending.attempts
        yield "http.response.status_code", ending.status
        if ending.first_token is not None:
            yield "kvsteer.first_token_seconds", float(ending.first_token - decision.at)
        if ending.usage is not None:
            yield "gen_ai.usage.input_tokens", ending.usage.input
            yield "gen_ai.usage.output_tokens", ending.usage.output
            yield "kvsteer.cached_tokens", ending.usage.cached


def _attributes(told: dict[str, Any]) -> list[dict[str, Any]]:
    """As OTLP's JSON has them; what is unknown is left out."""
    return [
        {"key": key, "value": _value(value)}
        for key, value in told.items()
        if value is not None and value != ""
    ]


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"doubleValue": value} if isinstance(value, float) else {"intValue": str(value)}
