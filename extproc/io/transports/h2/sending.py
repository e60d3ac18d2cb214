"""The saying half of a connection: answers, resets, goodbyes, the end of a stream. What it hears: `connection`."""

import struct
from collections.abc import Callable
from typing import Final

from extproc.io.transports.h2 import frames, grpc
from extproc.io.transports.h2.errors import (
    ENHANCE_YOUR_CALM,
    NO_ERROR,
    REFUSED_STREAM,
    ConnectionFault,
    StreamFault,
)
from extproc.io.transports.h2.flow import HALF, STREAM_WINDOW, Inflow, Outflow
from extproc.io.transports.h2.headers import Head, HeadCache
from extproc.io.transports.h2.limits import Budget, Limits, Patience, Refusals
from extproc.io.transports.h2.streams import DEAF, ENDED, REMEMBERED, RESET, Stream, Streams

#: Gives a new stream its receiver, which may answer it, and end it, at once.
Accept = Callable[["Sender", Stream, Head], None]

#: What goes before a message, pad bytes being zero: the header of a DATA frame without flags (length << 8, stream),
#: then gRPC's prefix of a message that is not compressed (its length).
_MESSAGE: Final = struct.Struct(">IxIxI")
#: The same with the frame that begins an answer before it: its first five bytes, stream, block.
_FIRST: Final = struct.Struct(f">5sI{len(grpc.HEADERS)}sIxIxI")
_BEGINS: Final = frames.HEADER.pack(len(grpc.HEADERS) << 8 | frames.HEADERS, frames.END_HEADERS, 0)[:5]
#: The frame that ends one well: its first five bytes, stream, block.
_LAST: Final = struct.Struct(f">5sI{len(grpc.TRAILERS_OK)}s")
_ENDS: Final = frames.head(len(grpc.TRAILERS_OK), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0)[
    :5
]
_PREFIX_SIZE: Final = grpc.PREFIX_SIZE
_FRAME: Final = frames.FRAME
#: Payload of the PING that tells when a peer has read our first GOAWAY (section 6.8).
DRAIN: Final = b"draining"


class Shared:
    """What all connections of a server have in common.

    Args:
        limits: bounds for each connection and all.
        clock: seconds, only going forward.

    Attributes:
        accept: makes the receiver of a new request's stream; set before the first connection is made.
        left: told of a connection once it takes no more streams.
    """

    accept: Accept
    left: Callable[["Sender"], None]

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.clock = clock
        self.refusals = Refusals()
        self.budget = Budget(limits.buffered)
        self.left = lambda _connection: None
        self.cache = HeadCache()
        self.settings = frames.settings(
            {
                frames.MAX_CONCURRENT_STREAMS: limits.streams,
                frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                frames.MAX_HEADER_LIST_SIZE: limits.header_list,
            }
        )


