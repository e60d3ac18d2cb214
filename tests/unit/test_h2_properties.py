"""Properties of the codec: cuts change nothing, damage never gets out, and a client nobody here wrote is served."""

import random
import struct

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given
from hypothesis import strategies as st

from extproc.io.transports.h2 import frames
from tests.examples import examples
from tests.unit.h2_world import POST, World, data, frame, headers, message, request
from tests.unit.h2_world import settings as setting

#: Pieces of conversations, right and wrong; a drawn list of them is what a peer says.
PIECES = [
    *(headers(n, end=end) for n in (1, 3, 5, 7) for end in (False, True)),
    *(headers(n, request(b"/test/Silent")) for n in (1, 9)),
    *(
        data(n, message(b"x" * size), end=end)
        for n in (1, 3, 5)
        for size in (0, 10, 900)
        for end in (False, True)
    ),
    *(data(n, message(b"y" * 50)[:cut]) for n in (1, 3) for cut in (1, 5, 30)),
    *(frame(frames.RST_STREAM, 0, n, b"\0\0\0\x08") for n in (1, 3, 5)),
    *(frame(frames.WINDOW_UPDATE, 0, n, struct.pack(">I", more)) for n in (0, 1, 3) for more in (1, 5000)),
    *(setting((frames.INITIAL_WINDOW_SIZE, size)) for size in (0, 7, 70_000)),
    setting((frames.HEADER_TABLE_SIZE, 0), (frames.MAX_FRAME_SIZE, 20_000)),
    headers(11, request()[:9], more=True) + frame(frames.CONTINUATION, frames.END_HEADERS, 11, request()[9:]),
    headers(13, b"\x20" + request() + b"\0\1a\1b"),
    frame(frames.PING, 0, 0, b"8 bytes."),
    frame(frames.PRIORITY, 0, 1, b"\0\0\0\x05\x10"),
    frame(0x77, 0, 0, b"unknown"),
    frame(frames.GOAWAY, 0, 0, b"\0" * 8),
    headers(15, b"\x82"),  # malformed: a method alone
    headers(17, b"\xff\xff"),  # no block at all
]
TALKS = st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)


def cut(raw: bytes, rng: random.Random) -> list[bytes]:
    pieces, at = [], 0
    while at < len(raw):
        size = rng.choice((1, 2, 8, 9, 10, 40, 700))
        pieces.append(raw[at : at + size])
        at += size
    return pieces


@examples(75)
@given(TALKS, st.randoms(use_true_random=False))
def test_any_cutting_of_any_talk_brings_the_same_events_and_the_same_answer(
    raw: bytes, rng: random.Random
) -> None:
    whole, parts = World(), World()
    said = whole.say(raw)
    got = [one for piece in cut(raw, rng) for one in parts.say(piece)]
    assert (got, parts.events) == (said, whole.events)
    assert parts.connection.closed == whole.connection.closed
    assert parts.connection.streams.open.keys() == whole.connection.streams.open.keys()


@examples(150)
@given(TALKS, st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=12), st.booleans())
def test_damage_never_gets_out_and_leaks_no_stream(
    raw: bytes, damage: list[tuple[int, int]], dropped: bool
) -> None:
    broken = bytearray(raw)
    for at, value in damage:
        if broken:
            broken[at % len(broken)] = value
    world = World()
    for piece in cut(bytes(broken[: len(broken) * 2 // 3] if dropped else broken), random.Random(1)):
        world.say(piece)
    world.connection.lost()
    assert all(made.times_over == 1 for made in world.handlers)
    assert not world.connection.streams.open
    assert world.shared.budget.held == 0
    assert world.connection._outflow.queued == 0


@examples(50)
@given(st.binary(max_size=300))
def test_noise_never_gets_out(raw: bytes) -> None:
    World(greet=False).say(raw)
    World().say(raw)


class Client:
    """The `h2` library as a client of a world, in memory."""

    def __init__(self) -> None:
        self.world = World(greet=False, most=2**24)
        self.wire = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self.wire.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.bodies: dict[int, bytes] = {}

    def exchange(self) -> None:
        """Carry bytes both ways until nobody has any; the client reads everything at once."""
        while True:
            there = self.wire.data_to_send()
            self.world.connection.receive(there)
            back = self.world.connection.take()
            if not there and not back:
                return
            for event in self.wire.receive_data(back):
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    assert event.stream_id is not None
                    assert event.data is not None
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                    self.wire.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)

    def open(self) -> int:
        stream = self.wire.get_next_available_stream_id()
        self.wire.send_headers(stream, list(POST))
        self.exchange()
        return stream

    def send(self, stream: int, payload: bytes, *, end: bool = False) -> None:
        """As much at once as the windows allow."""
        at = 0
        while at < len(payload):
            room = min(self.wire.local_flow_control_window(stream), self.wire.max_outbound_frame_size)
            assert room > 0, "no room was given back"
            self.wire.send_data(stream, payload[at : at + room])
            at += room
            self.exchange()
        if end:
            self.wire.end_stream(stream)
        self.exchange()

    def saw(self, kind: type[h2.events.Event]) -> list[h2.events.Event]:
        return [event for event in self.events if isinstance(event, kind)]


@examples(20)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=5))
def test_a_foreign_client_gets_back_what_it_sent_through_every_window(sizes: list[int]) -> None:
    client = Client()
    stream = client.open()
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    for payload in payloads:
        client.send(stream, message(payload))
    client.send(stream, b"", end=True)
    assert client.bodies[stream] == b"".join(message(payload) for payload in payloads)
    assert client.saw(h2.events.TrailersReceived)[0].headers == [(b"grpc-status", b"0")]  # type: ignore[attr-defined]
    assert client.saw(h2.events.StreamEnded)


def test_a_foreign_client_drives_every_kind_of_frame() -> None:
    client = Client()
    stream, other = client.open(), client.open()
    client.wire.ping(b"12345678")
    client.wire.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    client.exchange()
    client.send(stream, message(b"x" * 100))
    client.wire.prioritize(stream, weight=7)
    client.wire.reset_stream(other)
    client.exchange()
    client.wire.increment_flow_control_window(1000, stream)
    client.wire.increment_flow_control_window(1000)
    client.send(stream, b"", end=True)
    assert client.bodies[stream] == message(b"x" * 100)
    assert client.saw(h2.events.PingAckReceived)
    assert client.saw(h2.events.SettingsAcknowledged)
    assert client.world.events.count(("over",)) == 2
    client.wire.close_connection()
    client.exchange()
    assert client.world.connection.closed


def test_a_foreign_client_with_trailers_and_padding_is_served() -> None:
    client = Client()
    stream = client.open()
    client.wire.send_data(stream, message(b"padded"), pad_length=200)
    client.wire.send_headers(stream, [(b"a", b"b")], end_stream=True)
    client.exchange()
    assert client.bodies[stream] == message(b"padded")
    assert client.saw(h2.events.StreamEnded)


def test_hundreds_of_streams_one_after_the_other_leave_nothing() -> None:
    client = Client()
    for _ in range(300):
        client.send(client.open(), message(b"x"), end=True)
    assert client.world.events.count(("over",)) == 300
    assert not client.world.connection.streams.open
    assert len(client.world.shared.cache.heads) <= 2
