"""Spans in OTLP's JSON form (opentelemetry.io/docs/specs/otlp, stable since 1.0): one for each exchange.

Written as text piece by piece, which takes less than half the time of dumping a tree: what has few values (names,
replicas, statuses) is kept as it was written before. No text of a request is in a span.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import orjson

from extproc import __version__
from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.tracing import Span

#: Characters of a model's name that a span keeps.
_NAME: Final = 128
#: OTLP's numbers: SPAN_KIND_SERVER, STATUS_CODE_ERROR.
_SERVER, _ERROR = 2, '{"code":2}'
#: Attributes that are kept as text.
_KEPT: Final = 4096

#: Its ids, the exchange, and its end in seconds (monotonic).
Kept = tuple[Span, Exchange, float]


def head_of(gateway_id: str) -> bytes:
    """What stands before a message's spans: who sends them."""
    resource = ",".join(
        attribute(key, value)
        for key, value in (
            ("service.name", "kvsteer"),
            ("service.version", __version__),
            ("service.instance.id", gateway_id),
        )
    )
    scope = f'{{"name":"kvsteer","version":{quoted(__version__)}}}'
    head = f'{{"resourceSpans":[{{"resource":{{"attributes":[{resource}]}},"scopeSpans":[{{"scope":{scope},"spans":['
    return head.encode()


#: What stands behind them.
TAIL: Final = b"]}]}]}"


def spans(batch: Iterable[Kept], offset: float) -> bytes:
    """What stands between the head and the tail; `offset` seconds added to the monotonic clock make the epoch's."""
    return ",".join([_span(*kept, offset) for kept in batch]).encode()


def _span(span: Span, exchange: Exchange, end: float, offset: float) -> str:
    decision, ending = exchange.decision, exchange.ending
    assert decision is not None
    begin = decision.at - exchange.waited
    parent = f'"parentSpanId":"{span.parent}",' if span.parent else ""
    failed = ending is not None and (ending.status or 0) >= 500
    return (
        f'{{"traceId":"{span.trace}","spanId":"{span.id}",{parent}"name":"kvsteer.exchange","kind":{_SERVER},'
        f'"startTimeUnixNano":"{_nanoseconds(begin + offset)}",'
        f'"endTimeUnixNano":"{_nanoseconds(max(end, begin) + offset)}",'
        f'"attributes":[{",".join(_told(exchange))}],'
        f'"events":[{{"timeUnixNano":"{_nanoseconds(decision.at + offset)}","name":"decided"}}],'
        f'"status":{_ERROR if failed else "{}"}}}'
    )


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)  # 64 bits are text in OTLP's JSON


def _told(exchange: Exchange) -> Iterator[str]:
    """A span's attributes; what is unknown is left out."""
    decision, ending = exchange.decision, exchange.ending
    assert decision is not None
    yield _text("kvsteer.request_id", exchange.request_id)
    yield attribute("kvsteer.pool", decision.pool.name)
    yield attribute("kvsteer.policy", decision.pool.policy_name)
    if decision.reason:
        yield attribute("kvsteer.reason", decision.reason)
    yield attribute("kvsteer.outcome", exchange.outcome)
    if exchange.admitted is not None:
        yield attribute("kvsteer.tenant", exchange.admitted.tenant)
    if decision.replica is not None:
        yield attribute("kvsteer.replica", decision.replica.address)
    yield attribute("kvsteer.candidates", len(decision.candidates))
    yield _number("kvsteer.prompt_tokens", round(decision.tokens))
    yield _number("kvsteer.output_tokens_expected", round(decision.output))
    yield _number("kvsteer.cached_tokens_expected", round(decision.cached))
    yield _number("kvsteer.held_seconds", float(exchange.waited))
    if decision.prompt is not None and decision.prompt.model:
        yield attribute("gen_ai.request.model", decision.prompt.model[:_NAME])
    if ending is not None:
        yield from _ended(ending, decision.at)


def _ended(ending: Ending, decided: float) -> Iterator[str]:
    yield attribute("kvsteer.ended_by", ending.by)
    if ending.served:
        yield attribute("kvsteer.served_by", ending.served)
    if ending.attempts is not None:
        yield attribute("kvsteer.attempts", ending.attempts)
    if ending.status is not None:
        yield attribute("http.response.status_code", ending.status)
    if ending.first_token is not None:
        yield _number("kvsteer.first_token_seconds", float(ending.first_token - decided))
    usage = ending.usage
    if usage is None:
        return
    for key, tokens in (
        ("gen_ai.usage.input_tokens", usage.input),
        ("gen_ai.usage.output_tokens", usage.output),
        ("kvsteer.cached_tokens", usage.cached),
    ):
        if tokens is not None:
            yield _number(key, tokens)


@lru_cache(maxsize=_KEPT)
def attribute(key: str, value: str | int) -> str:
    """One that has few values; kept."""
    return _text(key, value) if isinstance(value, str) else _number(key, value)


def _text(key: str, value: str) -> str:
    return f'{{"key":"{key}","value":{{"stringValue":{quoted(value)}}}}}'


def _number(key: str, value: float) -> str:
    """Integers are text in OTLP's JSON, as they may have 64 bits."""
    told = f'"doubleValue":{value!r}' if isinstance(value, float) else f'"intValue":"{value}"'
    return f'{{"key":"{key}","value":{{{told}}}}}'


def quoted(text: str) -> str:
    """A string as JSON; what no UTF-8 can hold (half a surrogate pair out of a client's escapes) as `?`."""
    return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()
