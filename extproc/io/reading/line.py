"""The gateway's end of the socket to its reading process: a body goes out in small parts, an answer comes back.

Each part is what the socket takes at once, about 200 KiB and 0.1 ms, and other work has its turn between two.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from extproc.core.reading import Found, Unread
from extproc.io.reading import form

#: Views given to the system at a time.
_VIEWS: Final = 32
#: Bytes asked of the socket at a time.
_READ: Final = 256 * 1024


class Line:
    """One body at a time.

    Args:
        connected: the socket, not blocking; closed by `close`.
        first: said before all bodies.
        done: given what was found, and the body without its coding where that came back, else nothing.
        lost: called once when the other end is gone or speaks nonsense.
    """

    def __init__(
        self,
        connected: socket.socket,
        first: bytes,
        done: Callable[[Found, memoryview], None],
        lost: Callable[[], None],
    ) -> None:
        self._socket = connected
        self._done, self._lost = done, lost
        self._loop = asyncio.get_running_loop()
        self._views: deque[memoryview] = deque((memoryview(first),))
        self._unread: Unread | None = None
        self._got = bytearray()
        self._closed = False
        self._loop.add_reader(connected, self._read)

    def send(self, unread: Unread) -> None:
        """Have a body read; once the last one was."""
        self._unread = unread
        self._views.extend((memoryview(form.asked(unread)), *unread.views()))
        self._loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        """Hang up."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._views.clear()
        self._socket.close()

    def _write(self) -> None:
        views = self._views
        try:
            sent = self._socket.sendmsg([views[i] for i in range(min(_VIEWS, len(views)))])
        except BlockingIOError:
            return
        except OSError:
            self._break()
            return
        while views and sent >= len(views[0]):
            sent -= len(views.popleft())
        if sent:
            views[0] = views[0][sent:]
        if not views:
            self._loop.remove_writer(self._socket)
            if self._unread is not None:
                self._unread.handed_over()
                self._unread = None

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._break()
            return
        got = self._got
        got += data
        if len(got) < form.ANSWER.size or len(got) < form.size_of(got):
            return
        self._got = bytearray()
        try:
            found, body = form.found_in(got)
        except (ValueError, KeyError, TypeError):
            self._break()
            return
        self._loop.call_soon(self._done, found, body)  # both take a millisecond for a long prompt

    def _break(self) -> None:
        self.close()
        self._lost()
