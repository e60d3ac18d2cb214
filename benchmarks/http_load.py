"""A closed-loop HTTP/1.1 load over raw asyncio: cheap enough to leave the machine to what is measured."""

import asyncio
from collections.abc import Sequence
from itertools import count

#: Stands in a payload for a number that each request sent has for itself, so that none is a copy of another: texts
#: that come again are the beginnings of conversations, as in use, and not whole requests.
NUMBER = b"#000000000000#"
_numbers = count()


def numbered(payload: bytes) -> bytes:
    """The payload with a number that no other has."""
    return payload.replace(NUMBER, b"#%012d#" % next(_numbers), 1)


def request(path: str, body: bytes) -> bytes:
    """One keep-alive POST as bytes."""
    fields = ("host: bench", "content-type: application/json", f"content-length: {len(body)}")
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields, "\r\n"]).encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, load: "Load") -> None:
        self._load = load
        self._buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length: ")
        size = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + size:
            return
        self._buffer = self._buffer[end + 4 + size :]
        self._load.answered(head.startswith(b"http/1.1 200"))
        self._send()

    def _send(self) -> None:
        payload = self._load.next()
        if payload is not None and self.transport is not None:
            self.transport.write(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost()


class Load:
    """`total` requests over `connections`, taking payloads in turn."""

    def __init__(self, port: int, payloads: Sequence[bytes], total: int, connections: int) -> None:
        self._port, self._payloads, self._connections = port, payloads, connections
        self._left = self._waiting = total
        self.failed = 0
        self._done = asyncio.Event()

    def next(self) -> bytes | None:
        """The next payload; None when all are sent."""
        if self._left == 0:
            return None
        self._left -= 1
        return numbered(self._payloads[self._left % len(self._payloads)])

    def answered(self, good: bool) -> None:
        """One answer came."""
        self._waiting -= 1
        self.failed += not good
        if self._waiting == 0:
            self._done.set()

    def lost(self) -> None:
        """A connection was closed under us: count what can no longer be answered."""
        if self._waiting:
            self.failed += 1

    async def run(self, seconds: float = 120.0) -> None:
        """Send everything; raises TimeoutError after `seconds`."""
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            for _ in range(self._connections)
        ]
        async with asyncio.timeout(seconds):
            await self._done.wait()
        for transport, _ in made:
            transport.close()
