"""Messages of several frames: dealt with at once where all of them came, else one by one, with the same result."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import FRAME_SIZE_ERROR, NO_ERROR, PROTOCOL_ERROR
from extproc.io.transports.h2.flow import HALF
from tests.examples import examples
from tests.unit.h2_world import World, data, frame, headers, message, request

FULL = frames.FRAME


def begun(*streams: int, most: int = 2**20) -> World:
    world = World(most=most)
    for stream in streams or (1,):
        world.say(headers(stream, request(b"/test/Whole")))
    return world


def cut(stream: int, raw: bytes, size: int = FULL) -> list[bytes]:
    """DATA frames of at most `size` bytes that bring `raw`."""
    return [data(stream, raw[at : at + size]) for at in range(0, len(raw), size)]


def body(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def taken(world: World) -> list[bytes]:
    return [event[1] for event in world.events if event[0] == "message"]


def code(world: World, raw: bytes) -> int | None:
    """The code of the RST_STREAM that these bytes bring, if any."""
    return next(iter(world.reset(raw).values()), None)


@pytest.mark.parametrize("size", [FULL - 4, FULL, 2 * FULL - 5, 2 * FULL - 4, 40_000])
def test_a_message_of_several_frames_in_one_read_is_given_whole_and_never_held(size: int) -> None:
    world, sent, held = begun(), body(size), []
    count = world.connection._inflow.count
    world.connection._inflow.count = lambda stream, now: held.append(now) or count(stream, now)  # type: ignore
    world.say(b"".join(cut(1, message(sent))))
    assert taken(world) == [sent]
    assert held == [], "parts of a message that was there were held"


@pytest.mark.parametrize("gap", [0, 1, 8])
def test_a_full_frame_whose_header_ends_the_read_waits_for_its_payload(gap: int) -> None:
    world, sent = begun(), body(40_000)
    raw = b"".join(cut(1, message(sent)))
    world.say(raw[: 9 + gap])
    assert not world.connection.closed, world.connection.fault
    world.say(raw[9 + gap :])
    assert taken(world) == [sent]


def test_frames_of_two_streams_by_turns_are_put_together_apart() -> None:
    world, one, two = begun(1, 3), body(50_000, 1), body(50_000, 2)
    pairs = zip(cut(1, message(one)), cut(3, message(two)), strict=True)
    world.say(b"".join(first + second for first, second in pairs))
    assert sorted(taken(world)) == sorted([one, two])


def test_a_frame_that_also_begins_the_next_message_is_no_part_of_one_alone() -> None:
    world, one, two = begun(), body(20_000, 1), body(300, 2)
    world.say(b"".join(cut(1, message(one) + message(two))))
    assert taken(world) == [one, two]


def test_a_message_whose_last_frame_ends_the_stream_is_taken_and_ends_it() -> None:
    world, sent = begun(), body(20_000)
    first, last = message(sent)[:FULL], message(sent)[FULL:]
    world.say(data(1, first) + data(1, last, end=True))
    assert world.events == [("message", sent), ("half_closed",), ("over",)]


def test_a_frame_that_is_too_long_behind_a_full_one_is_found() -> None:
    raw = message(body(60_000))
    too_long = frame(frames.DATA, 0, 1, raw[FULL : 2 * FULL + 1])
    assert begun().goaway(data(1, raw[:FULL]) + too_long) == FRAME_SIZE_ERROR


def test_what_a_frame_of_another_kind_or_padding_says_behind_a_full_one_counts() -> None:
    raw = message(body(20_000))
    assert begun().goaway(data(1, raw[:FULL]) + frame(frames.PING, 0, 1, b"8 bytes.")) == PROTOCOL_ERROR
    padding = frame(frames.DATA, frames.PADDED, 1, b"\x05" + raw[FULL:] + bytes(5))
    world = begun()
    world.say(data(1, raw[:FULL]) + padding)
    assert taken(world) == [raw[5:]]


def test_a_compressed_message_and_one_above_the_limit_end_their_call_alone() -> None:
    for raw in (message(body(20_000), 1), message(body(20_000))):
        world = begun(most=19_999)
        assert code(world, b"".join(cut(1, raw))) == NO_ERROR
        assert taken(world) == []
        assert world.alive()


def test_a_fault_in_a_method_ends_its_call_alone() -> None:
    world = begun(1, 3)
    assert code(world, b"".join(cut(1, message(body(20_000) + b"fail")))) == NO_ERROR
    world.say(b"".join(cut(3, message(body(20_000)))))
    assert taken(world) == [body(20_000)]


def test_a_stream_that_is_not_open_gets_no_message() -> None:
    raw = b"".join(cut(3, message(body(20_000))))
    assert begun(1).goaway(raw) == PROTOCOL_ERROR
    world = begun(3)
    world.say(frame(frames.RST_STREAM, 0, 3, struct.pack(">I", 8)))
    world.reset(raw)
    assert taken(world) == []


def test_bodies_beyond_half_of_their_window_open_it_again() -> None:
    world, sent = begun(), body(60_000)
    raw = b"".join(cut(1, message(sent)))
    said = [part for _ in range(3) for part in world.say(raw)]
    more = [struct.unpack(">I", payload)[0] for kind, _, n, payload in said if (kind, n) == (8, 1)]
    assert taken(world) == [sent] * 3
    assert len(more) == 1
    assert more[0] >= HALF


@pytest.mark.parametrize("kind", [frames.DATA, frames.RST_STREAM])
def test_the_reserved_bit_before_a_streams_number_means_nothing(kind: int) -> None:
    world = begun()
    payload = message(b"a") if kind == frames.DATA else bytes(4)
    world.say(frame(kind, 0, 1 | 1 << 31, payload))
    assert world.events == ([("message", b"a")] if kind == frames.DATA else [("over",)])


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from((1, 3)), st.integers(0, 40_000)), max_size=5), st.integers(0, 10**6)
)
def test_cutting_reads_anywhere_changes_nothing(sizes: list[tuple[int, int]], seed: int) -> None:
    rng = random.Random(seed)
    parts = {stream: [] for stream in (1, 3)}  # type: dict[int, list[bytes]]
    for at, (stream, size) in enumerate(sizes):
        parts[stream] += cut(stream, message(body(size, at)), rng.choice((FULL, FULL, 5000)))
    order = [stream for stream, frames_ in parts.items() for _ in frames_]
    rng.shuffle(order)
    raw = b"".join(parts[stream].pop(0) for stream in order)
    whole, pieces = begun(1, 3), begun(1, 3)
    said, got, at = whole.say(raw), [], 0
    while at < len(raw):
        size = rng.choice((1, 9, 300, FULL, 3 * FULL))
        got += pieces.say(raw[at : at + size])
        at += size
    assert got == said
    assert pieces.events == whole.events
