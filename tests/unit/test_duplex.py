"""Requests whose body comes in pieces: message for message, every byte once, in the order that Envoy demands."""

import gzip
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exchange import Exchange
from extproc.core.reply import Reply
from extproc.core.states import BODY, DECIDED, HELD
from extproc.core.steering import Rules
from extproc.pb import ext_proc_pb2 as pb
from tests.examples import examples
from tests.unit.messages import Mode, chat, metadata_destination, request_body, request_headers, set_headers
from tests.unit.test_exchange import DESTINATION, steering
from tests.unit.test_holding import SECOND, Bench

FDS = Mode.FULL_DUPLEX_STREAMED
TRAILERS = pb.ProcessingRequest(request_trailers=pb.HttpTrailers()).SerializeToString()


def answers(reply: Reply) -> list[pb.ProcessingResponse]:
    assert not reply[1]
    assert isinstance(reply[0], tuple), "nothing, or one message, was answered"
    return [pb.ProcessingResponse.FromString(data) for data in reply[0]]


def kinds(messages: list[pb.ProcessingResponse]) -> list[str]:
    return [message.WhichOneof("response") or "" for message in messages]


def streamed(message: pb.ProcessingResponse) -> pb.StreamedBodyResponse:
    return message.request_body.response.body_mutation.streamed_response


def opened(rules: Rules | None = None, **headers: Any) -> Exchange:
    exchange = Exchange(steering(rules=rules))
    first = exchange.receive(request_headers(mode=FDS, **headers), 1.0)
    assert first == (None, False), "the headers are answered with the decision only"
    return exchange


def sent(
    body: bytes, cuts: tuple[int, ...] = (), *, trailers: bool = False, empty_end: bool = False
) -> list[pb.ProcessingResponse]:
    """What is answered to a body cut at these places, with its end in the last piece, after it, or in trailers."""
    exchange = opened()
    pieces = [body[a:b] for a, b in pairwise((0, *sorted(cuts), len(body)))]
    for piece in pieces[:-1]:
        assert exchange.receive(request_body(piece, end=False), 1.0) == (None, False)
    if not (empty_end or trailers):
        return answers(exchange.receive(request_body(pieces[-1]), 1.0))
    assert exchange.receive(request_body(pieces[-1], end=False), 1.0) == (None, False)
    return answers(exchange.receive(TRAILERS if trailers else request_body(b""), 1.0))


def test_headers_come_first_and_carry_the_decision_and_removals() -> None:
    exchange = opened(x_gateway_destination_endpoint="127.0.0.1:9901", x_prefiller_host_port="10.9.9.9:1")
    first, *rest = answers(exchange.receive(request_body(chat()), 1.0))
    assert kinds([first, *rest]) == ["request_headers", "request_body"]
    assert metadata_destination(first) == set_headers(first)[DESTINATION] != ""
    removed = first.request_headers.response.header_mutation.remove_headers
    assert {DESTINATION, "x-prefiller-host-port"} <= set(removed)
    assert exchange.outcome == "steered"
    assert all(not reply.HasField("dynamic_metadata") for reply in rest)


@pytest.mark.parametrize(
    ("size", "pieces"), [(0, 1), (1, 1), (61_999, 1), (62_000, 1), (62_001, 2), (65_536, 2), (2**20, 17)]
)
@pytest.mark.parametrize("trailers", [False, True])
def test_bodies_go_on_in_pieces_of_at_most_62000_bytes(size: int, pieces: int, trailers: bool) -> None:
    body = random.Random(1).randbytes(size)
    first, *rest = sent(body, trailers=trailers)
    assert first.WhichOneof("response") == "request_headers"
    if trailers:
        assert rest.pop().WhichOneof("response") == "request_trailers"
    assert len(rest) == (0 if trailers and not size else pieces)
    bodies = [streamed(reply) for reply in rest]
    assert b"".join(each.body for each in bodies) == body
    assert [each.end_of_stream for each in bodies] == [False] * (len(rest) - 1) + [not trailers] * bool(rest)


