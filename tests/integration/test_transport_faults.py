"""What peers do to a stream at every message of it: nothing is left, and the next request is served.

Each fault hits many streams in every stage at once, on each transport, from a peer that writes frames by hand.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io import clock
from extproc.io.sessions import ExchangeSession
from extproc.io.transports.h2 import frames
from extproc.pb import ext_proc_pb2 as pb
from tests.integration.conftest import until_async
from tests.integration.patience import bar, patient
from tests.integration.transports import TRANSPORTS
from tests.unit.h2_world import data, frame, headers, message, request, settings
from tests.unit.messages import chat, request_body, request_headers

PATH = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
OPEN = request(PATH)
TOLD = pb.ProcessingRequest(response_headers=pb.HttpHeaders()).SerializeToString()
#: What Envoy says of one request, in order.
SAID = [request_headers(), request_body(chat("hello")), TOLD]
#: How far a stream has come: opened, then one message more each; and half a message.
STAGES = range(len(SAID) + 2)
#: Streams in each stage at once.
EACH = 10
CANCEL = struct.pack(">I", 8)


def stream(number: int, stage: int) -> bytes:
    """All that the peer has said of a stream that has come so far."""
    if stage == len(SAID) + 1:
        return headers(number, OPEN) + data(number, message(SAID[0])[:-3])
    return headers(number, OPEN) + b"".join(data(number, message(said)) for said in SAID[:stage])


def numbers() -> list[tuple[int, int]]:
    """Stream and stage of each."""
    return [(2 * place + 1, place % len(STAGES)) for place in range(EACH * len(STAGES))]


class Watched:
    """Counts what began and what ended."""

    def __init__(self) -> None:
        self.begun = self.ended_count = 0

    def settled(self, exchange: Any, seconds: float) -> None:
        pass

    def failed(self, exchange: Any, error: Exception) -> None:
        raise AssertionError("the exchange failed") from error

    def ended(self, exchange: Any) -> None:
        self.ended_count += 1


class Server:
    """A transport with the core behind it."""

    def __init__(self, kind: str) -> None:
        pool = Pool("p", traits=Traits(stale_after=1e9), now=0.0)
        pool.join("10.0.0.1:8000", 0.0)
        self.mind = Steering([pool], Rules(), random.Random(1))
        self.watcher = Watched()
        self.peers: list[Peer] = []
        self.transport = TRANSPORTS[kind]("127.0.0.1:0", self._session, max_message=2**20, max_streams=10_000)

    def _session(self) -> ExchangeSession:
        self.watcher.begun += 1
        return ExchangeSession(self.mind, self.watcher, clock.monotonic)

    async def peer(self) -> "Peer":
        """A new connection."""
        made = Peer(*await asyncio.open_connection("127.0.0.1", self.transport.port))
        self.peers.append(made)
        return made

    async def all_begun(self, count: int) -> None:
        async def begun() -> bool:
            return self.watcher.begun == count

        await until_async(begun, 10, f"{count} streams have begun, of which {self.watcher.begun} did")

    async def nothing_is_left(self) -> None:
        async def empty() -> bool:
            return self.watcher.ended_count == self.watcher.begun and not len(self.mind.ledger)

        await until_async(empty, 10, "every session is ended and nothing is charged")
        assert not self.mind.watched
        assert sum(replica.books.requests for replica in self.mind.pools[0].replicas) == 0

    async def serves(self) -> None:
        """A request through a channel of its own."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.transport.port}") as channel:
            call = channel.stream_stream(PATH.decode())()
            for said in SAID[:2]:
                await call.write(said)
                assert isinstance(await call.read(), bytes)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK


class Peer:
    """A client that writes frames by hand and reads when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.say(frames.PREFACE + settings((frames.INITIAL_WINDOW_SIZE, 2**20)) + frames.SETTINGS_ACK)
        self.say(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**24)))

    def say(self, raw: bytes) -> None:
        self.writer.write(raw)

    def say_all(self) -> None:
        """A stream for each stage, several times."""
        self.say(b"".join(stream(number, stage) for number, stage in numbers()))

    def reset(self) -> None:
        """As a killed process: RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def half_close(self) -> None:
        """No more is said; answers are still read."""
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.transport.abort()


