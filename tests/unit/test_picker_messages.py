"""Whole conversations in full duplex both ways, message for message, as an endpoint picker has them.

The cases are those of the router of llm-d's hermetic tests that apply here; where its answer is known to be wrong
(a request without a body and no replica is 500 there), the right one is asserted.
"""

import json
import random
from typing import Any

import pytest

from extproc.core.exchange import Exchange
from extproc.core.fleet import Traits
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.steering import Rules, Steering
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import Mode, chat, metadata_destination, request_body, request_headers

FDS = Mode.FULL_DUPLEX_STREAMED
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


class Talk:
    """An exchange, and what it answered to each message."""

    def __init__(self, samples: dict[str, Sample], rules: Rules | None = None) -> None:
        pool = Pool("default", traits=Traits(), policy="least_request", now=0.0)
        for address, sample in samples.items():
            pool.join(address, 0.0)
            pool.observe(address, sample)
        self.exchange = Exchange(Steering([pool], rules or Rules(), random.Random(1)))

    def say(self, data: bytes) -> list[pb.ProcessingResponse]:
        reply = self.exchange.receive(data, 1.0)
        assert not reply.close
        parts = reply.data if isinstance(reply.data, tuple) else (reply.data,) if reply.data else ()
        return [pb.ProcessingResponse.FromString(part) for part in parts]

    def headers(self, **more: Any) -> list[pb.ProcessingResponse]:
        message = pb.ProcessingRequest.FromString(request_headers(mode=FDS, **more))
        message.protocol_config.response_body_mode = FDS
        return self.say(message.SerializeToString())

    def ask(self, body: Any) -> list[pb.ProcessingResponse]:
        assert self.headers() == []
        return self.say(request_body(body))

    def response(self, kind: str = "application/json", status: bytes = b"200") -> list[pb.ProcessingResponse]:
        message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
        for name, value in ((":status", status), ("content-type", kind.encode())):
            message.response_headers.headers.headers.add(key=name, raw_value=value)
        return self.say(message.SerializeToString())

    def piece(self, body: bytes, *, end: bool = False) -> pb.StreamedBodyResponse:
        message = pb.ProcessingRequest(response_body=pb.HttpBody(body=body, end_of_stream=end))
        (back,) = self.say(message.SerializeToString())
        return back.response_body.response.body_mutation.streamed_response


def sample(waiting: int = 0, running: int = 0) -> Sample:
    return Sample(at=0.5, waiting=waiting, running=running)


def three() -> dict[str, Sample]:
    return {f"10.0.0.{n}:8000": sample(waiting=n * 3, running=n) for n in (1, 2, 3)}


def status_of(messages: list[pb.ProcessingResponse]) -> int:
    (only,) = messages
    return only.immediate_response.status.code


def test_the_replica_with_the_shorter_queue_wins() -> None:
    first, piece = Talk(three()).ask(chat())
    assert metadata_destination(first).split(",")[0] == "10.0.0.1:8000"
    assert json.loads(piece.request_body.response.body_mutation.streamed_response.body) == chat()


def test_nothing_is_shed_by_default_however_busy_all_are() -> None:
    busy = {address: sample(waiting=500, running=500) for address in three()}
    first, _ = Talk(busy).ask(chat())
    assert metadata_destination(first)


def test_invalid_json_is_400_where_it_is_refused_and_else_the_engines_to_answer() -> None:
    assert status_of(Talk(three(), Rules(unreadable_passes=False)).ask(b"no json")) == 400
    first, piece = Talk(three()).ask(b"no json")
    assert metadata_destination(first)
    assert piece.request_body.response.body_mutation.streamed_response.body == b"no json"


def test_a_body_in_three_pieces_is_answered_at_the_last() -> None:
    talk = Talk(three())
    talk.headers()
    data = json.dumps(chat()).encode()
    assert talk.say(request_body(data[:7], end=False)) == []
    assert talk.say(request_body(data[7:20], end=False)) == []
    assert len(talk.say(request_body(data[20:]))) == 2


@pytest.mark.parametrize("end", [True, False])
def test_without_replicas_requests_are_503(end: bool) -> None:
    talk = Talk({})
    said = talk.headers(end=end, method="GET" if end else "POST")
    assert status_of(said if end else talk.say(request_body(chat()))) == 503


def test_a_request_without_a_body_is_answered_at_once() -> None:
    (only,) = Talk(three()).headers(end=True, method="GET", path="/v1/models")
    assert only.WhichOneof("response") == "request_headers"
    assert metadata_destination(only)


def test_a_body_without_a_model_goes_where_the_pool_takes_it() -> None:
    first, _ = Talk(three()).ask({"messages": [{"role": "user", "content": "hi"}]})
    assert metadata_destination(first)


def test_a_path_that_no_dialect_reads_goes_by_load() -> None:
    talk = Talk(three(), Rules(unreadable_passes=False))
    talk.headers(path="/v1/anything")
    first, _ = talk.say(request_body({"a": 1}))
    assert metadata_destination(first)


def test_a_json_answer_in_pieces_goes_back_as_it_comes_and_is_read() -> None:
    talk = Talk(three())
    talk.ask(chat())
    talk.response()
    whole = json.dumps({"model": "m", "choices": [], "usage": USAGE}).encode()
    assert (talk.piece(whole[:9]).body, talk.piece(whole[9:]).body) == (whole[:9], whole[9:])
    last = talk.piece(b"", end=True)
    assert (last.body, last.end_of_stream) == (b"", True)
    assert talk.exchange.ending is not None
    assert talk.exchange.ending.usage is not None
    assert talk.exchange.ending.usage.input == 11


def test_an_answer_that_is_no_json_goes_back_unchanged() -> None:
    talk = Talk(three())
    talk.ask(chat())
    talk.response()
    assert talk.piece(b"{no json", end=True).body == b"{no json"


@pytest.mark.parametrize("cut", [1, 5, 30, 60])
def test_usage_of_events_is_read_wherever_they_are_cut(cut: int) -> None:
    talk = Talk(three())
    talk.ask(chat(stream=True))
    talk.response("text/event-stream")
    events = b"data:" + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"
    assert talk.piece(events[:cut]).body + talk.piece(events[cut:], end=True).body == events
    assert talk.exchange.ending is not None
    assert talk.exchange.ending.usage is not None
    assert talk.exchange.ending.usage.output == 3
