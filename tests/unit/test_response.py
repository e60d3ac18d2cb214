"""Response bodies in every mode Envoy has: read for their usage, passed on to the byte."""

import json
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exchange import Exchange
from extproc.core.steering import Rules, Steering
from extproc.core.usage.record import Usage
from extproc.pb import ext_proc_pb2 as pb
from tests.examples import examples
from tests.unit.messages import Mode, answer, chat, request_body, request_headers
from tests.unit.test_ending import mind, trailers

USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
WHOLE = json.dumps({"choices": [{"index": 0, "message": {"content": "hi"}}], "usage": USAGE}).encode()
RIGHT = Usage(100, 7, 64)
KINDS = {"json": "application/json", "events": "text/event-stream; charset=utf-8"}


def events(usage: bool = True) -> bytes:
    """Three chunks of a chat, the usage, and the end."""
    chunks: list[object] = [
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason}]}
        for reason in (None, None, "stop")
    ]
    if usage:
        chunks.append({"choices": [], "usage": USAGE})
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


BODIES = {"json": WHOLE, "events": events()}


def asked(
    mode: Mode.BodySendMode, steering: Steering | None = None, *, stream: bool = True, end: bool = False
) -> Exchange:
    """An exchange whose response is to come in this body mode."""
    first = pb.ProcessingRequest.FromString(request_headers(end=end))
    first.protocol_config.MergeFrom(pb.ProtocolConfiguration(response_body_mode=mode))
    exchange = Exchange(steering or mind())
    exchange.receive(first.SerializeToString(), 1.0)
    if not end:
        exchange.receive(request_body(chat(stream=stream)), 1.0)
    return exchange


def begin(exchange: Exchange, kind: str = "json", status: str = "200", **more: str) -> None:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    pairs = {":status": status, "content-type": KINDS[kind], **more}
    for key, value in pairs.items():
        message.response_headers.headers.headers.add(key=key.replace("_", "-"), raw_value=value.encode())
    reply = exchange.receive(message.SerializeToString(), 1.0)
    assert answer(reply[0]).WhichOneof("response") == "response_headers"


def piece(
    exchange: Exchange, data: bytes, *, end: bool = False, now: float = 2.0
) -> list[pb.ProcessingResponse]:
    message = pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))
    data_out = exchange.receive(message.SerializeToString(), now)[0]
    parts = data_out if isinstance(data_out, tuple) else () if data_out is None else (data_out,)
    return [answer(part) for part in parts]


def echoed(replies: Iterable[pb.ProcessingResponse]) -> tuple[bytes, list[bool]]:
    """The bytes sent back, and where the end is."""
    streamed = [reply.response_body.response.body_mutation.streamed_response for reply in replies]
    return b"".join(part.body for part in streamed), [part.end_of_stream for part in streamed]


def found(exchange: Exchange) -> tuple[str, Usage | None, str]:
    ending = exchange.ending
    assert ending is not None
    usage = ending.usage and Usage(ending.usage.input, ending.usage.output, ending.usage.cached)
    return ending.by, usage, ending.verdict


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.BUFFERED_PARTIAL, Mode.STREAMED])
def test_bodies_that_envoy_keeps_are_read_and_answered_go_on(mode: Mode.BodySendMode, kind: str) -> None:
    exchange = asked(mode)
    begin(exchange, kind)
    (reply,) = piece(exchange, BODIES[kind], end=True)
    assert reply.WhichOneof("response") == "response_body"
    assert not reply.response_body.HasField("response")
    assert found(exchange) == ("complete", RIGHT, "complete")


