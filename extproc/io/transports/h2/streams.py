"""Streams: what each frame does in each state (RFC 9113, section 5.1), and what is kept of one.

A stream of ours is never half-closed (local) for long: after the last answer the rest of a request is not wanted, and
RST_STREAM with NO_ERROR says so (section 8.1).
"""

from collections import deque
from typing import Final, Protocol

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import PROTOCOL_ERROR, STREAM_CLOSED, ConnectionFault, StreamFault

# States. LEFT, RESET, ENDED and SKIPPED are all "closed": by the peer's RST_STREAM, by ours, by both ends, and by
# the opening of a higher stream.
IDLE: Final = 0
OPEN: Final = 1
HALF_CLOSED: Final = 2  # the peer has ended its side
ENDED: Final = 3
LEFT: Final = 4
RESET: Final = 5
SKIPPED: Final = 6

# What to do.
TAKE: Final = 0
IGNORE: Final = 1
LATE: Final = 2  # stream error STREAM_CLOSED
OVER: Final = 3  # connection error STREAM_CLOSED
WRONG: Final = 4  # connection error PROTOCOL_ERROR

#: kind -> what to do in each state, in the order of their numbers. RST_STREAM is the same as WINDOW_UPDATE.
TABLE: Final = {
    # ......................... IDLE   OPEN  HALF   ENDED   LEFT    RESET   SKIPPED
    frames.DATA: (WRONG, TAKE, LATE, OVER, LATE, IGNORE, LATE),
    frames.HEADERS: (TAKE, TAKE, LATE, OVER, LATE, IGNORE, WRONG),
    frames.WINDOW_UPDATE: (WRONG, TAKE, TAKE, IGNORE, IGNORE, IGNORE, IGNORE),
}

#: Closed streams of which is known how they closed, at least; twice as many at most. Older ones count as skipped.
REMEMBERED: Final = 4096


class Receiver(Protocol):
    """Who reads a stream."""

    def data(self, data: bytes, at: int, stop: int) -> int:
        """The next bytes of the body, `data[at:stop]`; there is at least one.

        Returns how many bytes the receiver holds until more come.
        """
        ...

    def wanted(self, data: bytes, at: int) -> int:
        """How many bytes from `at` on it would take at once, if they all came; 0: it takes each frame as it comes."""
        ...

    def take(self, parts: list[memoryview]) -> None:
        """As many as it wanted, in parts that last for this call alone."""
        ...

    def ended(self) -> None:
        """The peer has said all."""
        ...

    def lost(self) -> None:
        """The stream is gone before it was finished. Nothing is called after it."""
        ...


class Deaf:
    """Reads a stream that was answered in full."""

    def data(self, _data: bytes, _at: int, _stop: int) -> int:
        """Nothing is kept."""
        return 0

    def wanted(self, _data: bytes, _at: int) -> int:
        """Nothing."""
        return 0

    def take(self, parts: list[memoryview]) -> None:
        """Nothing is kept."""

    def ended(self) -> None:
        """Nobody waits."""

    def lost(self) -> None:
        """Nobody waits."""


DEAF: Final = Deaf()


class Stream:
    """One open stream.

    Attributes:
        number: its identifier.
        half_closed: whether the peer has ended its side.
        send_window: bytes that may be sent; below 0 after the peer has made its windows smaller.
        owed: bytes that came and were not yet given back to the peer's window.
        held: bytes that the receiver holds.
        expected: bytes of body still to come by content-length; None where it was not told.
        queue: what waits for a window; None when nothing does.
        last: the frame after all that waits.
        answered: whether anything was answered.
    """

    __slots__ = (
        "answered",
        "expected",
        "half_closed",
        "held",
        "last",
        "number",
        "owed",
        "queue",
        "receiver",
        "send_window",
    )

    def __init__(
        self, number: int, send_window: int, expected: int | None, half_closed: bool = False
    ) -> None:
        self.number = number
        self.send_window = send_window
        self.expected = expected
        self.half_closed = half_closed
        self.owed = self.held = 0
        self.queue: deque[memoryview] | None = None
        self.last = b""
        self.answered = False
        self.receiver: Receiver = DEAF


class Streams:
    """All streams of a connection.

    Attributes:
        open: those that are, by number.
        last: the highest that was ever open.
        closed: how streams closed: those since the last `forget`.
    """

    __slots__ = ("_closed_before", "closed", "last", "open")

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.last = 0
        self.closed: dict[int, int] = {}
        self._closed_before: dict[int, int] = {}  # the `REMEMBERED` before them, forgotten all at once

    def close(self, number: int, how: int) -> None:
        """A stream is over; `how` is one of ENDED, LEFT, RESET."""
        self.closed[number] = how
        if len(self.closed) >= REMEMBERED:
            self.forget()

    def forget(self) -> None:
        """So many have closed that those before them are forgotten; `closed` stays the dict that it is."""
        self._closed_before = dict(self.closed)
        self.closed.clear()

    def idle(self, number: int) -> bool:
        """Whether a stream was never open; even numbers are idle, as nobody here opens one."""
        return number > self.last or not number & 1

    def state(self, number: int) -> int:
        """The state of any stream."""
        stream = self.open.get(number)
        if stream is not None:
            return HALF_CLOSED if stream.half_closed else OPEN
        if self.idle(number):
            return IDLE
        how = self.closed.get(number)
        return self._closed_before.get(number, SKIPPED) if how is None else how

    def admits(self, kind: int, number: int) -> bool:
        """Whether to take a frame in; False: ignore it.

        Raises:
            StreamFault, ConnectionFault: as the table says.
        """
        what = TABLE[kind][self.state(number)]
        if what <= IGNORE:
            return what == TAKE
        if what == LATE:
            raise StreamFault(number, STREAM_CLOSED, "a frame after the end of its stream")
        if what == OVER:
            raise ConnectionFault(STREAM_CLOSED, "a frame for a closed stream")
        raise ConnectionFault(PROTOCOL_ERROR, "a frame for a stream that is not open")
