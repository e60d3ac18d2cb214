"""What one peer can make a connection do at once: in proportion to what it sent, and in turns."""

import struct
from collections.abc import Iterator
from typing import Any

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.flow import STREAM_WINDOW, Outflow
from extproc.io.transports.h2.limits import Limits
from extproc.io.transports.h2.streams import ENDED, REMEMBERED, RESET, SKIPPED, Stream, Streams
from tests.unit.h2_world import World, data, frame, headers, message, settings


class Counting(Outflow):
    """Counts the streams that are looked at for something to send."""

    looks = 0

    def _may_send(self, stream: Stream) -> None:
        self.looks += 1
        super()._may_send(stream)


def blocked(count: int) -> tuple[Counting, list[Stream], list[bytes]]:
    """So many streams, each with three bytes that wait for its own window."""
    out: list[bytes] = []
    outflow = Counting(out, lambda _stream: None, 2**20)
    outflow.initial = 0
    streams = [Stream(2 * at + 1, 0, None) for at in range(count)]
    for stream in streams:
        outflow.data(stream, b"abc")
    return outflow, streams, out


def sent(out: list[bytes]) -> list[tuple[int, bytes]]:
    return [(struct.unpack_from(">I", raw, 5)[0], raw[9:]) for raw in out]


def test_a_part_that_has_to_wait_looks_at_its_own_stream_alone() -> None:
    outflow, _streams, out = blocked(500)
    assert outflow.looks == 500
    assert out == []
    assert outflow.queued == 1500


def test_room_on_the_connection_looks_at_no_stream_that_waits_for_its_own_window() -> None:
    outflow, _streams, _out = blocked(500)
    outflow.looks = 0
    for _ in range(100):
        outflow.widen(1)
    assert outflow.looks == 0


def test_room_on_one_stream_looks_at_that_one() -> None:
    outflow, streams, out = blocked(500)
    outflow.looks = 0
    outflow.widen_stream(streams[7], 2)
    assert sent(out) == [(15, b"ab")]
    assert outflow.looks <= 2  # when it got room, and after its frame


def test_streams_with_room_wait_in_order_for_the_connection_and_those_that_end_are_forgotten() -> None:
    outflow, streams, out = blocked(4)
    outflow.window = 0
    for stream in streams:
        outflow.widen_stream(stream, 3)
    outflow.forget(streams[1])
    outflow.widen(5)
    assert sent(out) == [(1, b"abc"), (5, b"ab")]
    outflow.widen(100)
    assert sent(out)[2:] == [(7, b"abc"), (5, b"c")]
    assert outflow.queued == 0


def test_windows_that_shrink_and_grow_again_send_everything_once() -> None:
    outflow, streams, out = blocked(3)
    opened = {stream.number: stream for stream in streams}
    outflow.window = 0
    for initial in (2, 0, 2, 1):
        outflow.resize(opened, initial)
    outflow.widen(100)
    assert sorted(sent(out)) == [(1, b"a"), (3, b"a"), (5, b"a")]
    outflow.resize(opened, 100)
    assert sorted(sent(out)[3:]) == [(1, b"bc"), (3, b"bc"), (5, b"bc")]


def test_a_frame_with_thousands_of_window_sizes_moves_the_windows_once() -> None:
    world = World()
    world.say(b"".join(headers(number) for number in range(1, 20, 2)))
    outflow, moved = world.connection._outflow, []
    resize = outflow.resize
    outflow.resize = lambda streams, initial: (moved.append(initial), resize(streams, initial))  # type: ignore
    pairs = [(frames.INITIAL_WINDOW_SIZE, value) for _ in range(1000) for value in (0, 70_000)]
    assert world.goaway(settings(*pairs)) is None
    assert moved == [70_000]


def test_a_wrong_value_ends_the_connection_even_where_a_good_one_follows() -> None:
    world = World()
    raw = settings((frames.INITIAL_WINDOW_SIZE, 2**31), (frames.INITIAL_WINDOW_SIZE, 1))
    assert world.goaway(raw) == 3  # FLOW_CONTROL_ERROR