class Sender:
    """The saying half of a connection. Nothing but constructing raises.

    Attributes:
        out: bytes to be written, to be taken with `take`.
        closed: whether the socket shall be closed once `out` is written.
        streams: all of the connection.
        fault: why it ended; "" while it goes on or where it ended well.
        final: whether it takes no more streams, and has said so.
        notify: called when there is something to write although nothing was received.
    """

    def __init__(self, shared: Shared, notify: Callable[[], None]) -> None:
        self.out: list[bytes] = []
        self.closed = False
        self.notify = notify
        self.fault = ""
        self.streams = Streams()
        self._shared = shared
        self._limits = limits = shared.limits
        self._clock = shared.clock
        self._open, self._closed = self.streams.open, self.streams.closed
        self._outflow = Outflow(self.out, self._finished, limits.output)
        self._inflow = Inflow(self.out, limits, shared.budget, shared.refusals, self._moved)
        self._patience = Patience(limits, shared.refusals, shared.clock)
        self._resize = b"\x20"  # our table is of size 0: said before our first block (RFC 7541, section 4.2)
        self._tail = b""
        self._receiving = False
        self._leaving = self.final = False

    def take(self) -> bytes:
        """What is to be written now."""
        data = b"".join(self.out)
        self.out.clear()
        return data

    def lost(self) -> None:
        """The socket is gone."""
        self.closed = True
        self._tail = b""
        streams = list(self._open.values())
        self._open.clear()
        for stream in streams:
            self._drop(stream)
        self._inflow.close()

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection for a fault: GOAWAY, and every stream is lost."""
        if self.closed:
            return
        self.fault = str(fault)
        if fault.code != ENHANCE_YOUR_CALM:
            self._shared.refusals.add("protocol")
        self.out.append(frames.goaway(self.streams.last, fault.code, self.fault))
        self.lost()
        self._moved()

    def holds(self, stream: Stream, held: int) -> None:
        """So many bytes of a stream are kept from now on: fewer than before."""
        if stream.number in self._open:
            self._inflow.count(stream, held)
            if not self._receiving:
                self.notify()

    def headers(self, stream: Stream, block: bytes) -> None:
        """Begin an answer with an encoded block."""
        stream.answered = True
        if self._resize:
            block, self._resize = self._resize + block, b""
        self.out.append(frames.HEADER.pack(len(block) << 8 | 1, 4, stream.number) + block)

    def data(self, stream: Stream, payload: bytes) -> None:
        """Go on with an answer."""
        try:
            self._outflow.data(stream, payload)
        except ConnectionFault as fault:
            self._shared.refusals.add("output")
            self.fail(fault)
        if not self._receiving:
            self.notify()

    def message(self, stream: Stream, message: bytes) -> None:
        """Begin a gRPC answer, or go on with it, by a message, uncompressed."""
        size, outflow = len(message), self._outflow
        room = size + _PREFIX_SIZE
        # Where something waits already, one of the windows is shut: no look at the queue is needed.
        if room > stream.send_window or room > outflow.window or room > _FRAME:
            self._message_in_parts(stream, message)
            return
        if stream.answered:
            self.out.append(_MESSAGE.pack(room << 8, stream.number, size))
        elif self._resize:
            self._message_in_parts(stream, message)
            return
        else:
            stream.answered, number = True, stream.number
            self.out.append(_FIRST.pack(_BEGINS, number, grpc.HEADERS, room << 8, number, size))
        outflow.window -= room
        stream.send_window -= room
        self.out.append(message)
        if not self._receiving:
            self.notify()

    def _message_in_parts(self, stream: Stream, message: bytes) -> None:
        if not stream.answered:
            self.headers(stream, grpc.HEADERS)
        self.data(stream, grpc.PREFIX.pack(0, len(message)) + message)

    def finish(self, stream: Stream, block: bytes | None) -> None:
        """End an answer with trailers, or with headers alone, or, with None, as it is; its receiver hears no more."""
        stream.receiver = DEAF
        if self.closed:
            return
        if block is grpc.TRAILERS_OK:  # nearly all do: known, and never the first block
            last = _LAST.pack(_ENDS, stream.number, block)
        elif block is None:
            last = frames.head(0, frames.DATA, frames.END_STREAM, stream.number)
        else:
            last = self._last_block(stream, block)
        if stream.queue is None:
            self.out.append(last)
            self._finished(stream)
        else:
            stream.last = last  # after all that waits
        if not self._receiving:
            self.notify()

    def _last_block(self, stream: Stream, block: bytes) -> bytes:
        if self._resize and not stream.answered:
            block, self._resize = self._resize + block, b""
        return frames.headers(stream.number, block, end=True)

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream by RST_STREAM; its receiver hears no more."""
        stream.receiver = DEAF
        if self._open.pop(stream.number, None) is not None:
            self._rst(stream.number, code)
            self._drop(stream)
            self._maybe_over()
        self._moved()

    def drain(self) -> None:
        """Ask the peer to open no more streams; those open, and those on their way, are served (section 6.8)."""
        if self._leaving or self.closed:
            return
        self._leaving = True
        self.out.append(frames.goaway(frames.LARGEST_ID, NO_ERROR, "draining"))
        self.out.append(frames.ping(DRAIN, ack=False))
        self._moved()

    def leave(self) -> None:
        """Take no more streams, and close after the last of those open."""
        if self.closed or self.final:
            return
        self._leaving = self.final = True
        self.out.append(frames.goaway(self.streams.last, NO_ERROR, "draining"))
        self._shared.left(self)
        self._maybe_over()
        self._moved()

    def _finished(self, stream: Stream) -> None:
        number = stream.number
        if self._open.pop(number, None) is None:
            return
        if stream.half_closed:
            self._closed[number] = ENDED  # as `streams.close` does: most streams end here
            if len(self._closed) >= REMEMBERED:
                self.streams.forget()
        else:
            self._rst(number, NO_ERROR)
            stream.half_closed = True
        if stream.held or stream.owed >= HALF:  # else it neither grew nor waits for its window
            self._inflow.forget(stream)
        if self._leaving:
            self._maybe_over()

    def _rst(self, number: int, code: int) -> None:
        self.out.append(frames.rst_stream(number, code))
        self.streams.close(number, RESET)

    def _drop(self, stream: Stream) -> None:
        """A stream is gone before it was finished."""
        self._outflow.forget(stream)
        stream.half_closed = True
        self._inflow.forget(stream)
        receiver, stream.receiver = stream.receiver, DEAF
        receiver.lost()

    def _reset_for(self, fault: StreamFault) -> None:
        """A peer may make us reset as often as it may reset, no oftener, but where it did nothing wrong: too many
        streams, or too many bytes of all connections together."""
        if fault.code not in (REFUSED_STREAM, ENHANCE_YOUR_CALM):
            self._patience.spend("resets")
        stream = self._open.pop(fault.stream, None)
        self._rst(fault.stream, fault.code)
        if stream is not None:
            self._drop(stream)
            self._maybe_over()

    def _maybe_over(self) -> None:
        if self.final and not self._open:
            self.closed = True
            self._inflow.close()

    def _moved(self) -> None:
        if not self._receiving:
            self.notify()
