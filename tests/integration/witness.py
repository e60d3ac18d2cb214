"""Replicas that tell what reached them, to the byte, and clients that decide how bytes leave.

A witness speaks HTTP/1.1, chunked bodies and trailers included, and keeps every request. Its answer is told by the
path: `/events` streams, `/slow/...` does so slowly, `/503` refuses, anything else is JSON that names what came.
"""

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

from extproc.demo.stack import Stack, StackSettings
from tests.integration.patience import patient

EVENTS = [b"data: " + json.dumps({"n": n, "text": "tok " * n}).encode() + b"\n\n" for n in range(20)]


@dataclass
class Seen:
    """A request as it came: `headers` in order, names in lower case."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    trailers: list[tuple[str, str]]
    at: str

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


class Witnesses:
    """Some of them in one thread: so many ports of each host.

    Attributes:
        addresses: ip:port of each.
        seen: every request that came whole, oldest first.
        refusing: addresses that answer 503.
    """

    def __init__(self, count: int, *hosts: str) -> None:
        self._count, self._hosts = count, hosts or ("127.0.0.1",)
        self.addresses: list[str] = []
        self.seen: list[Seen] = []
        self.refusing: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, asyncio.Server] = {}
        self._talking: dict[str, set[asyncio.StreamWriter]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def kill(self, address: str) -> None:
        """One dies: it listens no more, and its connections are reset."""
        asyncio.run_coroutine_threadsafe(self._kill(address), self._loop).result(10)

    def revive(self, address: str) -> None:
        """It listens again, where it did."""
        host, _, port = address.rpartition(":")
        asyncio.run_coroutine_threadsafe(self._open(host, int(port)), self._loop).result(10)

    async def _listen(self) -> None:
        for host in self._hosts * self._count:
            self.addresses.append(await self._open(host, 0))

    async def _open(self, host: str, port: int) -> str:
        server = await asyncio.start_server(self._talk, host.strip("[]"), port, limit=2**20)
        address = _name(server.sockets[0].getsockname())
        self._servers[address] = server
        return address

    async def _kill(self, address: str) -> None:
        self._servers.pop(address).close()
        for writer in self._talking.pop(address, set()):
            writer.transport.abort()

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = _name(writer.get_extra_info("sockname"))
        self._talking.setdefault(at, set()).add(writer)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while line := await reader.readline():
                await self._serve(line.decode().strip(), at, reader, writer)
        self._talking.get(at, set()).discard(writer)
        writer.close()

    async def _serve(
        self, line: str, at: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        headers = await _header_lines(reader)
        told = dict(headers)
        trailers: list[tuple[str, str]] = []
        if told.get("transfer-encoding") == "chunked":
            body = await _chunks(reader)
            trailers = await _header_lines(reader)
        else:
            body = await reader.readexactly(int(told.get("content-length", 0)))
        if not line.startswith("GET /metrics"):
            self.seen.append(Seen(line, headers, body, trailers, at))
        path = line.split()[1]
        if path in ("/events", "/slow/events"):
            await _stream(writer, 0.05 if path.startswith("/slow") else 0.0)
            return
        status = "503 Service Unavailable" if at in self.refusing or path == "/503" else "200 OK"
        data = json.dumps({"size": len(body), "at": at}).encode()
        writer.write(_head(status, "application/json", f"content-length: {len(data)}"))
        writer.write(data)
        await writer.drain()


def _name(socket_name: tuple[str, int]) -> str:
    host, port = socket_name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _header_lines(reader: asyncio.StreamReader) -> list[tuple[str, str]]:
    found = []
    while (line := (await reader.readline()).decode("latin-1").strip()) != "":
        name, _, value = line.partition(":")
        found.append((name.lower(), value.strip()))
    return found


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return b"".join(parts)


def _head(status: str, kind: str, framing: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", framing, "set-cookie: a=1", "set-cookie: b=2"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _stream(writer: asyncio.StreamWriter, pause: float) -> None:
    writer.write(_head("200 OK", "text/event-stream", "transfer-encoding: chunked"))
    for event in EVENTS:
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
        await asyncio.sleep(pause)
    writer.write(b"0\r\nx-checksum: 77\r\n\r\n")
    await writer.drain()


@contextmanager
def witnesses(count: int, *hosts: str) -> Iterator[Witnesses]:
    made = Witnesses(count, *hosts)
    made.start()
    try:
        yield made
    finally:
        made.stop()


class WitnessStack(Stack):
    """Envoy and a gateway before witnesses."""

    def __init__(self, replicas: Witnesses, settings: StackSettings) -> None:
        settings.redis_url = ""
        settings.pool = {"metrics": {"enabled": False}, "engine": "vllm", **settings.pool}
        super().__init__(settings)
        self._witnesses = replicas

    def start_engines(self) -> None:
        self.replicas = list(self._witnesses.addresses)


# ---- clients ----


@dataclass
class Answer:
    """What a client got: status, headers in order, body, trailers."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


def http1(port: int, head: str, pieces: Iterable[bytes]) -> bytes:
    """Send a request's head and then these bytes, each in a write of its own; returns all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=patient(30)) as connection:
        connection.sendall(f"{head}\r\nhost: llm\r\nconnection: close\r\n\r\n".encode())
        for piece in pieces:
            connection.sendall(piece)
        got = b""
        while data := connection.recv(2**16):
            got += data
        return got


def chunked(pieces: Iterable[bytes], trailers: str = "") -> Iterator[bytes]:
    """A body in the chunked transfer coding."""
    for piece in pieces:
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    yield f"0\r\n{trailers}\r\n".encode()


def http2(
    port: int,
    path: str,
    body: bytes | None,
    *,
    trailers: list[tuple[str, str]] | None = None,
    headers: Iterable[tuple[str, str]] = (),
    method: str = "POST",
) -> Answer:
    """A request over HTTP/2 without TLS."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    with socket.create_connection(("127.0.0.1", port), timeout=patient(30)) as wire:
        connection.initiate_connection()
        first = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "llm"), *headers]
        connection.send_headers(1, first, end_stream=body is None and trailers is None)
        rest = memoryview(body or b"")
        ended = body is None and trailers is None
        answer = Answer(0, [])
        while True:
            while not ended and (
                room := min(connection.local_flow_control_window(1), connection.max_outbound_frame_size)
            ):
                connection.send_data(1, bytes(rest[:room]), end_stream=len(rest) <= room and trailers is None)
                rest, ended = rest[room:], len(rest) <= room
                if ended and trailers is not None:
                    connection.send_headers(1, trailers, end_stream=True)
            wire.sendall(connection.data_to_send())
            if _received(connection, wire, answer):
                return answer


def _received(connection: h2.connection.H2Connection, wire: socket.socket, answer: Answer) -> bool:
    """Take in what comes next; whether the answer is whole."""
    data = wire.recv(2**16)
    assert data, "the connection was closed before the answer was whole"
    over = False
    for event in connection.receive_data(data):
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = [(str(name), str(value)) for name, value in event.headers or []]
            answer.status = int(dict(answer.headers)[":status"])
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data or b""
            connection.acknowledge_received_data(event.flow_controlled_length or 0, 1)
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = [(str(name), str(value)) for name, value in event.headers or []]
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            over = True
    return over