@examples(20)
@given(st.data())
def test_bodies_cut_anywhere_go_on_to_the_byte_and_end_once(data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=300)) * data.draw(st.integers(1, 400))
    cuts = tuple(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    trailers, empty_end = data.draw(st.booleans()), data.draw(st.booleans())
    _, *rest = sent(body, cuts, trailers=trailers, empty_end=empty_end)
    pieces = [streamed(reply) for reply in rest if reply.WhichOneof("response") == "request_body"]
    assert b"".join(piece.body for piece in pieces) == body
    assert max((len(piece.body) for piece in pieces), default=0) <= 62_000
    ends = [piece.end_of_stream for piece in pieces]
    assert sum(ends) == (not trailers)
    assert kinds(rest)[-1:] == (["request_trailers"] if trailers else ["request_body"])


def test_an_end_that_is_told_twice_is_answered_once() -> None:
    exchange = opened()
    answers(exchange.receive(request_body(chat()), 1.0))
    assert exchange.receive(request_body(b""), 1.0) == (None, False)
    assert exchange.receive(request_body(chat()), 1.0) == (None, False)
    assert exchange.state == DECIDED


def test_a_request_of_headers_and_trailers_alone_is_decided() -> None:
    exchange = opened()
    first, last = answers(exchange.receive(TRAILERS, 1.0))
    assert kinds([first, last]) == ["request_headers", "request_trailers"]
    assert set_headers(first)[DESTINATION]


def test_a_request_without_a_body_is_decided_at_its_headers() -> None:
    exchange = Exchange(steering())
    reply = exchange.receive(request_headers("/v1/models", end=True, method="GET", mode=FDS), 1.0)
    assert isinstance(reply[0], bytes)
    assert set_headers(pb.ProcessingResponse.FromString(reply[0]))[DESTINATION]


def test_a_body_over_the_limit_is_413_as_soon_as_it_is_over_and_forgotten() -> None:
    exchange = opened(Rules(body=100_000))
    assert exchange.receive(request_body(b"x" * 60_000, end=False), 1.0)[0] is None
    reply = exchange.receive(request_body(b"x" * 60_000, end=False), 1.0)
    assert isinstance(reply[0], bytes)
    assert pb.ProcessingResponse.FromString(reply[0]).immediate_response.status.code == 413
    assert exchange.rescue() == ()
    assert exchange.receive(request_body(b"x" * 60_000), 1.0) == (None, False)


def test_bodies_that_are_held_together_have_a_bound_and_leave_room_when_they_go() -> None:
    mind = steering(rules=Rules(bodies=100_000))
    talks = [Exchange(mind) for _ in range(3)]
    for exchange in talks:
        exchange.receive(request_headers(mode=FDS), 1.0)
    first, second, third = talks
    assert first.receive(request_body(b"x" * 60_000, end=False), 1.0)[0] is None
    reply = second.receive(request_body(b"x" * 60_000, end=False), 1.0)
    assert isinstance(reply[0], bytes)
    assert pb.ProcessingResponse.FromString(reply[0]).immediate_response.status.code == 503
    assert (second.outcome, second.why, mind.shelf.size) == ("no_candidate", "bodies", 60_000)
    first.end(2.0)
    second.end(2.0)
    assert mind.shelf.size == 0
    answers(third.receive(request_body(b"x" * 60_000), 3.0))
    assert mind.shelf.size == 0


def test_a_body_that_cant_be_read_goes_on_or_is_400_as_configured() -> None:
    exchange = opened()
    first, piece = answers(exchange.receive(request_body(b"{"), 1.0))
    assert set_headers(first)[DESTINATION]
    assert streamed(piece).body == b"{"
    strict = opened(Rules(unreadable_passes=False))
    reply = strict.receive(request_body(b"{"), 1.0)
    assert isinstance(reply[0], bytes)
    assert pb.ProcessingResponse.FromString(reply[0]).immediate_response.status.code == 400


def test_a_compressed_body_is_read_and_goes_on_as_it_came() -> None:
    packed = gzip.compress(json.dumps(chat("hello " * 500)).encode())
    exchange = opened(content_encoding="gzip")
    _, piece = answers(exchange.receive(request_body(packed), 1.0))
    assert exchange.outcome == "steered"
    assert streamed(piece).body == packed


def test_a_body_that_is_rewritten_tells_its_new_length() -> None:
    exchange = opened(Rules(include_usage=True))
    first, piece = answers(exchange.receive(request_body(chat(stream=True)), 1.0))
    body = streamed(piece).body
    assert json.loads(body)["stream_options"] == {"include_usage": True}
    assert set_headers(first)["content-length"] == str(len(body))


def test_what_was_taken_is_given_back_where_the_gateway_fails() -> None:
    exchange = opened()
    exchange.receive(request_body(b"abc", end=False), 1.0)
    exchange.receive(request_body(b"def", end=False), 1.0)
    assert exchange.state == BODY
    first, piece = [pb.ProcessingResponse.FromString(data) for data in exchange.rescue()]
    assert not first.request_headers.response.header_mutation.set_headers
    assert (streamed(piece).body, streamed(piece).end_of_stream) == (b"abcdef", False)
    assert exchange.rescue() == ()


def test_no_replica_is_503_with_a_time_to_try_again() -> None:
    exchange = Exchange(steering(replicas=0))
    exchange.receive(request_headers(mode=FDS), 1.0)
    reply = exchange.receive(request_body(chat()), 1.0)
    assert isinstance(reply[0], bytes)
    immediate = pb.ProcessingResponse.FromString(reply[0]).immediate_response
    assert immediate.status.code == 503
    assert {option.header.key for option in immediate.headers.set_headers} == {"content-type", "retry-after"}


def test_a_response_in_full_duplex_is_echoed_and_keeps_the_stream_open() -> None:
    """Were the stream closed, what Envoy has sent by then would be lost: it keeps no copy."""
    exchange = Exchange(steering())
    first = pb.ProcessingRequest.FromString(request_headers(mode=FDS))
    first.protocol_config.response_body_mode = FDS
    exchange.receive(first.SerializeToString(), 1.0)
    assert not exchange.receive(request_body(chat()), 1.0)[1]
    assert exchange.holding
    told = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    assert not exchange.receive(told.SerializeToString(), 1.0)[1]
    piece = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"data", end_of_stream=True))
    reply = exchange.receive(piece.SerializeToString(), 1.0)
    assert isinstance(reply[0], bytes)
    back = pb.ProcessingResponse.FromString(reply[0])
    assert back.response_body.response.body_mutation.streamed_response.body == b"data"
    assert not exchange.holding


def test_held_requests_wait_in_silence_and_go_on_whole() -> None:
    """Envoy has no clock for a body in full duplex, so it is not asked to wait."""
    bench = Bench()
    bench.busy(5.0)
    exchange = Exchange(bench.mind)
    exchange.due = lambda _now: None
    exchange.receive(request_headers(mode=FDS), 1.0)
    reply = exchange.receive(request_body(chat(SECOND)), 1.0)
    assert (reply[0], exchange.state) == (None, HELD)
    assert exchange.receive(request_body(b""), 1.0) == (None, False)
    _, piece = answers(exchange.let_go(2.0))
    assert json.loads(streamed(piece).body) == chat(SECOND)
