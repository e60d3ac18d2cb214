"""Windows both ways: what waits, what is given back, and what is held back when too much is unfinished."""

import struct

import pytest

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.connection import Connection
from extproc.io.transports.h2.errors import ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, NO_ERROR
from extproc.io.transports.h2.flow import CONNECTION_WINDOW, STREAM_WINDOW
from extproc.io.transports.h2.limits import Limits
from tests.unit.h2_world import World, data, frame, headers, message, request, settings, split

Frame = tuple[int, int, int, bytes]
PIECE = frames.FRAME


def sizes(said: list[Frame], stream: int = 1) -> list[int]:
    return [len(payload) for kind, _, number, payload in said if kind == frames.DATA and number == stream]


def given(said: list[Frame]) -> dict[int, int]:
    """Stream -> bytes given back to the peer's window."""
    made: dict[int, int] = {}
    for kind, _, stream, payload in said:
        if kind == frames.WINDOW_UPDATE:
            made[stream] = made.get(stream, 0) + struct.unpack(">I", payload)[0]
    return made


def update(stream: int, more: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def pieces(stream: int, payload: bytes) -> bytes:
    return b"".join(data(stream, payload[at : at + PIECE]) for at in range(0, len(payload), PIECE))


# -- what we send ------------------------------------------------------------------------------------------


def test_an_answer_waits_for_the_stream_window_and_goes_on_with_it() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 3)))
    assert sizes(world.say(headers(1) + data(1, message(b"hello")))) == [3]  # of 10 bytes
    assert sizes(world.say(update(1, 2))) == [2]
    assert sizes(world.say(update(1, 100))) == [5]


def test_a_window_below_zero_takes_what_it_owes_first() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 3)) + headers(1) + data(1, message(b"hello")))
    assert sizes(world.say(settings((frames.INITIAL_WINDOW_SIZE, 0)))) == []  # now -3
    assert sizes(world.say(update(1, 3))) == []
    assert sizes(world.say(update(1, 1))) == [1]
    assert sizes(world.say(settings((frames.INITIAL_WINDOW_SIZE, 2)))) == [2]


def test_an_answer_waits_for_the_connection_window() -> None:
    world = World(most=2**20)
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 2**20)))
    said = world.say(headers(1) + pieces(1, message(b"x" * 99_995)))
    assert sizes(said) == [16384, 16384, 16384, 16383]  # 65,535 in all
    assert sizes(world.say(update(0, 100_000))) == [16384, 16384, 1697]


def test_the_end_comes_after_all_that_waits_and_the_stream_is_gone() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 4)) + headers(1) + data(1, message(b"hello"), end=True))
    assert world.events[-1] == ("over",)
    assert 1 in world.connection.streams.open
    said = world.say(update(1, 100))
    assert [(kind, flags) for kind, flags, _, _ in said] == [(frames.DATA, 0), (frames.HEADERS, 5)]
    assert not world.connection.streams.open


def test_waiting_streams_take_turns() -> None:
    world = World()
    world.say(update(0, 2**20))
    for number in (1, 3):
        world.say(headers(number) + pieces(number, message(b"x" * 200_000)))
    said = world.say(settings((frames.INITIAL_WINDOW_SIZE, 2**20)))
    assert [number for kind, _, number, _ in said if kind == frames.DATA][:6] == [1, 3, 1, 3, 1, 3]


def test_larger_frames_are_sent_only_once_the_peer_takes_them() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 2**20), (frames.MAX_FRAME_SIZE, 50_000)))
    assert sizes(world.say(headers(1) + pieces(1, message(b"x" * 45_000)))) == [45_005]


def test_a_reset_forgets_what_waits() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 1)) + headers(1) + data(1, message(b"x" * 100)))
    world.say(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert world.connection._outflow.queued == 0
    assert world.say(update(0, 100)) == []


def test_a_peer_that_never_reads_ends_its_connection() -> None:
    world = World(Limits(output=2**16))
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 0)))
    one = headers(1) + pieces(1, message(b"x" * 40_000))
    assert world.goaway(one) is None
    assert world.goaway(pieces(1, message(b"x" * 40_000))) == ENHANCE_YOUR_CALM
    assert world.shared.refusals.counts["output"] == 1


# -- what comes --------------------------------------------------------------------------------------------