@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 400), max_size=12), st.booleans())
@examples(30)
def test_pieces_of_any_size_are_sent_back_to_the_byte_and_the_end_once(
    kind: str, cuts: list[int], empty_end: bool
) -> None:
    exchange, body = asked(Mode.FULL_DUPLEX_STREAMED), BODIES[kind]
    begin(exchange, kind)
    places = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    pieces = [body[a:b] for a, b in pairwise(places)] + ([b""] if empty_end else [])
    replies = []
    for number, data in enumerate(pieces):
        replies += piece(exchange, data, end=number == len(pieces) - 1)
    got, ends = echoed(replies)
    assert got == body
    assert ends == [False] * (len(ends) - 1) + [True]
    assert found(exchange) == ("complete", RIGHT, "complete")


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 124_000, 1_000_000])
@pytest.mark.parametrize("end", [False, True])
def test_a_large_piece_goes_back_in_pieces_of_at_most_62000_bytes(size: int, end: bool) -> None:
    exchange, data = asked(Mode.FULL_DUPLEX_STREAMED), random.Random(size).randbytes(size)
    begin(exchange)
    replies = piece(exchange, data, end=end)
    got, ends = echoed(replies)
    assert got == data
    assert ends == [False] * (len(ends) - 1) + [end]
    sizes = [len(r.response_body.response.body_mutation.streamed_response.body) for r in replies]
    assert max(sizes) <= 62_000
    assert len(sizes) == max(1, -(-size // 62_000))


def test_an_end_that_envoy_delivers_twice_is_sent_back_once() -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED)
    begin(exchange)
    piece(exchange, WHOLE, end=True)
    assert piece(exchange, WHOLE, end=True) == []
    assert found(exchange) == ("complete", RIGHT, "complete")


@pytest.mark.parametrize("mode", [Mode.STREAMED, Mode.FULL_DUPLEX_STREAMED])
def test_a_body_of_which_all_bytes_came_is_whole_although_its_end_is_still_to_be_told(
    mode: Mode.BodySendMode,
) -> None:
    """A client that knows the length may have left by then."""
    exchange = asked(mode)
    begin(exchange, content_length=str(len(WHOLE)))
    piece(exchange, WHOLE[:-1])
    assert found(exchange)[0] == "unknown"
    piece(exchange, WHOLE[-1:])
    assert found(exchange) == ("complete", RIGHT, "complete")
    (reply,) = piece(exchange, b"", end=True)
    if mode == Mode.FULL_DUPLEX_STREAMED:
        assert echoed([reply]) == (b"", [True])


@pytest.mark.parametrize("length", ["", "-1", "5x", "0", "1", "9" * 30, "\u0663"])
def test_a_length_that_is_wrong_costs_usage_at_most(length: str) -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED)
    begin(exchange, content_length=length)
    got, ends = echoed([*piece(exchange, WHOLE[:9]), *piece(exchange, WHOLE[9:], end=True)])
    assert (got, ends) == (WHOLE, [False, True])
    assert found(exchange)[1] in (None, RIGHT)


def test_trailers_end_a_body_that_has_no_end_of_its_own() -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED)
    begin(exchange)
    piece(exchange, WHOLE)
    reply = exchange.receive(trailers(served="10.0.0.1:8000").SerializeToString(), 2.0)
    assert answer(reply[0]).WhichOneof("response") == "response_trailers"
    assert found(exchange) == ("complete", RIGHT, "complete")
    assert exchange.ending is not None
    assert exchange.ending.served == "10.0.0.1:8000"


def test_a_body_that_breaks_off_gives_no_usage_although_it_was_told_already() -> None:
    exchange = asked(Mode.STREAMED)
    begin(exchange, "events")
    piece(exchange, events().removesuffix(b"data: [DONE]\n\n"))
    exchange.end(3.0)
    assert found(exchange) == ("unknown", None, "absent")


def test_a_client_that_leaves_at_the_streams_last_word_takes_no_usage_away() -> None:
    exchange = asked(Mode.STREAMED)
    begin(exchange, "events")
    piece(exchange, events())
    exchange.end(3.0)
    assert found(exchange) == ("unknown", RIGHT, "complete")


def test_an_end_without_the_streams_own_word_gives_no_usage() -> None:
    """A replica that dies may look like one that is done; what it counted until then is not the whole."""
    exchange = asked(Mode.STREAMED)
    begin(exchange, "events")
    piece(exchange, events().removesuffix(b"data: [DONE]\n\n"), end=True)
    assert found(exchange) == ("complete", None, "absent")


@pytest.mark.parametrize("status", ["400", "429", "503"])
def test_errors_give_no_usage_whatever_their_body_says(status: str) -> None:
    exchange = asked(Mode.STREAMED)
    begin(exchange, status=status)
    piece(exchange, WHOLE, end=True)
    assert found(exchange)[1] is None


@pytest.mark.parametrize(
    ("body", "more", "verdict"),
    [
        (b'{"usage": {"prompt_tok', {}, "garbled"),
        (b"\x1f\x8b garbage", {"content_encoding": "gzip"}, "failed"),
        (WHOLE, {"content_encoding": "rot13"}, "failed"),
        (WHOLE, {"content-type": "text/html"}, "absent"),
        (b"", {}, "absent"),
    ],
)
def test_what_cant_be_read_is_told_apart_in_the_counts(
    body: bytes, more: dict[str, str], verdict: str
) -> None:
    exchange = asked(Mode.STREAMED)
    begin(exchange, **more)
    piece(exchange, body, end=True)
    assert found(exchange) == ("complete", None, verdict)