@pytest.fixture(params=TRANSPORTS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    made = Server(request.param)
    await made.transport.start()
    yield made
    for peer in made.peers:
        peer.close()
    await made.transport.stop(1.0)
    await asyncio.sleep(0)  # aborted sockets are closed in the next turn


async def killed(peer: Peer) -> None:
    """The peer's process is killed."""
    peer.reset()


async def closed_both_ways(peer: Peer) -> None:
    """The peer closes its connection in order."""
    peer.writer.close()


async def half_closed(peer: Peer) -> None:
    """The peer closes its side and goes on reading."""
    peer.half_close()


async def streams_reset(peer: Peer) -> None:
    """Each stream is reset, the connection stays."""
    peer.say(b"".join(frame(frames.RST_STREAM, 0, number, CANCEL) for number, _ in numbers()))


async def ended_in_order(peer: Peer) -> None:
    """Each stream ends with END_STREAM, also those with half a message."""
    peer.say(b"".join(data(number, b"", end=True) for number, _ in numbers()))


async def half_a_frame_then_killed(peer: Peer) -> None:
    """The peer dies in the middle of a frame."""
    peer.say(data(1, message(SAID[0]))[:-5])
    await asyncio.sleep(0)
    peer.reset()


async def goes_away(peer: Peer) -> None:
    """GOAWAY, then each stream is reset."""
    peer.say(frame(frames.GOAWAY, 0, 0, struct.pack(">II", 0, 0)))
    await streams_reset(peer)


async def damaged(peer: Peer) -> None:
    """A frame that can't be: the connection is ended by the server."""
    peer.say(frame(frames.WINDOW_UPDATE, 0, 0, b"\0" * 3))


FAULTS: list[Callable[[Peer], Awaitable[None]]] = [
    killed,
    closed_both_ways,
    half_closed,
    streams_reset,
    ended_in_order,
    half_a_frame_then_killed,
    goes_away,
    damaged,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
async def test_at_every_message_a_fault_leaves_nothing_and_the_next_is_served(
    server: Server, fault: Callable[[Peer], Awaitable[None]]
) -> None:
    peer = await server.peer()
    peer.say_all()
    await server.all_begun(len(numbers()))
    await fault(peer)
    await server.nothing_is_left()
    await server.serves()


@pytest.mark.parametrize("stage", STAGES)
async def test_messages_and_their_reset_in_one_write_leave_nothing(server: Server, stage: int) -> None:
    peer = await server.peer()
    await server.serves()  # the resets below are no flood, beside what is answered
    pieces = [
        stream(number, stage) + frame(frames.RST_STREAM, 0, number, CANCEL)
        for number in range(1, 2 * EACH + 1, 2)
    ]
    peer.say(b"".join(pieces) + frame(frames.PING, 0, 0, b"all said"))
    async with asyncio.timeout(patient(10)):
        await peer.reader.readuntil(b"all said")
    await server.nothing_is_left()
    await server.serves()


async def test_a_peer_that_reads_nothing_holds_up_nobody_else(server: Server) -> None:
    """Its windows are shut: answers wait in the gateway until it dies."""
    peer = await server.peer()
    peer.say(settings((frames.INITIAL_WINDOW_SIZE, 0)))
    peer.say_all()
    await server.all_begun(len(numbers()))
    await server.serves()
    peer.reset()
    await server.nothing_is_left()


async def test_new_streams_that_cross_with_a_stop_are_dropped_or_ended_and_nothing_is_left(
    server: Server,
) -> None:
    """GOAWAY crosses with streams under way: what was taken is ended, what was not may be tried elsewhere."""
    peer = await server.peer()
    peer.say_all()
    await server.all_begun(len(numbers()))
    stopping = asyncio.ensure_future(server.transport.stop(0.2))
    late = 2 * len(numbers()) + 1
    for number in range(late, late + 200, 2):
        peer.say(stream(number, 2))
        await asyncio.sleep(0)
    await stopping
    await server.nothing_is_left()


async def test_a_stop_under_load_ends_all_and_waits_no_longer_than_its_grace(server: Server) -> None:
    for _ in range(5):
        (await server.peer()).say_all()
    await server.all_begun(5 * len(numbers()))
    began = clock.monotonic()
    await server.transport.stop(0.2)
    assert clock.monotonic() - began < bar(5.0)
    await server.nothing_is_left()


async def test_two_hundred_connections_that_come_and_die_at_once_leave_nothing(server: Server) -> None:
    for _ in range(10):
        peers = await asyncio.gather(*(server.peer() for _ in range(20)))
        for peer in peers:
            peer.say(stream(1, 2))
            await asyncio.sleep(0)
            peer.reset()
    await server.nothing_is_left()
    await server.serves()
