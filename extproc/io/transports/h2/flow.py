"""Flow control (RFC 9113, section 5.2 and 6.9), both ways.

Outflow holds answers back until the peer has room. Inflow gives bytes back to the peer's windows: the connection's at
once, a stream's as long as unfinished messages stay within the budget. The oldest message that grows is never held
back, so that one always finishes.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import (
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    ConnectionFault,
    StreamFault,
)
from extproc.io.transports.h2.limits import Budget, Limits, Refusals
from extproc.io.transports.h2.streams import Stream

#: What every window is before SETTINGS (section 6.9.2).
DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
#: Windows that we give. A stream's holds most bodies without an update; the connection's many of them.
STREAM_WINDOW: Final = 256 * 1024
#: Bytes that a stream owes when its window is opened again.
HALF: Final = STREAM_WINDOW // 2
CONNECTION_WINDOW: Final = 4 * 2**20
#: Bytes after which the connection's window is given back, looked at once for 16 frames, or gathered messages of
#: several, each below `HALF`. With these more, less than its window was ever used: nobody can pass it.
GIVE_BACK: Final = CONNECTION_WINDOW // 2


class Outflow:
    """What is sent, and what waits for a window.

    A stream that has something to send and room in its own window is ready; only those are ever walked, so that
    the work is in proportion to what is sent, however many streams wait for their own windows.

    Args:
        out: bytes to write.
        finished: called with a stream whose last frame was sent after waiting.
        most: bytes that may wait.
    """

    def __init__(self, out: list[bytes], finished: Callable[[Stream], None], most: int) -> None:
        self.window = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        self.frame = frames.FRAME
        self.queued = 0
        self._out = out
        self._finished = finished
        self._most = most
        self._ready: OrderedDict[int, Stream] = OrderedDict()

    def data(self, stream: Stream, payload: bytes) -> None:
        """Send a part of an answer. Raises ConnectionFault when the peer leaves too much waiting."""
        size = len(payload)
        if stream.queue is None and size <= stream.send_window and size <= self.window and size <= self.frame:
            self.window -= size
            stream.send_window -= size
            self._out.append(frames.HEADER.pack(size << 8, 0, stream.number) + payload)
            return
        if self.queued + size > self._most:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "answers that nobody reads")
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(memoryview(payload))
        self.queued += size
        self._may_send(stream)
        self.pump()

    def forget(self, stream: Stream) -> None:
        """The stream is gone, with what waits."""
        if stream.queue is not None:
            self.queued -= sum(len(part) for part in stream.queue)
            stream.queue = None
            self._ready.pop(stream.number, None)

    def pump(self) -> None:
        """Send what the windows allow, a frame of each stream in turn."""
        ready = self._ready
        while ready and self.window > 0:
            _, stream = ready.popitem(last=False)
            if stream.send_window > 0:  # a smaller INITIAL_WINDOW_SIZE may have shut it meanwhile
                self._one_frame(stream)
                self._may_send(stream)

    def _may_send(self, stream: Stream) -> None:
        if stream.queue is not None and stream.send_window > 0:
            self._ready[stream.number] = stream

    def _one_frame(self, stream: Stream) -> None:
        assert stream.queue
        part = stream.queue[0]
        size = min(len(part), self.window, stream.send_window, self.frame)
        self._out.append(frames.head(size, frames.DATA, 0, stream.number) + bytes(part[:size]))
        self.window -= size
        stream.send_window -= size
        self.queued -= size
        if size < len(part):
            stream.queue[0] = part[size:]
            return
        stream.queue.popleft()
        if stream.queue:
            return
        stream.queue = None
        if stream.last:
            self._out.append(stream.last)
            self._finished(stream)

    def widen(self, more: int) -> None:
        """The peer has room on the connection. Raises ConnectionFault above 2^31-1 (section 6.9.1)."""
        self.window += more
        if self.window > LARGEST_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "a connection window above 2^31-1")
        self.pump()

    def widen_stream(self, stream: Stream, more: int) -> None:
        """The peer has room on one stream. Raises StreamFault above 2^31-1 (section 6.9.1)."""
        stream.send_window += more
        if stream.send_window > LARGEST_WINDOW:
            raise StreamFault(stream.number, FLOW_CONTROL_ERROR, "a stream window above 2^31-1")
        if stream.queue is not None:
            self._may_send(stream)
            self.pump()

    def resize(self, streams: dict[int, Stream], initial: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE: open streams' windows move with it, also below 0 (section 6.9.2).

        Walks all open streams, so it is for once a frame. Raises ConnectionFault above 2^31-1.
        """
        change, self.initial = initial - self.initial, initial
        if not change:
            return
        for stream in streams.values():
            stream.send_window += change
            if stream.send_window > LARGEST_WINDOW:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a stream window above 2^31-1")
            self._may_send(stream)
        if change > 0:
            self.pump()


