"""Where a request's sequences deliver: a future for a whole answer, or SSE chunks on the wire.

SSE chunks are written by the engine's own step, straight to the transport. Waking the request's task for
every chunk would cost more than the chunk.
"""

import asyncio
import socket
import struct

from extproc.sim.emulated.answers import DONE, Answer, answer_text
from extproc.sim.emulated.books import Books
from extproc.sim.emulated.scheduler import Progress, Sequence

#: SO_LINGER switched on with 0 seconds: the kernel answers close() with RST (socket(7)).
_NO_LINGER = struct.pack("ii", 1, 0)


class Collector:
    """Waits until all sequences of a request have ended."""

    def __init__(self, sequences: list[Sequence], done: "asyncio.Future[None]") -> None:
        self.done = done
        self._left = len(sequences)
        for seq in sequences:
            seq.owner = self

    def progress(self, event: Progress) -> None:
        """A step has something for this request."""
        self._left -= event.ended
        if not self._left and not self.done.done():
            self.done.set_result(None)


class EventWriter:
    """Writes the SSE chunks of a request in HTTP/1.1 chunked coding; `done` when the last one is out."""

    def __init__(
        self,
        answer: Answer,
        sequences: list[Sequence],
        transport: asyncio.Transport,
        books: Books,
        done: "asyncio.Future[None]",
        chat: bool,
    ) -> None:
        self.done = done
        #: Called when so many chunks are out; a fault.
        self.reset_after: int | None = None
        #: Whether chunked coding is used; HTTP/1.0 has none.
        self.framed = True
        self._answer = answer
        self._sequences = sequences
        self._transport = transport
        self._books = books
        self._chat = chat
        self._index = {seq: index for index, seq in enumerate(sequences)}
        self._sent = [0] * len(sequences)  # output tokens
        self._left = len(sequences)
        self._chunks = 0
        for seq in sequences:
            seq.owner = self

    def progress(self, event: Progress) -> None:
        """A step has something for this request."""
        if self.done.done() or self._transport.is_closing():
            return
        index = self._index[event.sequence]
        start, self._sent[index] = self._sent[index], event.tokens
        text = answer_text(self._answer.job, index, start, event.tokens)
        data = self._answer.chunk(index, text, event.ended, sum(self._sent))
        if self._chat and not start:
            data = self._answer.opening(index) + data
        self._chunks += 1
        self._books.chunks += 1
        if event.ended:
            data += self._end()
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.framed else data)
        if self._chunks == self.reset_after:
            self._books.requests["reset"] += 1
            reset(self._transport)
        elif not self._left:
            self.done.set_result(None)

    def _end(self) -> bytes:
        self._left -= 1
        if self._left:
            return b""
        usage = self._answer.final_usage(self._sequences) if self._answer.job.include_usage else b""
        return usage + DONE


def reset(transport: asyncio.Transport) -> None:
    """Close a connection so that the peer sees a reset, not an orderly end."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
