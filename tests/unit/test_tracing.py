"""Spans: whose trace they are in, what they tell, and what happens to those that can't be sent."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from extproc.core.admission.answers import Answer
from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.tracing import Span, Traces, parent_of, told
from extproc.core.usage.record import Usage
from extproc.io.tracing import Tracer, cause, tracer_of
from extproc.pb import ext_proc_pb2 as pb
from extproc.settings.tracing import TracingSettings
from tests.examples import LETTERS
from tests.unit.messages import answer, chat, mutation, request_body, request_headers, set_headers

_TRACE, _SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def exchange(trace: str = "", **more: Any) -> Exchange:
    """As much of one as a span asks for."""
    pool = SimpleNamespace(name="chat", policy_name="charged_cost")
    decision = SimpleNamespace(
        pool=pool, at=100.0, reason="least_cost", replica=SimpleNamespace(address="10.0.0.1:8000"), candidates=[1, 2],
        tokens=900, output=16.4, cached=640, prompt=SimpleNamespace(model="m" * 200),
    )  # fmt: skip
    ending = Ending()
    ending.by, ending.status, ending.served = "complete", 200, "10.0.0.1:8000"
    made = SimpleNamespace(
        opening=SimpleNamespace(trace=trace), decision=decision, ending=ending, request_id="r-1", outcome="steered",
        waited=0.5, caller="", span=None, admitted=None,
    )  # fmt: skip
    vars(made).update(more)
    return cast(Exchange, made)


def sent(made: Tracer, ended: Exchange, now: float = 103.0) -> None:
    """Begin its span as a decision does, and end it."""
    ended.span = made.traces.begin(ended.caller or ended.opening.trace)
    made.ended(ended, now)


def tracer(**settings: Any) -> Tracer:
    chosen = TracingSettings(endpoint="http://127.0.0.1:1/v1/traces", **{"share": 1.0, **settings})
    return Tracer(chosen, "gw-0", CollectorRegistry(), random.Random(1))


def spans(made: Tracer) -> list[dict[str, Any]]:
    told = orjson.loads(asyncio.run(made.message(list(made._queue))))
    return list(told["resourceSpans"][0]["scopeSpans"][0]["spans"])


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


def test_a_span_is_in_its_callers_trace_below_the_callers_span() -> None:
    made = tracer()
    sent(made, exchange(f"00-{_TRACE}-{_SPAN}-01"))
    (span,) = spans(made)
    assert (span["traceId"], span["parentSpanId"]) == (_TRACE, _SPAN)
    assert len(span["spanId"]) == 16
    # It waited half a second before the decision at 100 s, and ended at 103 s.
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == pytest.approx(3.5e9, abs=1000)


def test_a_request_whose_caller_does_not_sample_it_has_no_span() -> None:
    made = tracer()
    sent(made, exchange(f"00-{_TRACE}-{_SPAN}-00"))
    assert len(made) == 0


def test_a_request_without_a_caller_begins_a_trace_for_a_share_of_them() -> None:
    made = tracer(share=0.25)
    for _ in range(400):
        sent(made, exchange())
    assert 60 < len(made) < 140  # 100 are expected, with a standard deviation of 8.7
    assert "parentSpanId" not in spans(made)[0]
    assert len({span["traceId"] for span in spans(made)}) == len(made)


def test_a_span_tells_the_reason_and_the_outcome_and_leaves_out_what_is_unknown() -> None:
    made = tracer()
    ended = exchange()
    assert ended.ending is not None
    ended.ending.usage = Usage(input=910, cached=None, output=16)
    sent(made, ended)
    told = attributes(spans(made)[0])
    assert told["kvsteer.reason"] == "least_cost"
    assert told["kvsteer.cached_tokens_expected"] == "640"
    assert told["gen_ai.usage.input_tokens"] == "910"
    assert told["gen_ai.request.model"] == "m" * 128
    assert "kvsteer.cached_tokens" not in told
    assert "kvsteer.attempts" not in told


def test_a_model_s_name_may_hold_anything() -> None:
    made = tracer()
    ended = exchange()
    assert ended.decision is not None
    assert ended.decision.prompt is not None
    ended.decision.prompt.model = 'a "quoted"\\name\n\ud800 \x00 ü'
    sent(made, ended)
    assert attributes(spans(made)[0])["gen_ai.request.model"] == 'a "quoted"\\name\n? \x00 ü'


def test_a_request_for_which_there_was_no_replica_has_a_span_too() -> None:
    made = tracer()
    ended = exchange(ending=None, outcome="no_candidate")
    assert ended.decision is not None
    vars(ended.decision).update(replica=None, prompt=None, candidates=[], reason="")
    made.ended(ended, 103.0)
    told = attributes(spans(made)[0])
    assert told["kvsteer.outcome"] == "no_candidate"
    assert not {"kvsteer.replica", "kvsteer.reason", "gen_ai.request.model", "kvsteer.ended_by"} & set(told)


def test_a_refused_request_s_span_tells_its_tenant_its_status_and_its_sizes_apart() -> None:
    made = tracer()
    admitted = Answer(verdict="reject", reason="tenant_too_large", tenant="evil")
    ended = exchange(ending=Ending.refused(429), outcome="not_admitted", admitted=admitted)
    assert ended.decision is not None
    vars(ended.decision).update(replica=None, candidates=[], tokens=13, output=190.0, cached=0)
    made.ended(ended, 103.0)
    (span,) = spans(made)
    told = attributes(span)
    assert (told["kvsteer.tenant"], told["http.response.status_code"]) == ("evil", "429")
    assert (told["kvsteer.prompt_tokens"], told["kvsteer.output_tokens_expected"]) == ("13", "190")
    assert told["kvsteer.ended_by"] == "gateway"
    assert span["status"] == {}


def test_many_spans_make_one_message() -> None:
    made = tracer()
    for number in range(100):  # more than are written at a time
        sent(made, exchange(request_id=f"r-{number}"))
    told = [attributes(span)["kvsteer.request_id"] for span in spans(made)]
    assert told == [f"r-{number}" for number in range(100)]


@pytest.mark.parametrize(("status", "code"), [(200, {}), (404, {}), (503, {"code": 2}), (None, {})])
def test_an_answer_of_500_or_above_makes_an_error(status: int | None, code: dict[str, int]) -> None:
    made = tracer()
    ended = exchange()
    assert ended.ending is not None
    ended.ending.status = status
    sent(made, ended)
    assert spans(made)[0]["status"] == code


def test_the_oldest_are_dropped_and_counted_when_too_many_wait() -> None:
    made = tracer(queue=3)
    for number in range(5):
        sent(made, exchange(request_id=f"r-{number}"))
    assert [attributes(span)["kvsteer.request_id"] for span in spans(made)] == ["r-2", "r-3", "r-4"]
    assert made.counts == {"sent": 0, "dropped": 2, "failed": 0}


async def test_spans_that_no_collector_takes_are_counted_and_not_kept_and_why_is_said_in_words() -> None:
    made = tracer()  # its endpoint is port 1 of this host, where nobody listens
    sent(made, exchange())
    with capture_logs() as said:
        async with made.session() as session:
            assert not await made.send(session)
    assert (len(made), made.counts["failed"]) == (0, 1)
    (line,) = said
    assert line["event"] == "traces are not taken"
    assert line["why"] == "it can't be reached, or nobody listens there; check tracing.endpoint"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "it does not answer within tracing.timeout"),
        (aiohttp.ServerTimeoutError(), "it does not answer within tracing.timeout"),
        (aiohttp.ServerDisconnectedError(), "its answer broke off or is no HTTP"),
        (ConnectionResetError(), "its answer broke off or is no HTTP"),
    ],
)
def test_why_a_collector_took_nothing_is_said_in_words(error: Exception, words: str) -> None:
    assert cause(error) == words


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert tracer_of(TracingSettings(), "gw-0", CollectorRegistry()) is None


@pytest.mark.parametrize(
    "header",
    [
        "", "00", f"00-{_TRACE}-{_SPAN}", f"00-{_TRACE}-{_SPAN}-", f"ff-{_TRACE}-{_SPAN}-01",
        f"00-{'0' * 32}-{_SPAN}-01", f"00-{_TRACE}-{'0' * 16}-01", f"00-{_TRACE.upper()}-{_SPAN}-01",
        f"00-{_TRACE}-{_SPAN}-01\n", f"00-{_TRACE}-{_SPAN}-01x",
        f"00-{_TRACE}-{_SPAN}-01-more", f"00-{_TRACE}-{_SPAN}-01-", f"00-{_TRACE}-{_SPAN}-01-\nmore",
        f"01-{_TRACE}-{_SPAN}-01x", f"00-{_TRACE}-{_SPAN}-01,00-{_TRACE}-{_SPAN}-01",
    ],
)  # fmt: skip
def test_a_traceparent_that_is_none_is_not_followed(header: str) -> None:
    assert parent_of(header) is None


def test_a_traceparent_of_a_later_version_is_followed() -> None:
    for more in ("", "-more"):
        assert parent_of(f"01-{_TRACE}-{_SPAN}-01{more}") == (_TRACE, _SPAN, True)


def test_two_callers_that_differ_are_none_and_a_trace_begins() -> None:
    made = Exchange(steering())
    message = request_headers(traceparent=f"00-{_TRACE}-{_SPAN}-01")
    start = pb.ProcessingRequest.FromString(message)
    other = f"00-{'a' * 32}-{_SPAN}-01".encode()
    start.request_headers.headers.headers.add(key="traceparent", raw_value=other)
    made.receive(start.SerializeToString(), 1.0)
    made.receive(request_body(chat()), 1.0)
    assert made.span is not None
    assert made.span.parent == ""
    assert made.span.trace not in (_TRACE, "a" * 32)


@given(st.text(LETTERS, max_size=80))
def test_no_header_breaks_it(header: str) -> None:
    found = parent_of(header)
    assert found is None or len(found[0]) == 32


def steering(*, share: float = 1.0) -> Steering:
    """One replica, and traces of a share of the requests that nobody traces."""
    pool = Pool("p", models=["m"], now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    made = Steering([pool], Rules(), random.Random(1))
    made.traces = Traces(share, random.Random(2))
    return made


@pytest.mark.parametrize("body", [True, False], ids=["with a body", "at the headers"])
def test_the_replica_is_told_of_the_gateway_s_span_as_its_caller(body: bool) -> None:
    made = Exchange(steering())
    trace = {"traceparent": f"00-{_TRACE}-{_SPAN}-01"}
    reply = made.receive(request_headers(end=not body, **trace), 1.0)
    if body:
        reply = made.receive(request_body(chat()), 1.0)
    assert made.span is not None
    assert made.span[:2] == (_TRACE, _SPAN)
    assert set_headers(answer(reply[0]))["traceparent"] == f"00-{_TRACE}-{made.span.id}-01"
    options = mutation(answer(reply[0])).set_headers
    (option,) = [option for option in options if option.header.key == "traceparent"]
    assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD


def test_a_request_that_is_not_sampled_goes_on_as_it_came() -> None:
    made = Exchange(steering())
    made.receive(request_headers(traceparent=f"00-{_TRACE}-{_SPAN}-00"), 1.0)
    reply = made.receive(request_body(chat()), 1.0)
    assert made.span is None
    assert "traceparent" not in set_headers(answer(reply[0]))


def test_where_envoy_traces_the_span_is_below_envoy_s_call_and_envoy_tells_the_replica_itself() -> None:
    made = Exchange(steering())
    made.caller = f"00-{_TRACE}-aaaaaaaaaaaaaaaa-01"
    made.receive(request_headers(traceparent=f"00-{_TRACE}-{_SPAN}-01"), 1.0)
    reply = made.receive(request_body(chat()), 1.0)
    assert made.span is not None
    assert made.span[:2] == (_TRACE, "aaaaaaaaaaaaaaaa")
    assert "traceparent" not in set_headers(answer(reply[0]))


def test_without_tracing_a_traceparent_is_left_alone() -> None:
    plain = steering()
    plain.traces = None
    made = Exchange(plain)
    made.receive(request_headers(traceparent=f"00-{_TRACE}-{_SPAN}-01"), 1.0)
    reply = made.receive(request_body(chat()), 1.0)
    assert made.span is None
    assert "traceparent" not in set_headers(answer(reply[0]))


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_what_the_replica_is_told_is_a_valid_traceparent(trace: int, own: int, at_headers: bool) -> None:
    span = Span(f"{trace or 1:032x}", "", f"{own or 1:016x}")
    reply = pb.ProcessingResponse.FromString(told(span, at_headers=at_headers))
    side = reply.request_headers if at_headers else reply.request_body
    (option,) = side.response.header_mutation.set_headers
    assert option.header.key == "traceparent"
    assert parent_of(option.header.raw_value.decode()) == (span.trace, span.id, True)