def test_windows_are_given_back_when_half_is_used_and_for_padding_too() -> None:
    world = World(most=2**22)
    said = world.say(headers(1) + pieces(1, b"\0\0\x10\0\0" + b"x" * (STREAM_WINDOW // 2 - 5)))
    assert given(said) == {1: STREAM_WINDOW // 2}
    padded = frame(frames.DATA, frames.PADDED, 3, b"\xfe" + b"\0" * 255)
    said = World(most=2**22).say(headers(3) + padded * (STREAM_WINDOW // 512))
    assert given(said) == {3: STREAM_WINDOW // 2}


def test_the_connection_window_is_given_back_for_streams_that_are_gone() -> None:
    world = World()
    world.say(headers(1, request(b"/test/None")))  # refused at once: RST_STREAM NO_ERROR
    said = world.say(data(1, b"x" * PIECE) * (CONNECTION_WINDOW // 2 // PIECE))
    assert given(said) == {0: CONNECTION_WINDOW // 2}


def test_bytes_above_a_stream_window_end_the_stream() -> None:
    world = World(Limits(connection_buffered=200_000, buffered=2**30), most=2**22)
    begin = b"\0\0\x20\0\0"
    world.say(headers(1) + pieces(1, begin + b"x" * (STREAM_WINDOW // 2 - 5)))
    # The second stream's window stays shut, and its client goes on all the same: 262,149 bytes.
    assert world.reset(headers(3) + data(3, begin) + data(3, b"x" * PIECE) * 16) == {3: FLOW_CONTROL_ERROR}


def test_unfinished_messages_above_the_budget_keep_windows_shut_but_for_the_oldest() -> None:
    limits = Limits(connection_buffered=200_000, buffered=2**30)
    world = World(limits, most=2**22)
    begin, half = struct.pack(">BI", 0, 400_000), STREAM_WINDOW // 2
    assert given(world.say(headers(1) + pieces(1, begin + b"x" * (half - 5)))) == {1: half}
    assert given(world.say(headers(3) + pieces(3, begin + b"x" * (half - 5)))) == {}  # 262,144 held
    assert given(world.say(pieces(1, b"x" * half))) == {1: half}  # the oldest goes on
    said = world.say(pieces(1, b"x" * (400_000 + 5 - 2 * half)))  # its message is whole
    assert given(said).get(3) == half
    assert world.events[0] == ("message", b"x" * 400_000)
    assert world.shared.budget.held == half


def test_twice_the_budget_ends_the_stream_that_would_pass_it() -> None:
    world = World(Limits(connection_buffered=100_000, buffered=2**30), most=2**22)
    begin = struct.pack(">BI", 0, 400_000)
    world.say(headers(1) + pieces(1, begin + b"x" * 140_000))  # the oldest: it may
    assert world.reset(headers(3) + pieces(3, begin + b"x" * 60_000)) == {3: ENHANCE_YOUR_CALM}
    assert world.shared.refusals.counts["buffered"] == 1
    assert world.shared.budget.held == 140_005


def test_streams_ended_for_the_budget_are_none_of_the_resets_that_a_peer_is_charged_for() -> None:
    world = World(Limits(connection_buffered=100_000, buffered=2**30, resets=0.1), most=2**22)  # one at once
    begin = struct.pack(">BI", 0, 400_000)
    world.say(headers(1) + pieces(1, begin + b"x" * 140_000))
    for number in range(3, 23, 2):
        assert world.reset(headers(number) + pieces(number, begin + b"x" * 60_000)) == {
            number: ENHANCE_YOUR_CALM
        }
    assert world.shared.refusals.counts == {"buffered": 10}


def test_room_that_one_connection_makes_lets_another_go_on() -> None:
    limits = Limits(connection_buffered=2**30, buffered=300_000)
    world, half = World(limits, most=2**22), STREAM_WINDOW // 2
    told: list[bool] = []
    other = Connection(world.shared, lambda: told.append(True))
    other.receive(frames.PREFACE + settings() + frames.SETTINGS_ACK)
    begin = struct.pack(">BI", 0, 400_000)
    world.say(headers(1) + pieces(1, begin + b"x" * (200_000 - 5)))
    other.receive(headers(1) + pieces(1, begin + b"x" * (half - 5)))  # its oldest: it may
    other.take()
    other.receive(headers(3) + pieces(3, begin + b"x" * (half - 5)))
    assert given(split(other.take())) == {}
    other.receive(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert given(split(other.take())) == {3: half}, "the oldest now, and not let on"
    other.receive(headers(5) + pieces(5, begin + b"x" * (half - 5)))
    assert given(split(other.take())) == {}
    assert told == []
    world.say(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))  # 262,144 are held now, below the budget
    assert told == [True]
    assert given(split(other.take())) == {5: half}


@pytest.mark.parametrize("how", ["reset", "lost", "refused"])
def test_whatever_ends_a_stream_frees_what_it_held(how: str) -> None:
    world = World(most=2**20)
    world.say(headers(1) + pieces(1, struct.pack(">BI", 0, 2**20) + b"x" * 70_000))
    assert world.shared.budget.held == 70_005
    if how == "reset":
        world.say(frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    elif how == "lost":
        world.connection.lost()
    else:
        world.handlers[0].finish(13, "no")
    assert world.shared.budget.held == 0
    assert world.handlers[0].times_over == 1


# -- the end -----------------------------------------------------------------------------------------------


def test_a_drain_serves_what_is_on_its_way_then_closes_after_the_last_stream() -> None:
    world = World()
    world.say(headers(1))
    world.connection.drain()
    first, ping = world.say(b"")
    assert (first[0], struct.unpack_from(">II", first[3])) == (frames.GOAWAY, (2**31 - 1, NO_ERROR))
    world.say(headers(3) + data(3, message(b"on its way")))
    assert world.events == [("message", b"on its way")]
    ((kind, _, _, payload),) = world.say(frame(frames.PING, 1, 0, ping[3]))
    assert (kind, struct.unpack_from(">II", payload)) == (frames.GOAWAY, (3, NO_ERROR))
    world.say(headers(5) + data(5, message(b"too late")))
    assert len(world.handlers) == 2
    world.say(data(1, b"", end=True))
    assert not world.connection.closed
    world.say(data(3, b"", end=True))
    assert world.connection.closed


def test_a_client_that_says_goodbye_is_served_to_its_last_stream() -> None:
    world = World()
    world.say(headers(1) + frame(frames.GOAWAY, 0, 0, b"\0" * 8))
    assert not world.connection.closed
    said = world.say(data(1, message(b"still"), end=True))
    assert sizes(said) == [10]
    assert world.connection.closed