def test_settings_are_acknowledged_before_what_they_let_go() -> None:
    world = World()
    world.say(settings((frames.INITIAL_WINDOW_SIZE, 0)) + headers(1) + data(1, message(b"hello")))
    said = world.say(settings((frames.INITIAL_WINDOW_SIZE, 1)))
    assert [kind for kind, _, _, _ in said] == [frames.SETTINGS, frames.DATA]


class _Unwalked(dict[int, Stream]):
    """Starved streams of which one may be taken, but which nobody walks."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("every starved stream was looked at")

    def items(self) -> Any:
        return iter(self)

    values = items


def test_a_message_that_is_whole_looks_at_no_starved_stream_while_there_is_no_room() -> None:
    world = World(Limits(connection_buffered=200_000, buffered=2**30), most=2**22)
    begin, half = struct.pack(">BI", 0, 400_000), STREAM_WINDOW // 2
    for number in (1, 3):  # 262,144 bytes held: above the limit, and 3 is not the oldest
        world.say(headers(number))
        for at in range(0, half, frames.FRAME):
            world.say(data(number, ((begin if not at else b"") + b"x" * frames.FRAME)[: frames.FRAME]))
    inflow = world.connection._inflow
    assert list(inflow._starved) == [3]
    inflow._starved = _Unwalked(inflow._starved)
    world.say(headers(5) + data(5, message(b"whole")[:-1]) + data(5, b"e"))
    assert not world.connection.closed, world.connection.fault
    assert world.events == [("message", b"whole")]
    assert 3 in inflow._starved


def ticking(seconds: float) -> World:
    """A world whose clock goes on by so much each time it is read."""
    world = World(limits=Limits(control=1e6))

    def clock() -> float:
        world.now += seconds
        return world.now

    world.connection._clock = clock
    return world


def behind(world: World) -> bool:
    return world.connection.behind


def pings(count: int) -> bytes:
    return b"".join(frame(frames.PING, 0, 0, b"%08d" % at) for at in range(count))


def pongs(said: list[Any]) -> list[int]:
    return [int(payload) for kind, _, _, payload in said if kind == frames.PING]


def test_a_turn_ends_after_its_time_and_the_rest_comes_in_order_in_the_next() -> None:
    world = ticking(1.0)  # every turn is over after its first 16 frames
    assert pongs(world.say(pings(40))) == list(range(16))
    assert behind(world)
    assert pongs(world.say(b"")) == list(range(16, 32))
    assert behind(world)
    assert pongs(world.say(pings(1)[:5])) == list(range(32, 40))
    assert not behind(world)
    assert pongs(world.say(pings(1)[5:])) == [0]


def test_a_turn_takes_all_that_fits_its_time() -> None:
    world = ticking(0.0)
    assert pongs(world.say(pings(1000))) == list(range(1000))
    assert not behind(world)


def test_a_connection_that_ended_has_no_next_turn() -> None:
    world = ticking(1.0)
    world.say(pings(40))
    world.connection.lost()
    assert world.say(pings(1)) == []
    assert not behind(world)


def test_how_a_stream_closed_is_remembered_of_the_last_4096_at_least_and_8192_at_most() -> None:
    streams = Streams()
    for number in range(1, 2 * 10_000, 2):
        streams.last = number
        streams.close(number, ENDED)
        streams.close(number, RESET)
        assert len(streams.closed) + len(streams._closed_before) <= 2 * REMEMBERED == 8192
    known = [number for number in range(1, 2 * 10_000, 2) if streams.state(number) != SKIPPED]
    assert len(known) >= REMEMBERED
    assert known == list(range(known[0], 2 * 10_000, 2)), "not the newest"
    assert {streams.state(number) for number in known} == {RESET}, "what came last counts"
