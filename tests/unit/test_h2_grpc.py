"""gRPC over the codec: messages cut anywhere, statuses, deadlines, and what is no gRPC."""

import pytest

from extproc.io.transports.h2 import frames, grpc
from extproc.io.transports.h2.errors import NO_ERROR
from extproc.io.transports.h2.headers import Head
from tests.unit.h2_world import POST, World, block, data, headers, message, request

Frame = tuple[int, int, int, bytes]


def trailers(said: list[Frame]) -> bytes:
    """The last block."""
    return [payload for kind, _, _, payload in said if kind == frames.HEADERS][-1]


def ask(path: bytes, payload: bytes) -> list[Frame]:
    return World(most=100).say(headers(1, request(path)) + data(1, payload, end=True))


def test_a_stream_is_answered_message_by_message_and_ended_with_ok() -> None:
    world = World()
    said = world.say(headers(1) + data(1, message(b"a")) + data(1, message(b"")) + data(1, b"", end=True))
    assert [(kind, flags, payload) for kind, flags, _, payload in said] == [
        (frames.HEADERS, 4, b"\x20\x88\0\x0ccontent-type\x10application/grpc"),
        (frames.DATA, 0, b"\0\0\0\0\x01a"),
        (frames.DATA, 0, b"\0\0\0\0\0"),
        (frames.HEADERS, 5, b"\0\x0bgrpc-status\x010"),
    ]
    assert world.events == [("message", b"a"), ("message", b""), ("half_closed",), ("over",)]


def test_messages_may_be_cut_and_joined_anywhere() -> None:
    whole = message(b"first") + message(b"") + message(b"x" * 300) + message(b"last")
    for cut in range(len(whole) + 1):
        world = World()
        world.say(headers(1) + data(1, whole[:cut]) + data(1, whole[cut:], end=True))
        got = [event[1] for event in world.events if event[0] == "message"]
        assert got == [b"first", b"", b"x" * 300, b"last"], f"cut at {cut}"


def test_one_message_is_answered_with_one() -> None:
    said = ask(b"/test/Once", message(b"hello"))
    assert (frames.DATA, 0, 1, message(b"HELLO")) in said
    assert trailers(said) == block((b"grpc-status", b"0"))


@pytest.mark.parametrize(
    ("path", "payload", "status", "word"),
    [
        (b"/test/None", b"", b"12", b"unknown method"),
        (b"/test/Once", b"", b"12", b"missing"),
        (b"/test/Once", message(b"a") + message(b"b"), b"12", b"one message"),
        (b"/test/Echo", message(b"a", flag=1), b"12", b"identity"),
        (b"/test/Echo", message(b"x" * 101), b"8", b"at most 100"),
        (b"/test/Echo", message(b"whole")[:-1], b"13", b"within a message"),
    ],
)
def test_what_can_t_be_served_is_told_by_a_status(
    path: bytes, payload: bytes, status: bytes, word: bytes
) -> None:
    block_of = trailers(ask(path, payload))
    assert block((b"grpc-status", status)) in block_of
    assert word in block_of


def test_messages_before_one_that_is_refused_are_served() -> None:
    world = World(most=10)
    world.say(headers(1) + data(1, message(b"good") + message(b"x" * 11) + message(b"never")))
    assert world.events == [("message", b"good"), ("over",)]
    assert world.shared.refusals.counts == {"message": 1}


def test_a_stream_that_is_ended_early_asks_for_no_more_and_ignores_what_is_on_its_way() -> None:
    world = World(most=10)
    assert world.reset(headers(1) + data(1, message(b"x" * 11))) == {1: NO_ERROR}
    assert world.reset(data(1, b"x" * 100) + data(1, b"", end=True)) == {}


def test_a_compressed_message_is_refused_with_what_is_taken() -> None:
    assert block((b"grpc-accept-encoding", b"identity")) in trailers(ask(b"/test/Echo", message(b"a", 1)))


def test_texts_of_statuses_are_percent_encoded() -> None:
    assert grpc.trailers(5, "50 % of ä\n") == block(
        (b"grpc-status", b"5"), (b"grpc-message", b"50 %25 of %C3%A4%0A")
    )


@pytest.mark.parametrize(
    ("method", "kind", "status"),
    [
        (b"GET", b"application/grpc", b"405"),
        (b"POST", b"text/plain", b"415"),
        (b"POST", b"application/grpcx", b"415"),
    ],
)
def test_what_is_no_grpc_is_answered_in_plain_http(method: bytes, kind: bytes, status: bytes) -> None:
    changed = {b":method": method, b"content-type": kind}
    raw = block(*((name, changed.get(name, value)) for name, value in POST))
    said = World().say(headers(1, raw) + data(1, b"body", end=True))
    assert block((b":status", status)) in said[0][3]
    assert said[-1][:3] == (frames.DATA, frames.END_STREAM, 1)
    assert b"speaks gRPC" in said[1][3]


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"Application/gRPC;a=b"])
def test_every_content_type_of_grpc_is_taken(kind: bytes) -> None:
    raw = block(*((name, kind if name == b"content-type" else value) for name, value in POST))
    world = World()
    world.say(headers(1, raw) + data(1, message(b"a")))
    assert world.events == [("message", b"a")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"2H", 7200.0), (b"3M", 180.0), (b"10S", 10.0), (b"250m", 0.25), (b"5u", 5e-6), (b"7n", 7e-9)],
)
def test_a_deadline_is_read(text: bytes, seconds: float) -> None:
    read = grpc.ask(Head([*POST, (b"grpc-timeout", text)]))
    assert read.timeout == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"123456789S", b"S", b"1s", b"-1S", b"", b"1.5S"])
def test_a_deadline_that_can_t_be_read_ends_its_call(text: bytes) -> None:
    world = World()
    said = trailers(world.say(headers(1, request(grpc_timeout=text))))
    assert block((b"grpc-status", b"13")) in said
    assert b"grpc-timeout" in said
    assert world.handlers == []
    assert world.alive()


def test_a_call_is_ended_at_its_deadline_and_only_once() -> None:
    world = World()
    world.say(headers(1, request(grpc_timeout=b"500m")))
    ((seconds, expire),) = world.timers
    assert seconds == 0.5
    expire()
    assert block((b"grpc-status", b"4")) in trailers(world.say(b""))
    expire()
    assert world.say(b"") == []
    assert world.events == [("over",)]


def test_a_handler_that_raises_ends_its_call_with_internal() -> None:
    world = World()
    world.say(headers(1) + headers(3))

    def broken(_data: bytes) -> None:
        raise RuntimeError("a secret")

    world.handlers[0].message = broken  # type: ignore[method-assign]
    said = world.say(data(1, message(b"a")) + data(3, message(b"b")))
    assert any(block((b"grpc-status", b"13")) in payload for _, _, number, payload in said if number == 1)
    assert not any(b"secret" in payload for _, _, _, payload in said)
    assert world.events == [("over",), ("message", b"b")]
