"""Structured logs on standard error. No prompt text, header value or credential is ever handed to a logger.

Lines are written by a thread of their own: a pipe whose reader has stopped reading would otherwise stop the event
loop, and with it every request. What such a reader leaves waiting beyond a bound is dropped, counted and told.
"""

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
from typing import Final

import structlog

from extproc.config import LogSettings

#: Most lines that wait to be written.
_MOST_WAITING: Final = 4096
#: Longest that the end of the process waits for the last lines, in seconds.
_LAST_WAIT: Final = 1.0


class LogWriter:
    """Writes lines to a file descriptor from its own thread. What can't be written is lost, and nobody else notices.

    Args:
        fd: where lines go.
        most: most lines that wait; further ones are dropped.
    """

    def __init__(self, fd: int, most: int = _MOST_WAITING) -> None:
        self.dropped = 0
        self._fd = fd
        self._waiting: queue.Queue[str | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Hand over a piece of text; never waits."""
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self.dropped += 1
        return len(text)

    def flush(self) -> None:
        """Nothing to do: lines are on their way already."""

    def close(self) -> None:
        """Write what waits, for at most a second."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_LAST_WAIT)

    def _work(self) -> None:
        told = 0
        while (text := self._waiting.get()) is not None:
            self._put(text)
            if self.dropped > told and self._waiting.empty():
                self._put(f"... {self.dropped - told} pieces of log were dropped: nobody read them in time\n")
                told = self.dropped

    def _put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # its reader is gone
            while data:
                data = data[os.write(self._fd, data) :]


_writers: dict[int, LogWriter] = {}


def _writer() -> LogWriter:
    """The one writer of standard error."""
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError):  # replaced by something that is no file
        fd = 2
    if fd not in _writers:
        _writers[fd] = LogWriter(fd)
        atexit.register(_writers[fd].close)
    return _writers[fd]


def configure(settings: LogSettings) -> None:
    """Set up logging for this process."""
    render = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_writer()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