@given(
    st.binary(max_size=300),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["", "gzip", "br", "zstd", "deflate"]),
)
def test_hostile_bodies_pass_unchanged_and_raise_nothing(body: bytes, kind: str, coding: str) -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED)
    begin(exchange, kind, content_encoding=coding)
    got, ends = echoed([*piece(exchange, body[:100]), *piece(exchange, body[100:], end=True)])
    assert got == body
    assert ends[-1]


@given(
    st.lists(
        st.sampled_from(["headers", "body", "end", "trailers", "trailers with usage", "request body"]),
        max_size=12,
    ),
    st.sampled_from([Mode.NONE, Mode.BUFFERED, Mode.STREAMED, Mode.FULL_DUPLEX_STREAMED]),
)
def test_messages_lost_doubled_or_out_of_order_give_the_right_usage_or_none(
    kinds: list[str], mode: Mode.BodySendMode
) -> None:
    steering = mind()
    exchange = asked(mode, steering)
    messages = {
        "trailers": trailers(),
        "trailers with usage": trailers(usage=(100, 7, 64)),
        "body": pb.ProcessingRequest(response_body=pb.HttpBody(body=WHOLE)),
        "end": pb.ProcessingRequest(response_body=pb.HttpBody(body=b"", end_of_stream=True)),
        "request body": pb.ProcessingRequest.FromString(request_body(chat("x"))),
    }
    for kind in kinds:
        if kind == "headers":
            begin(exchange)
        else:
            exchange.receive(messages[kind].SerializeToString(), 2.0)
    exchange.end(3.0)
    if exchange.ending is not None:
        assert found(exchange)[1] in (None, RIGHT)
    assert steering.ledger.tokens == 0


def test_the_first_of_two_records_counts_and_a_later_one_without_usage_takes_nothing_away() -> None:
    exchange = asked(Mode.NONE)
    for usage in ((100, 7, 64), (9, 9, 9), None):
        exchange.receive(trailers(usage=usage).SerializeToString(), 2.0)
    assert found(exchange) == ("complete", RIGHT, "complete")


def test_the_first_token_of_a_stream_is_seen_in_its_body() -> None:
    steering = mind(1)
    exchange = asked(Mode.STREAMED, steering)
    begin(exchange, "events")
    piece(exchange, b": ping\n\n", now=1.2)
    for now in (1.5, 1.7):
        piece(exchange, events(usage=False).partition(b"\n\n")[0] + b"\n\n", now=now)
    assert exchange.ending is not None
    assert exchange.ending.first_token == 1.5
    exchange.end(2.0)
    assert not steering.watched


def test_a_body_that_came_whole_says_nothing_of_its_first_token() -> None:
    exchange = asked(Mode.BUFFERED)
    begin(exchange, "events")
    piece(exchange, events(), end=True)
    assert exchange.ending is not None
    assert exchange.ending.first_token is None


def test_a_gateway_that_stops_waits_for_what_only_it_can_send_on() -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED)
    begin(exchange)
    waits = [exchange.holding]
    for data, end in ((WHOLE[:9], False), (WHOLE[9:], True)):
        piece(exchange, data, end=end)
        waits.append(exchange.holding)
    assert waits == [True, True, False]
    assert not asked(Mode.STREAMED).holding


def test_a_request_without_a_body_gets_its_response_back_too() -> None:
    exchange = asked(Mode.FULL_DUPLEX_STREAMED, end=True)
    begin(exchange)
    got, ends = echoed(piece(exchange, b'{"data": []}', end=True))
    assert (got, ends) == (b'{"data": []}', [True])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_a_stream_is_bounded_by_the_rule(kind: str) -> None:
    """16 MiB in one JSON string, and in one event: at most the bound of 4 KiB and some 400 bytes are kept."""
    steering = Steering(mind().pools, Rules(response_body=4096), random.Random(1))
    exchange = asked(Mode.STREAMED, steering)
    begin(exchange, kind)
    piece(exchange, b'{"x": "' if kind == "json" else b'data: {"x": "')
    for _ in range(16):
        piece(exchange, b"y" * 2**20)
        response = exchange.response
        assert response is not None
        assert response.held <= 4096 + 512


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 0}},
        {"prompt_tokens": 100, "completion_tokens": -20},
        {"prompt_tokens": 10**12, "completion_tokens": 20},
        {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 500}},
        {"prompt_tokens": "100", "completion_tokens": "20"},
    ],
)
def test_usage_with_a_count_beyond_belief_is_garbled_and_teaches_nothing(usage: dict[str, object]) -> None:
    """As of Envoy's records: one source must not believe what another does not."""
    exchange = asked(Mode.BUFFERED)
    begin(exchange)
    piece(exchange, json.dumps({"choices": [{"finish_reason": "stop"}], "usage": usage}).encode(), end=True)
    assert found(exchange) == ("complete", None, "garbled")
