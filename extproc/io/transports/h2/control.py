"""Frames that say something of the connection or come seldom: settings, pings, goodbyes, windows, priorities."""

from collections.abc import Callable
from typing import Final

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import FRAME_SIZE_ERROR, PROTOCOL_ERROR, ConnectionFault, StreamFault
from extproc.io.transports.h2.sending import DRAIN, Sender, Shared

#: The first word of a DATA frame as long as can be, and of frames above what we take.
FULL: Final = frames.FRAME << 8 | frames.DATA
TOO_LONG: Final = (frames.FRAME + 1) << 8


class Control(Sender):
    """A connection, as far as its seldom frames go.

    Attributes:
        greeted: whether the peer's preface and SETTINGS came.
        ready: whether it knows ours too.
    """

    def __init__(self, shared: Shared, notify: Callable[[], None]) -> None:
        super().__init__(shared, notify)
        self.greeted = self.ready = False
        #: First words from which on a frame is looked at closely: 0 till the peer's SETTINGS came and within a block.
        self._closely = 0
        self._seldom = {
            frames.PRIORITY: self._priority,
            frames.SETTINGS: self._settings,
            frames.PUSH_PROMISE: self._push_promise,
            frames.PING: self._ping,
            frames.GOAWAY: self._goaway,
            frames.WINDOW_UPDATE: self._window_update,
            frames.CONTINUATION: self._continuation,
        }

    def _seldom_frame(self, kind: int, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if kind in self._seldom:
            self._seldom[kind](flags, number, data, at, stop)
        else:
            self._patience.spend("empty")  # of a kind nobody knows: ignored (section 4.1)

    def _continuation(self, flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        raise NotImplementedError

    def _priority(self, _flags: int, number: int, data: bytes, at: int, stop: int) -> None:
        if not number:
            raise ConnectionFault(PROTOCOL_ERROR, "PRIORITY of no stream")
        self._patience.spend("empty")
        if stop - at != 5:
            raise StreamFault(number, FRAME_SIZE_ERROR, "PRIORITY that is not five bytes")
        if frames.word(data, at) & frames.LARGEST_ID == number:
            raise StreamFault(number, PROTOCOL_ERROR, "a stream that depends on itself")

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
            frames.check_setting(name, value)
        self.greeted, self._closely = True, FULL
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
