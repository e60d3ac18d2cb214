"""A server's HTTP/2 connection: frames in, calls to receivers and frames out. The hot path is `receive`."""

from collections.abc import Callable
from typing import Final

from extproc.io.transports.h2 import frames
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
from extproc.io.transports.h2.sending import DRAIN, Sender, Shared
from extproc.io.transports.h2.streams import LEFT, RESET, Stream


class _Block:
    """A header block in pieces."""

    __slots__ = ("end", "fault", "number", "parts", "size")

    def __init__(self, number: int, first: bytes, end: bool, fault: str) -> None:
        self.number, self.end, self.fault = number, end, fault
        self.parts = [first]
        self.size = len(first)


class Connection(Sender):
    """One connection. Nothing but constructing raises.

    Attributes:
        greeted: whether the peer's preface and SETTINGS came.
        ready: whether it knows ours too.
        behind: whether whole frames wait for the next turn: call `receive` again, soon, with or without bytes.
    """

    def __init__(self, shared: Shared, notify: Callable[[], None] = lambda: None) -> None:
        super().__init__(shared, notify)
        self.greeted = self.ready = self.behind = False
        self._accept = shared.accept
        self._blocks = Blocks(shared.cache, shared.limits.header_list, shared.refusals)
        self._block: _Block | None = None
        self._preface = False
        self._guarded = (
            True  # whether only certain frames may come: before the peer's SETTINGS, within a block
        )
        self._rare = {
            frames.PRIORITY: self._priority,
            frames.SETTINGS: self._settings,
            frames.PUSH_PROMISE: self._push_promise,
            frames.PING: self._ping,
            frames.GOAWAY: self._goaway,
            frames.WINDOW_UPDATE: self._window_update,
            frames.CONTINUATION: self._continuation,
        }
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
            self._tail = data[at:] if at < len(data) else b""
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
        unpack, size = frames.HEADER.unpack_from, len(data)
        for _ in _AT_ONCE:
            begin = at + 9
            if begin > size:
                return at, False
            word, flags, number = unpack(data, at)
            stop = begin + (word >> 8)
            number &= 0x7FFFFFFF
            if self._guarded or word >= _TOO_LONG:
                self._check(word & 0xFF, flags, number, word >> 8)
            if stop > size:
                return at, False
            kind = word & 0xFF
            try:
                if kind == _DATA:
                    self._data(flags, number, data, begin, stop)
                elif kind == _HEADERS:
                    self._headers(flags, number, data, begin, stop)
                elif kind == _RST_STREAM:
                    self._rst_stream(number, stop - begin)
                elif kind in self._rare:
                    self._rare[kind](flags, number, data, begin, stop)
                else:
                    self._patience.spend("empty")  # of a kind nobody knows: ignored (section 4.1)
            except StreamFault as fault:
                self._reset_for(fault)
            at = stop
            if self.closed:
                return size, False
        return at, at + 9 <= size

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

    def _data(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        size = stop - at
        if flags & _PADDED:
            at, stop = frames.unpadded(flags, data, at, stop)
        inflow = self._inflow
        inflow.owed = owed = inflow.owed + size
        if owed >= GIVE_BACK:
            inflow.give_back()
        stream = self._open.get(number)
        if stream is None or stream.half_closed:
            self.streams.admits(_DATA, number)
            return
        stream.owed = owed = stream.owed + size
        if owed > STREAM_WINDOW:
            raise StreamFault(number, FLOW_CONTROL_ERROR, "more bytes than the stream's window")
        if flags & _END_STREAM:
            stream.half_closed = True
        if stream.expected is not None:
            self._expect(stream, stop - at)
        if at < stop:
            held = stream.receiver.data(data, at, stop)
            if held != stream.held:
                inflow.count(stream, held)
        elif not stream.half_closed:
            self._patience.spend("empty")
        if stream.half_closed:
            stream.receiver.ended()
        elif owed >= HALF and number in self._open:
            inflow.credit(stream)

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
        fault = ""
        if flags & _PADDED_OR_PRIORITY:
            at, stop = frames.unpadded(flags, data, at, stop)
            if flags & frames.WITH_PRIORITY:
                fault = _depends(number, data, at, stop)
                at += 5
        end = flags & _END_STREAM != 0
        if flags & _END_HEADERS:
            self._whole(number, data[at:stop], end, fault)
        else:
            self._block = _Block(number, data[at:stop], end, fault)
            self._guarded = True

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
            self._block, self._guarded = None, False
            self._whole(block.number, b"".join(block.parts), block.end, block.fault)

    def _too_much(self, reason: str) -> None:
        self._shared.refusals.add(reason)
        raise ConnectionFault(ENHANCE_YOUR_CALM, f"above the limit of {reason}")

    def _whole(self, number: int, block: bytes, end: bool, fault: str) -> None:
        """A whole header block. It is decoded whatever becomes of it: the tables must stay alike."""
        head = self._blocks.kept.get(block) or self._blocks.head(block)
        if number <= self.streams.last:
            self._trailers(number, head, end, fault)
            return
        self.streams.last = number
        if self.final:
            self.streams.close(number, RESET)  # it came after our last GOAWAY: the peer tries elsewhere
            return
        fault = fault or head.request_fault
        if fault or (end and head.content_length):
            raise StreamFault(number, PROTOCOL_ERROR, fault or "no body where its length was told")
        if len(self._open) >= self._limits.streams:
            self._shared.refusals.add("streams")
            raise StreamFault(number, REFUSED_STREAM, "too many streams")
        self._open[number] = stream = Stream(number, self._outflow.initial, head.content_length, end)
        stream.receiver = self._accept(self, stream, head)
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

    def _priority(self, _flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if not number:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY of no stream")
        self._patience.spend("empty")
        if stop - at != 5:
            raise StreamFault(number, FRAME_SIZE_ERROR, "PRIORITY that is not five bytes")
        if frames.word(data, at) & frames.LARGEST_ID == number:
            raise StreamFault(number, PROTOCOL_ERROR, "a stream that depends on itself")

    def _rst_stream(self, number: int, size: int) -> None:
        if size != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "RST_STREAM that is not four bytes")
        stream = self._open.pop(number, None)
        if stream is None:
            if self.streams.idle(number):
                raise ConnectionFault(PROTOCOL_ERROR, "RST_STREAM of a stream that is not open")
            return  # it has ended meanwhile
        self.streams.close(number, LEFT)
        self._drop(stream)
        self._maybe_over()
        if not stream.answered:
            self._patience.spend("resets")

    def _window_update(self, _flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if stop - at != 4:
            raise ConnectionFault(FRAME_SIZE_ERROR, "WINDOW_UPDATE that is not four bytes")
        more = frames.word(data, at) & frames.LARGEST_ID
        if not number:
            if not more:
                raise ConnectionFault(PROTOCOL_ERROR, "a window update of nothing")
            self._outflow.widen(more)
        elif self.streams.admits(frames.WINDOW_UPDATE, number):
            if not more:
                raise StreamFault(number, PROTOCOL_ERROR, "a window update of nothing")
            self._outflow.widen_stream(self._open[number], more)

    # -- frames of the connection --------------------------------------------------------------------------

    def _settings(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS of a stream")
        ack = flags & frames.ACK
        if (stop - at) % 6 or (ack and at != stop):
            raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of a length that can't be")
        if ack:
            if self.ready:  # we send one SETTINGS, so another ack is none that we asked for
                self._patience.spend("control")
            self.ready = True
            return
        self._patience.spend("control")
        said = frames.pairs(data[at:stop])
        for name, value in said:
            _check_setting(name, value)
        self.greeted, self._guarded = True, False
        self.out.append(frames.SETTINGS_ACK)  # before any frame that the new settings allow
        self._apply(dict(said))

    def _apply(self, said: dict[int, int]) -> None:
        """Settings of the peer, the last of each name in a frame; unknown ones are ignored."""
        if frames.HEADER_TABLE_SIZE in said:
            self._resize = b"\x20"
        if frames.MAX_FRAME_SIZE in said:
            self._outflow.frame = min(said[frames.MAX_FRAME_SIZE], 16 * frames.FRAME)
        if frames.INITIAL_WINDOW_SIZE in said:
            self._outflow.resize(self._open, said[frames.INITIAL_WINDOW_SIZE])

    def _push_promise(self, _flags: int, _number: int, _data: bytes, _at: int, _stop: int) -> None:
        raise ConnectionFault(PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _ping(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "PING of a stream")
        if stop - at != 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "PING that is not eight bytes")
        if not flags & frames.ACK:
            self._patience.spend("control")
            self.out.append(frames.ping(data[at:stop], ack=True))
        elif self._leaving and data[at:stop] == DRAIN:
            self.leave()
        else:
            self._patience.spend("control")  # an answer to a PING that nobody sent

    def _goaway(self, _flags: int, number: int, _data: bytes, at: int, stop: int) -> None:
        if number:
            raise ConnectionFault(PROTOCOL_ERROR, "GOAWAY of a stream")
        if stop - at < 8:
            raise ConnectionFault(FRAME_SIZE_ERROR, "GOAWAY below eight bytes")
        self._patience.spend("control")
        self.leave()


#: What one connection does before others have their turn: some frames, and more of them for so many seconds. A read
#: of 256 KiB can bring 20,000 requests, which take a second.
_AT_ONCE: Final = range(16)
_TURN: Final = 0.004
#: A frame's first word when its length is above what we take.
_TOO_LONG: Final = (frames.FRAME + 1) << 8
#: What nearly all frames are, by names that cost one look-up.
_DATA: Final = frames.DATA
_HEADERS: Final = frames.HEADERS
_RST_STREAM: Final = frames.RST_STREAM
_END_STREAM: Final = frames.END_STREAM
_END_HEADERS: Final = frames.END_HEADERS
_PADDED: Final = frames.PADDED
_PADDED_OR_PRIORITY: Final = frames.PADDED | frames.WITH_PRIORITY


def _check_setting(name: int, value: int) -> None:
    """Raises ConnectionFault for a value that must not be (section 6.5.2)."""
    if name == frames.ENABLE_PUSH and value > 1:
        raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH that is neither 0 nor 1")
    if name == frames.INITIAL_WINDOW_SIZE and value > frames.LARGEST_ID:
        raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
    if name == frames.MAX_FRAME_SIZE and not frames.FRAME <= value <= frames.LARGEST_FRAME:
        raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE outside of 2^14 to 2^24-1")


def _depends(number: int, data: bytes, at: int, stop: int) -> str:
    """What is wrong with the priority fields of HEADERS. Raises ConnectionFault when they are cut."""
    if stop - at < 5:
        raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS with half a priority")
    itself = frames.word(data, at) & frames.LARGEST_ID == number
    return "a stream that depends on itself" if itself else ""
