"""Whole conversations in full duplex both ways, message for message, as an endpoint picker has them.

The cases are those of the router of llm-d's hermetic tests that apply here; where its answer is known to be wrong
(a request without a body and no replica is 500 there), the right one is asserted.
"""

import json
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from extproc.app import Gateway
from extproc.config import parse
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import (
    Mode,
    chat,
    metadata_destination,
    mutation,
    request_body,
    request_headers,
    set_headers,
)

FDS = Mode.FULL_DUPLEX_STREAMED
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


def steering(samples: dict[str, Sample], policy: str, rules: Rules | None = None) -> Steering:
    pool = Pool("default", traits=Traits(), policy=policy, now=0.0)
    for address, sample in samples.items():
        pool.join(address, 0.0)
        pool.observe(address, sample)
    return Steering([pool], rules or Rules(), random.Random(1))


class Talk:
    """An exchange, and what it answered to each message."""

    def __init__(
        self, samples: dict[str, Sample], rules: Rules | None = None, gateway: Steering | None = None
    ) -> None:
        self.exchange = Exchange(gateway or steering(samples, "least_request", rules))

    def say(self, data: bytes) -> list[pb.ProcessingResponse]:
        reply = self.exchange.receive(data, 1.0)
        assert not reply[1]
        parts = reply[0] if isinstance(reply[0], tuple) else (reply[0],) if reply[0] else ()
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


def limited(talk: Talk, *endpoints: str) -> list[pb.ProcessingResponse]:
    """The answer to a request that Envoy's metadata limits to some endpoints."""
    message = pb.ProcessingRequest.FromString(request_headers(mode=FDS))
    message.protocol_config.response_body_mode = FDS
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": list(endpoints)})
    assert talk.say(message.SerializeToString()) == []
    return talk.say(request_body(chat()))


def test_of_a_subset_the_best_is_taken_though_a_better_one_is_outside() -> None:
    first, _ = limited(Talk(three()), "10.0.0.3:8000", "10.0.0.2:8000")
    assert metadata_destination(first) == "10.0.0.2:8000,10.0.0.3:8000"


def test_of_a_subset_that_is_known_in_part_the_known_part_is_taken() -> None:
    first, _ = limited(Talk(three()), "10.0.0.3:8000", "10.9.9.9:8000")
    assert metadata_destination(first) == "10.0.0.3:8000"


def test_of_a_subset_that_nobody_is_in_nobody_is_taken() -> None:
    assert status_of(limited(Talk(three()), "10.9.9.9:8000")) == 503


def test_the_protocols_header_and_metadata_are_equal_and_in_one_order() -> None:
    first, _ = Talk(three()).ask(chat())
    wanted = "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000"
    assert (set_headers(first)["x-gateway-destination-endpoint"], metadata_destination(first)) == (
        wanted,
    ) * 2
    assert {each.append_action for each in mutation(first).set_headers} == {
        pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    }


def test_a_session_stays_with_its_replica() -> None:
    """The router's session affinity; here a policy of the pool, by how the conversation began."""
    gateway = steering({address: sample() for address in three()}, "session_hash")
    picked, said = set(), list[dict[str, str]]()
    for turn in range(4):
        said += [{"role": "user", "content": f"turn {turn}"}]
        talk = Talk({}, gateway=gateway)
        first, _ = talk.ask({"model": "m", "messages": said})
        picked.add(metadata_destination(first).split(",")[0])
        talk.exchange.end(2.0)
        said += [{"role": "assistant", "content": "yes"}]
    assert len(picked) == 1


#: What the router takes from request headers, and a value that would make it do something.
LEVERS = {
    "x-llm-d-inference-fairness-id": "somebody-else",
    "x-gateway-inference-fairness-id": "somebody-else",
    "x-llm-d-inference-objective": "critical",
    "x-gateway-inference-objective": "critical",
    "x-llm-d-model-name-rewrite": "another",
    "x-gateway-model-name-rewrite": "another",
    "x-llm-d-slo-ttft-ms": "9" * 400,
    "x-slo-ttft-ms": "1e999",
    "x-slo-tpot-ms": "-1",
    "x-session-token": "c2VydmluZy8xMC4wLjAuMw==",
    "x-session-id": "10.0.0.3:8000",
    "epp-profile": "prefill",
    "prefer": "if-available",
    "x-original-path": "/v1/embeddings",
    "x-forwarded-path": "/v1/embeddings",
    "x-gateway-destination-endpoint": "10.0.0.3:8000",
    "x-gateway-destination-endpoint-subset": "10.0.0.3:8000",
    "x-gateway-destination-endpoint-served": "10.0.0.3:8000",
    "test-epp-endpoint-selection": "10.0.0.3:8000",
}


@pytest.mark.parametrize("name", LEVERS)
def test_no_header_by_which_other_pickers_can_be_steered_changes_anything(name: str) -> None:
    plain, _ = Talk(three()).ask(chat())
    talk = Talk(three())
    assert talk.headers(**{name: LEVERS[name]}) == []
    steered, piece = talk.say(request_body(chat()))
    assert metadata_destination(steered) == metadata_destination(plain)
    assert json.loads(piece.request_body.response.body_mutation.streamed_response.body) == chat()
    assert set_headers(steered).get(name, "") != LEVERS[name]
    if name.startswith(("x-gateway-", "test-epp-")):
        told = mutation(steered)
        assert name in told.remove_headers or name in set_headers(steered), "it reaches the replica"


def test_fields_and_messages_that_are_not_known_are_ignored() -> None:
    """As a newer Envoy may send them: field 200 in a known message, and a message that is none of the known ones."""
    unknown = b"\xc2\x0c\x03abc"
    talk = Talk(three())
    message = pb.ProcessingRequest.FromString(request_headers(mode=FDS))
    message.protocol_config.response_body_mode = FDS
    assert talk.say(message.SerializeToString() + unknown) == []
    assert talk.say(unknown) == []
    first, piece = talk.say(request_body(chat()) + unknown)
    assert metadata_destination(first)
    assert json.loads(piece.request_body.response.body_mutation.streamed_response.body) == chat()
    assert talk.say(unknown) == []


def test_a_drain_of_the_request_is_never_asked_for() -> None:
    """`request_drain` is not honoured by Envoy 1.40: it answers 500."""
    for body in (chat(), b"no json"):
        assert not any(answer.request_drain for answer in Talk(three()).ask(body))


def test_body_modes_that_allow_less_are_told_once_each() -> None:
    gateway = Gateway(parse('pools: [{replicas: ["10.0.0.1:8000"]}]', "test"))
    with capture_logs() as logs:
        for mode in [Mode.STREAMED, Mode.BUFFERED_PARTIAL, FDS, Mode.BUFFERED] * 3:
            session = gateway.exchanges.session()
            session.receive(request_headers(mode=mode))
            session.receive(request_body(chat()))
            session.end()
    told = [(line["mode"], line["log_level"]) for line in logs if line["event"] == "body mode"]
    assert told == [("STREAMED", "warning"), ("BUFFERED_PARTIAL", "warning")]
