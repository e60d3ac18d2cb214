"""A server's HTTP/2 connection: frames in, calls to receivers and frames out. The hot path is `receive`."""

import struct
from collections.abc import Callable
from typing import Final

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.control import FULL, TOO_LONG, Control
from extproc.io.transports.h2.errors import (
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    ConnectionFault,
    StreamFault,
)
from extproc.io.transports.h2.flow import CONNECTION_WINDOW, DEFAULT_WINDOW, GIVE_BACK, HALF, STREAM_WINDOW
from extproc.io.transports.h2.headers import Blocks, Head
from extproc.io.transports.h2.sending import Shared
from extproc.io.transports.h2.streams import LEFT, RESET, Stream


class _Block:
    """A header block in pieces."""

    __slots__ = ("end", "fault", "number", "parts", "size")

    def __init__(self, number: int, first: bytes, end: bool, fault: str) -> None:
        self.number, self.end, self.fault = number, end, fault
        self.parts = [first]
        self.size = len(first)


class Connection(Control):
    """One connection. Nothing but constructing raises.

    Attributes:
        behind: whether whole frames wait for the next turn: call `receive` again, soon, with or without bytes.
    """

    def __init__(self, shared: Shared, notify: Callable[[], None] = lambda: None) -> None:
        super().__init__(shared, notify)
        self.behind = False
        self._accept = shared.accept
        self._blocks = Blocks(shared.cache, shared.limits.header_list, shared.refusals)
        self._block: _Block | None = None
        self._preface = False
        self.out.append(shared.settings)
        self.out.append(frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    # -- bytes ---------------------------------------------------------------------------------------------

    def receive(self, data: bytes = b"") -> None:
        """Take bytes in, and deal with them for one turn (see `_TURN`)."""
        if self.closed:
            self.behind = False
            return
        self._receiving = True
        try:
            at = 0
            if self._tail:
                data, at = self._continued(data)
            if not self._preface:
                at = self._greeting(data)
            if self._preface:
                at, self.behind = self._some(data, at)
                if self.behind:
                    at = self._more(data, at)
            self._tail = data[at:] if at < len(data) and not self.closed else b""
        except ConnectionFault as fault:
            self.fail(fault)
        except Exception as error:
            self.fail(ConnectionFault(INTERNAL_ERROR, type(error).__name__))
        self._receiving = False

    def _greeting(self, data: bytes) -> int:
        size = len(frames.PREFACE)
        if not frames.PREFACE.startswith(data[:size]):
            raise ConnectionFault(PROTOCOL_ERROR, "not HTTP/2: another preface")
        if len(data) < size:
            return 0
        self._preface = True
        return size

    def _continued(self, data: bytes) -> tuple[bytes, int]:
        """What to go on with after a read that ended within a frame, and from where.

        That frame is put together and dealt with alone: joining the whole read to it would copy up to 256 KiB.
        """
        tail = self._tail
        begun = tail[:9] + data[:9]
        if self._preface and len(begun) >= 9:
            missing = 9 + (frames.word(begun, 0) >> 8) - len(tail)
            if 0 < missing < len(data):  # else whole frames wait for their turn, or it is still not whole
                self._some(tail + data[:missing], 0)
                return (b"", 0) if self.closed else (data, missing)
        return tail + data, 0

    def _more(self, data: bytes, at: int) -> int:
        """Deal with more whole frames, for one turn; returns where the first begins that has to wait."""
        until = self._clock() + _TURN
        while self.behind and self._clock() < until:
            at, self.behind = self._some(data, at)
        return at

    def _some(self, data: bytes, at: int) -> tuple[int, bool]:
        """Deal with `_AT_ONCE` frames at most; returns where it stopped, and whether more may be whole."""
        unpack, size, came, closely, behind = _HEADER.unpack_from, len(data), 0, self._closely, False
        for _ in _AT_ONCE:
            begin = at + 9
            if begin > size or self.closed:
                break
            word, flags, number = unpack(data, at)
            length = word >> 8
            stop = begin + length
            if word >= closely and (further := self._look(word, flags, number, data, begin, stop)):
                at = further
                continue
            if stop > size:
                break
            kind = word & 0xFF
            try:
                if kind == _DATA:
                    came += length
                    self._data(flags, number, data, begin, stop)
                else:
                    if number < 0:
                        number &= frames.LARGEST_ID
                    if kind == _HEADERS:
                        self._headers(flags, number, data, begin, stop)
                    elif kind == _RST_STREAM:
                        self._rst_stream(number, length)
                    else:
                        self._seldom_frame(kind, flags, number, data, begin, stop)
                    closely = self._closely
            except StreamFault as fault:
                self._reset_for(fault)
            at = stop
        else:
            behind = at + 9 <= size
        inflow = self._inflow
        inflow.owed += came
        if inflow.owed >= GIVE_BACK:
            inflow.give_back()
        return at, behind

    def _look(self, word: int, flags: int, number: int, data: bytes, at: int, stop: int) -> int:
        """Check a frame that is as long as can be, or before which something is due; see `_gathered` for the rest."""
        self._check(word & 0xFF, flags, number & frames.LARGEST_ID, word >> 8)
        return self._gathered(number, data, at, stop) if word == FULL and not flags else 0

    def _check(self, kind: int, flags: int, number: int, length: int) -> None:
        """What may come only at certain times, and frames too long. Raises ConnectionFault."""
        if length > frames.FRAME:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a frame above SETTINGS_MAX_FRAME_SIZE")
        block = self._block
        if block is not None and (kind != frames.CONTINUATION or number != block.number):
            raise ConnectionFault(PROTOCOL_ERROR, "a header block that is not continued")
        if not self.greeted and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(PROTOCOL_ERROR, "no SETTINGS after the preface")

    # -- frames of streams ---------------------------------------------------------------------------------

    def _gathered(self, number: int, data: bytes, at: int, stop: int) -> int:
        """Deal with a full frame and those after it at once, if they bring one whole message of their stream.

        So a body of several frames is put together by one copy, and none of it is held meanwhile. Returns where they
        end; 0 to deal with each as it comes.
        """
        stream = self._open.get(number)
        if stream is None or stream.half_closed or stream.expected is not None or stop > len(data):
            return 0
        wanted = stream.receiver.wanted(data, at)
        if wanted <= frames.FRAME or wanted > len(data) - at or stream.owed + wanted >= HALF:
            return 0
        view, missing = memoryview(data), wanted - (stop - at)
        parts = [view[at:stop]]
        while missing > 0 and stop + 9 <= len(data):
            word, flags, told = _HEADER.unpack_from(data, stop)
            at = stop + 9
            stop = at + (word >> 8)
            missing -= stop - at
            fits = not flags and told == number and word < TOO_LONG and at < stop <= len(data)
            if word & 0xFF != _DATA or not fits:
                return 0
            parts.append(view[at:stop])
        if missing:
            return 0
        stream.owed += wanted
        self._inflow.owed += wanted
        stream.receiver.take(parts)
        return stop

    def _data(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        stream = self._open.get(number)
        if stream is None or flags or stream.half_closed or stream.expected is not None:
            self._unusual_data(flags, number & frames.LARGEST_ID, data, at, stop)
            return
        stream.owed = owed = stream.owed + stop - at
        if owed > STREAM_WINDOW:
            raise StreamFault(number, FLOW_CONTROL_ERROR, "more bytes than the stream's window")
        if at == stop:
            self._patience.spend("empty")
            return
        held = stream.receiver.data(data, at, stop)
        if held != stream.held:
            self._inflow.count(stream, held)
        if owed >= HALF and number in self._open:
            self._inflow.credit(stream)

    def _unusual_data(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        """DATA with padding, at the end of its stream, of a length that was told, or of a stream that takes none."""
        size = stop - at
        if flags & _PADDED:
            at, stop = frames.unpadded(flags, data, at, stop)
        stream = self._open.get(number)
        if stream is None or stream.half_closed:
            self.streams.admits(_DATA, number)
            return
        stream.owed += size
        if stream.owed > STREAM_WINDOW:
            raise StreamFault(number, FLOW_CONTROL_ERROR, "more bytes than the stream's window")
        stream.half_closed = flags & _END_STREAM != 0
        if stream.expected is not None:
            self._expect(stream, stop - at)
        if at < stop:
            held = stream.receiver.data(data, at, stop)
            if held != stream.held:
                self._inflow.count(stream, held)
        elif not stream.half_closed:
            self._patience.spend("empty")
        if stream.half_closed:
            stream.receiver.ended()
        elif stream.owed >= HALF and number in self._open:
            self._inflow.credit(stream)

    @staticmethod
    def _expect(stream: Stream, size: int) -> None:
        """A body must be as long as its content-length says (section 8.1.1)."""
        if stream.expected is None:
            return
        stream.expected -= size
        if stream.expected < 0 or (stream.half_closed and stream.expected):
            raise StreamFault(stream.number, PROTOCOL_ERROR, "a body of another length than told")

    def _headers(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if not number & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "a stream with an even number")
        if flags == _END_HEADERS:
            self._whole(number, data[at:stop])
            return
        fault = ""
        if flags & _PADDED_OR_PRIORITY:
            at, stop = frames.unpadded(flags, data, at, stop)
            if flags & frames.WITH_PRIORITY:
                fault = frames.priority_fault(number, data, at, stop)
                at += 5
        end = flags & _END_STREAM != 0
        if flags & _END_HEADERS:
            self._whole(number, data[at:stop], end, fault)
        else:
            self._block = _Block(number, data[at:stop], end, fault)
            self._closely = 0

    def _continuation(self, flags: int, _number: int, data: bytes, at: int, stop: int) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION of nothing")
        if at == stop:
            self._patience.spend("empty")
        block.parts.append(data[at:stop])
        block.size += stop - at
        if block.size > self._limits.header_block:
            self._too_much("header_block")
        if len(block.parts) > self._limits.continuations + 1:
            self._too_much("continuations")
        if flags & frames.END_HEADERS:
            self._block, self._closely = None, FULL
            self._whole(block.number, b"".join(block.parts), block.end, block.fault)

    def _too_much(self, reason: str) -> None:
        self._shared.refusals.add(reason)
        raise ConnectionFault(ENHANCE_YOUR_CALM, f"above the limit of {reason}")

    def _whole(self, number: int, block: bytes, end: bool = False, fault: str = "") -> None:
        """A whole header block. It is decoded whatever becomes of it: the tables must stay alike."""
        head = self._blocks.kept.get(block) or self._blocks.head(block)
        streams = self.streams
        if number <= streams.last:
            self._trailers(number, head, end, fault)
            return
        streams.last = number
        if self.final:
            streams.close(number, RESET)  # it came after our last GOAWAY: the peer tries elsewhere
            return
        fault = fault or head.request_fault
        if fault or (end and head.content_length):
            raise StreamFault(number, PROTOCOL_ERROR, fault or "no body where its length was told")
        if len(self._open) >= self._limits.streams:
            self._shared.refusals.add("streams")
            raise StreamFault(number, REFUSED_STREAM, "too many streams")
        self._open[number] = stream = Stream(number, self._outflow.initial, head.content_length, end)
        self._accept(self, stream, head)
        if end:
            stream.receiver.ended()

    def _trailers(self, number: int, head: Head, end: bool, fault: str) -> None:
        if not self.streams.admits(frames.HEADERS, number):
            return
        fault = fault or head.trailer_fault or ("" if end else "trailers that don't end their stream")
        if fault:
            raise StreamFault(number, PROTOCOL_ERROR, fault)
        stream = self._open[number]
        stream.half_closed = True
        self._expect(stream, 0)
        stream.receiver.ended()

    def _rst_stream(self, number: int, size: int) -> None:
        if size != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM that is not four bytes")
        stream = self._open.pop(number, None)
        if stream is None:
            if number > self.streams.last or not number & 1:  # as `streams.idle`
                raise ConnectionFault(PROTOCOL_ERROR, "RST_STREAM of a stream that is not open")
            return  # it has ended meanwhile
        self.streams.close(number, LEFT)
        self._drop(stream)
        self._maybe_over()
        if not stream.answered:
            self._patience.spend("resets")


#: What one connection does before others have their turn: some frames, and more of them for so many seconds. A read
#: of 256 KiB can bring 20,000 requests, which take a second.
_AT_ONCE: Final = range(16)
_TURN: Final = 0.004
#: As `frames.HEADER`, but signed, so that the reserved bit before the stream's number shows as a sign: to mask what
#: is nearly never set costs more.
_HEADER: Final = struct.Struct(">IBi")
#: What nearly all frames are, by names that cost one look-up.
_DATA: Final = frames.DATA
_HEADERS: Final = frames.HEADERS
_RST_STREAM: Final = frames.RST_STREAM
_END_STREAM: Final = frames.END_STREAM
_END_HEADERS: Final = frames.END_HEADERS
_PADDED: Final = frames.PADDED
_PADDED_OR_PRIORITY: Final = frames.PADDED | frames.WITH_PRIORITY
