"""Spans: whose trace they are in, what they tell, and what happens to those that can't be sent."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.tracing import parent_of
from extproc.core.usage.record import Usage
from extproc.io.tracing import Tracer, tracer_of
from extproc.settings.tracing import TracingSettings

_TRACE, _SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def exchange(trace: str = "", **more: Any) -> Exchange:
    """As much of one as a span asks for."""
    pool = SimpleNamespace(name="chat", policy_name="charged_cost")
    decision = SimpleNamespace(
        pool=pool, at=100.0, reason="least_cost", replica=SimpleNamespace(address="10.0.0.1:8000"), candidates=[1, 2],
        tokens=900, cached=640, prompt=SimpleNamespace(model="m" * 200),
    )  # fmt: skip
    ending = Ending()
    ending.by, ending.status, ending.served = "complete", 200, "10.0.0.1:8000"
    made = SimpleNamespace(
        opening=SimpleNamespace(trace=trace), decision=decision, ending=ending, request_id="r-1", outcome="steered",
        waited=0.5,
    )  # fmt: skip
    vars(made).update(more)
    return cast(Exchange, made)


def tracer(**settings: Any) -> Tracer:
    chosen = TracingSettings(endpoint="http://127.0.0.1:1/v1/traces", **settings)
    return Tracer(chosen, "gw-0", CollectorRegistry(), random.Random(1))


def spans(made: Tracer) -> list[dict[str, Any]]:
    told = orjson.loads(asyncio.run(made.message(list(made._queue))))
    return list(told["resourceSpans"][0]["scopeSpans"][0]["spans"])


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


def test_a_span_is_in_its_callers_trace_below_the_callers_span() -> None:
    made = tracer()
    made.ended(exchange(f"00-{_TRACE}-{_SPAN}-01"), 103.0)
    (span,) = spans(made)
    assert (span["traceId"], span["parentSpanId"]) == (_TRACE, _SPAN)
    assert len(span["spanId"]) == 16
    # It waited half a second before the decision at 100 s, and ended at 103 s.
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == pytest.approx(3.5e9, abs=1000)


def test_a_request_whose_caller_does_not_sample_it_has_no_span() -> None:
    made = tracer()
    made.ended(exchange(f"00-{_TRACE}-{_SPAN}-00"), 103.0)
    assert len(made) == 0


def test_a_request_without_a_caller_begins_a_trace_for_a_share_of_them() -> None:
    made = tracer(share=0.25)
    for _ in range(400):
        made.ended(exchange(), 103.0)
    assert 60 < len(made) < 140  # 100 are expected, with a standard deviation of 8.7
    assert "parentSpanId" not in spans(made)[0]
    assert len({span["traceId"] for span in spans(made)}) == len(made)


def test_a_span_tells_the_reason_and_the_outcome_and_leaves_out_what_is_unknown() -> None:
    made = tracer()
    ended = exchange()
    assert ended.ending is not None
    ended.ending.usage = Usage(input=910, cached=None, output=16)
    made.ended(ended, 103.0)
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
    made.ended(ended, 103.0)
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


def test_many_spans_make_one_message() -> None:
    made = tracer()
    for number in range(100):  # more than are written at a time
        made.ended(exchange(request_id=f"r-{number}"), 103.0)
    told = [attributes(span)["kvsteer.request_id"] for span in spans(made)]
    assert told == [f"r-{number}" for number in range(100)]


@pytest.mark.parametrize(("status", "code"), [(200, {}), (404, {}), (503, {"code": 2}), (None, {})])
def test_an_answer_of_500_or_above_makes_an_error(status: int | None, code: dict[str, int]) -> None:
    made = tracer()
    ended = exchange()
    assert ended.ending is not None
    ended.ending.status = status
    made.ended(ended, 103.0)
    assert spans(made)[0]["status"] == code


def test_the_oldest_are_dropped_and_counted_when_too_many_wait() -> None:
    made = tracer(queue=3)
    for number in range(5):
        made.ended(exchange(request_id=f"r-{number}"), 103.0)
    assert [attributes(span)["kvsteer.request_id"] for span in spans(made)] == ["r-2", "r-3", "r-4"]
    assert made.counts == {"sent": 0, "dropped": 2, "failed": 0}


async def test_spans_that_no_collector_takes_are_counted_and_not_kept() -> None:
    made = tracer(timeout=0.5)
    made.ended(exchange(), 103.0)
    async with made.session() as session:
        assert not await made.send(session)
    assert (len(made), made.counts["failed"]) == (0, 1)


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert tracer_of(TracingSettings(), "gw-0", CollectorRegistry()) is None


@pytest.mark.parametrize(
    "header",
    [
        "", "00", f"00-{_TRACE}-{_SPAN}", f"00-{_TRACE}-{_SPAN}-", f"ff-{_TRACE}-{_SPAN}-01",
        f"00-{'0' * 32}-{_SPAN}-01", f"00-{_TRACE}-{'0' * 16}-01", f"00-{_TRACE.upper()}-{_SPAN}-01",
        f"00-{_TRACE}-{_SPAN}-01\n", f"00-{_TRACE}-{_SPAN}-01x",
    ],
)  # fmt: skip
def test_a_traceparent_that_is_none_is_not_followed(header: str) -> None:
    assert parent_of(header) is None


def test_a_traceparent_of_a_later_version_is_followed() -> None:
    assert parent_of(f"01-{_TRACE}-{_SPAN}-01-more") == (_TRACE, _SPAN, True)


@given(st.text(max_size=80))
def test_no_header_breaks_it(header: str) -> None:
    found = parent_of(header)
    assert found is None or len(found[0]) == 32
