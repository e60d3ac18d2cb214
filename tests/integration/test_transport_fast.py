"""The fast transport over real sockets: unix sockets, TLS and its reload, time limits, clients nobody here wrote."""

import asyncio
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from extproc.io.transports import Answer, Push
from extproc.io.transports.fast import FastTransport
from extproc.io.transports.h2 import frames
from extproc.io.transports.tls import TlsFiles
from extproc.io.trust import trust
from tests.integration.certificates import make_certificates
from tests.integration.conftest import until_async
from tests.integration.patience import patient
from tests.unit.h2_world import data, headers, message, request

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Echo:
    """A session that answers each message with itself."""

    held = False
    open = 0

    def __init__(self) -> None:
        Echo.open += 1

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        return data, False, True

    def rescue(self) -> Answer:
        return None

    def answer_by(self, push: Push) -> None:
        raise AssertionError("nothing is owed")

    def end(self) -> None:
        Echo.open -= 1


@asynccontextmanager
async def serving(address: str = "127.0.0.1:0", **options: Any) -> AsyncIterator[FastTransport]:
    transport = FastTransport(address, Echo, **{"max_message": 2**20, "max_streams": 1000, **options})
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop(1.0)
        assert Echo.open == 0, "a session was not ended"


async def echoes(channel: Any) -> None:
    call = channel.stream_stream(PROCESS)()
    await call.write(b"hello")
    assert await call.read() == b"hello"
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await channel.close()