class Inflow:
    """What came, and what is given back.

    Args:
        out: bytes to write.
        limits: how much may be held.
        budget: shared by all connections.
        refusals: told of streams that are ended for what they would hold.
        notify: called when something is given back while nothing came.

    Attributes:
        held: bytes that receivers hold.
        owed: bytes that came since the connection's window was given back; `give_back` is called at `GIVE_BACK`.
    """

    def __init__(
        self,
        out: list[bytes],
        limits: Limits,
        budget: Budget,
        refusals: Refusals,
        notify: Callable[[], None],
    ) -> None:
        self.held = self.owed = 0
        self._out = out
        self._limit = limits.connection_buffered
        self._most = 2 * self._limit
        self._budget = budget
        self._refusals = refusals
        self._notify = notify
        self._growing: dict[int, Stream] = {}
        self._starved: dict[int, Stream] = {}

    def give_back(self) -> None:
        """So much came that the connection's window is opened again, whoever it was for."""
        self._out.append(frames.window_update(0, self.owed))
        self.owed = 0

    def count(self, stream: Stream, held: int) -> None:
        """A stream's receiver holds `held` bytes now. Raises StreamFault where that is too much."""
        change = held - stream.held
        stream.held = held
        self.held += change
        budget = self._budget
        if change > 0:
            budget.held += change
            if (budget.held >= budget.most or self.held >= self._most) and not self._oldest(stream):
                self._refusals.add("buffered")
                raise StreamFault(stream.number, ENHANCE_YOUR_CALM, "more unfinished messages than allowed")
            return
        if not held and (self._growing or self._starved):
            self._settle(stream)
        budget.release(-change)
        if self._starved:
            self._grant()

    def credit(self, stream: Stream) -> None:
        """Half of a stream's window is used: open it again, now or when there is room."""
        if stream.held:
            self._growing[stream.number] = stream
        if self._may_grow(stream):
            self._give(stream)
            return
        self._starved[stream.number] = stream
        self._budget.wait(self._wake)

    def forget(self, stream: Stream) -> None:
        """The stream is gone, or no more can come on it."""
        if stream.held:
            self.count(stream, 0)
        elif self._growing or self._starved:
            self._settle(stream)

    def close(self) -> None:
        """The connection is gone."""
        self._starved.clear()
        self._budget.forget(self._wake)

    def _settle(self, stream: Stream) -> None:
        """Its message is whole or gone: it needs no favour, and may have its window back."""
        self._growing.pop(stream.number, None)
        if self._starved.pop(stream.number, None) is not None and not stream.half_closed:
            self._give(stream)

    def _may_grow(self, stream: Stream) -> bool:
        return self._room() or self._oldest(stream)

    def _room(self) -> bool:
        return self.held < self._limit and not self._budget.full

    def _oldest(self, stream: Stream) -> bool:
        """Whether no other stream's message has grown for longer."""
        return next(iter(self._growing), stream.number) == stream.number

    def _give(self, stream: Stream) -> None:
        if stream.owed:
            self._out.append(frames.window_update(stream.number, stream.owed))
            stream.owed = 0

    def _grant(self) -> None:
        """Give to all where there is room, else to the oldest alone; the others are not looked at then."""
        if self._room() or not self._growing:
            given = list(self._starved.values())
            self._starved.clear()
        else:
            oldest = self._starved.pop(next(iter(self._growing)), None)
            given = [] if oldest is None else [oldest]
        for stream in given:
            self._give(stream)
        if self._starved:
            self._budget.wait(self._wake)

    def _wake(self) -> None:
        self._grant()
        self._notify()
