"""A client that writes the frames of ext_proc as an Envoy would, for benchmarks that need to time each of them."""

import asyncio
import struct
from typing import Any

import orjson

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.headers import literal
from extproc.pb import ext_proc_pb2 as pb

_FIELDS = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": b"/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    b":authority": b"gateway",
    b"content-type": b"application/grpc",
    b"te": b"trailers",
}
_OPEN = b"".join(literal(*pair) for pair in _FIELDS.items())
#: No table of fields is kept, as the gateway's SETTINGS ask (RFC 7541, section 6.3).
_NO_TABLE = b"\x20"
#: How a message begins that asks to wait for another one (`override_message_timeout`).
_WAIT = b"\x52"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _message(stream: int, message: Any) -> list[bytes]:
    raw = message.SerializeToString()
    framed = struct.pack(">BI", 0, len(raw)) + raw
    return [
        _frame(frames.DATA, 0, stream, framed[at : at + frames.FRAME])
        for at in range(0, len(framed), frames.FRAME)
    ]


def chat(size: int, number: int) -> bytes:
    """The body of a chat of about so many bytes, of which no two numbers begin alike."""
    content = f"{number} " + "all work and no play " * (size // 21)
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}], "stream": True})


class Peer(asyncio.Protocol):
    """A connection that sends requests and counts answers of each stream."""

    def __init__(self, *, steered: bool = True) -> None:
        self._steered = steered
        self._tail = b""
        self._next = 1
        self._credit = 0
        self._window, self._room = 65_535, asyncio.Event()
        self._given: dict[int, int] = {}
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._transport: Any = None
        self._unblocked = asyncio.Event()
        self._unblocked.set()

    @classmethod
    async def connect(cls, port: int, *, steered: bool = True) -> "Peer":
        """A connection that has greeted; unless `steered`, answers that name no replica will do."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(steered=steered), "127.0.0.1", port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet; windows as large as they can be."""
        self._transport = transport
        window = struct.pack(">HI", frames.INITIAL_WINDOW_SIZE, 2**30)
        self._transport.write(frames.PREFACE + _frame(frames.SETTINGS, 0, 0, window) + frames.SETTINGS_ACK)
        self._transport.write(_frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30)))

    def pause_writing(self) -> None:
        """The gateway reads more slowly than this writes."""
        self._unblocked.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._unblocked.set()

    def data_received(self, data: bytes) -> None:
        """Count answers, and note windows."""
        data = self._tail + data
        at = 0
        while at + 9 <= len(data):
            word, _flags, stream = struct.unpack_from(">IBI", data, at)
            stop = at + 9 + (word >> 8)
            if stop > len(data):
                break
            self._one(word & 0xFF, stream, data[at + 9 : stop])
            at = stop
        self._tail = data[at:]

    def _one(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0]
            if stream:
                self._given[stream] = self._given.get(stream, 0) + more
            else:
                self._window += more
            self._room.set()
        elif kind == frames.DATA and stream in self._waiting:
            left, future = self._waiting[stream]
            if payload[5:6] == _WAIT:
                return
            if left == 1 and self._steered and b"x-gateway-destination-endpoint" not in payload:
                raise SystemExit(f"stream {stream} was not steered: {payload!r}")
            self._waiting[stream] = (left - 1, future)
            if left == 1 and not future.done():
                future.set_result(None)
        elif kind in (frames.RST_STREAM, frames.GOAWAY):
            raise SystemExit(f"the gateway ended stream {stream}: {payload.hex()}")

    async def request(self, body: bytes) -> int:
        """Headers and body, in windows as they are given; back when both are answered. The stream stays open."""
        stream, self._next = self._next, self._next + 2
        head, told = pb.ProcessingRequest(), pb.ProcessingRequest(request_body=pb.HttpBody(body=body))
        head.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
        told.request_body.end_of_stream = True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = (2, future)
        block = _NO_TABLE + _OPEN if stream == 1 else _OPEN
        self._transport.write(_frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        given = 256 * 1024  # a stream's window at its beginning, as the gateway's SETTINGS say
        for piece in _message(stream, head) + _message(stream, told):
            size = len(piece) - 9
            while given + self._given.get(stream, 0) < size or self._window < size:
                self._room.clear()
                await self._room.wait()
            given -= size
            self._window -= size
            await self._unblocked.wait()
            self._transport.write(piece)
        await future
        del self._waiting[stream]
        self._given.pop(stream, None)
        return stream

    def finish(self, stream: int) -> None:
        """The exchange is over."""
        self._transport.write(_frame(frames.DATA, frames.END_STREAM, stream))

    def close(self) -> None:
        """Leave."""
        self._transport.abort()