class Raw:
    """A client that says what it likes."""

    made: list["Raw"] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        Raw.made.append(self)

    @classmethod
    async def greeting(cls, port: int) -> "Raw":
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        made.say(frames.PREFACE + b"\0\0\0\x04\0\0\0\0\0" + frames.SETTINGS_ACK)
        return made

    def say(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def read_until(self, kind: int) -> bytes:
        """The payload of the next frame of a kind; those before it are thrown away."""
        async with asyncio.timeout(patient(10)):
            while True:
                size, _, _ = struct.unpack(">IBI", await self.reader.readexactly(9))
                payload = await self.reader.readexactly(size >> 8)
                if size & 0xFF == kind:
                    return payload

    async def frames(self) -> list[tuple[int, int, bytes]]:
        """Kind, stream and payload of every frame until the server closes."""
        async with asyncio.timeout(patient(10)):
            raw = await self.reader.read()
        made, at = [], 0
        while at < len(raw):
            size, _, stream = struct.unpack_from(">IBI", raw, at)
            made.append((size & 0xFF, stream, raw[at + 9 : at + 9 + (size >> 8)]))
            at += 9 + (size >> 8)
        self.writer.close()
        return made


@pytest.fixture(autouse=True)
async def no_client_is_left() -> AsyncIterator[None]:
    yield
    for raw in Raw.made:
        raw.writer.transport.abort()
    Raw.made.clear()
    await asyncio.sleep(0)  # aborted sockets are closed in the next turn


async def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    async with serving(f"unix:{tmp_path}/s"):
        await echoes(grpc.aio.insecure_channel(f"unix:{tmp_path}/s"))


# -- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def test_a_tls_client_that_does_not_speak_http2_is_closed(made: Path) -> None:
    tls = TlsFiles(str(made / "server.pem"), str(made / "server.key"))
    async with serving(tls=tls) as transport:
        context = trust(str(made / "ca.pem"))
        reader, writer = await asyncio.open_connection("127.0.0.1", transport.port, ssl=context)
        with pytest.raises((ConnectionResetError, ssl.SSLError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()


# -- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"), [(b"", 0xB), (frames.PREFACE, 0xB), (frames.PREFACE + b"\0\0\0\x04\0\0\0\0\0", 0x4)]
)
async def test_who_does_not_finish_the_greeting_is_closed_in_time(said: bytes, code: int) -> None:
    async with serving(handshake=0.1) as transport:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", transport.port))
        raw.say(said)
        kind, _, payload = (await raw.frames())[-1]
        assert (kind, payload[4:8]) == (frames.GOAWAY, struct.pack(">I", code))
        assert transport.shared.refusals.counts["handshake"] == 1


async def test_a_connection_without_streams_is_closed_after_a_while_and_one_with_streams_is_not() -> None:
    async with serving(idle=2.0) as transport:
        busy, idle = await Raw.greeting(transport.port), await Raw.greeting(transport.port)
        busy.say(headers(1, request(PROCESS.encode())))
        assert (await idle.frames())[-1][0] == frames.GOAWAY
        assert transport.connected == 1
        busy.say(data(1, message(b"x"), end=True))
        assert (frames.DATA, 1, message(b"x")) in await busy.frames()


async def test_connections_above_the_limit_are_closed() -> None:
    async with serving(connections=1) as transport:
        first = await Raw.greeting(transport.port)
        await until_async(lambda: asyncio.sleep(0, transport.connected == 1), 5, "the first is there")
        second = Raw(*await asyncio.open_connection("127.0.0.1", transport.port))
        with suppress(ConnectionResetError):
            assert await second.frames() == []
        assert transport.shared.refusals.counts["connections"] == 1
        first.writer.close()


async def test_a_peer_that_never_reads_is_cut_after_a_while_and_others_are_served() -> None:
    async with serving(stalled=0.3) as transport:
        raw = await Raw.greeting(transport.port)
        wide = b"\0\0\x04\x08\0\0\0\0%c\x7f\0\0\0"  # a window that nothing fills
        raw.say(wide % 0 + headers(1, request(PROCESS.encode())) + wide % 1)
        raw.say(data(1, message(b"x" * 16_000)) * 1000)
        await echoes(grpc.aio.insecure_channel(f"127.0.0.1:{transport.port}"))
        stalled = transport.shared.refusals.counts
        await until_async(lambda: asyncio.sleep(0.01, stalled["stalled"] == 1), 10, "it is cut")
        await until_async(lambda: asyncio.sleep(0, Echo.open == 0), 5, "its session has ended")


async def test_a_peer_that_reads_slowly_but_steadily_is_not_cut() -> None:
    async with serving(stalled=2.0) as transport:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(small, ("127.0.0.1", transport.port))
        wide = b"\0\0\x04\x08\0\0\0\0%c\x7f\0\0\0"
        greeting = frames.PREFACE + b"\0\0\0\x04\0\0\0\0\0" + frames.SETTINGS_ACK + wide % 0
        asked = headers(1, request(PROCESS.encode())) + wide % 1 + data(1, message(b"x" * 16_000)) * 500
        sending = asyncio.create_task(loop.sock_sendall(small, greeting + asked))
        (wire,) = await until_async(lambda: asyncio.sleep(0.01, transport._wires), 5, "it is connected")
        await until_async(lambda: asyncio.sleep(0.01, wire._full), 5, "answers wait for it")
        until = loop.time() + 4.5  # more than twice as long as it may read nothing
        while loop.time() < until:
            assert await loop.sock_recv(small, 2000), "it was cut while it read"
            await asyncio.sleep(0.02)
        assert wire._full, "it was to be slower than what waits for it"
        assert transport.shared.refusals.counts["stalled"] == 0
        sending.cancel()
        small.close()


async def test_a_peer_that_sends_thousands_of_requests_at_once_makes_nobody_wait_for_all_of_them() -> None:
    async with serving() as transport:
        greedy, other = await Raw.greeting(transport.port), await Raw.greeting(transport.port)
        await other.read_until(frames.SETTINGS)
        get = b"\x82\x86\x84"  # GET http /
        greedy.say(b"".join(headers(1 + 2 * at, get, end=True) for at in range(20_000)))
        other.say(b"\0\0\x08\x06\0\0\0\0\08 bytes.")
        await other.read_until(frames.PING)
        begun = [wire.connection.streams.last for wire in transport._wires]
        assert max(begun) < 6000, f"the other's PING waited for {max(begun) // 2} requests"
        everything = transport._wires
        await until_async(
            lambda: asyncio.sleep(0, max(wire.connection.streams.last for wire in everything) == 39_999),
            30,
            "all are dealt with",
        )


async def test_a_call_ends_at_its_deadline() -> None:
    async with serving() as transport:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{transport.port}")
        call = channel.stream_stream(PROCESS)(timeout=1.5)
        await call.write(b"x")
        assert await call.read() == b"x"
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await channel.close()
        await until_async(lambda: asyncio.sleep(0, Echo.open == 0), 5, "the session has ended")


# -- clients nobody here wrote -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"), [("/grpc.health.v1.Health/Check", b"0"), ("/no.such/Method", b"12")]
)
async def test_curl_is_served(path: str, status: bytes, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl on this machine")
    (tmp_path / "ask").write_bytes(message(b""))
    # A refusal comes before a body does, and this curl then forgets what it was answered.
    body = ["--data-binary", f"@{tmp_path}/ask"] if status == b"0" else []
    async with serving() as transport:
        process = await asyncio.create_subprocess_exec(
            curl, "--http2-prior-knowledge", "-s", "-v", "-m", "10", "-X", "POST",
            "-H", "content-type: application/grpc", "-H", "te: trailers",
            *body, "-o", "/dev/null",
            f"http://127.0.0.1:{transport.port}{path}",
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
    if b"the installed libcurl version" in said:
        pytest.skip("this curl has no HTTP/2")
    assert b"< HTTP/2 200" in said
    assert b"< grpc-status: " + status in said


async def test_a_grpc_client_sends_and_gets_messages_larger_than_every_window() -> None:
    async with serving(max_message=9 * 2**20) as transport:
        options = [("grpc.max_receive_message_length", 9 * 2**20)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{transport.port}", options=options)
        call = channel.stream_stream(PROCESS)()
        await call.write(b"x" * 8 * 2**20)
        assert await call.read() == b"x" * 8 * 2**20
        await channel.close()
        assert transport.shared.budget.held == 0


async def test_hundreds_of_streams_at_once_are_all_answered_and_ended() -> None:
    async with serving() as transport:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{transport.port}")

        async def one(number: int) -> bytes:
            call = channel.stream_stream(PROCESS)()
            await call.write(b"%d" % number)
            answer: bytes = await call.read()
            if number % 3:
                await call.done_writing()
            else:
                call.cancel()
            return answer

        answers = await asyncio.gather(*(one(number) for number in range(300)))
        assert answers == [b"%d" % number for number in range(300)]
        await until_async(lambda: asyncio.sleep(0, Echo.open == 0), 5, "every session has ended")
        await channel.close()
