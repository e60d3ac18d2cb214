"""Structured logs on standard error. No prompt text, header value or credential is ever handed to a logger.

Lines are written by a thread of their own: a pipe whose reader has stopped reading would otherwise stop the event
loop, and with it every request. What such a reader leaves waiting beyond a bound is dropped, counted and told.
Warnings and errors of one kind are told a few times, then counted (io/repeats.py).
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
from extproc.io.repeats import BoundedRepeats

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
    repeats = BoundedRepeats()
    structlog.configure(
        processors=[
            repeats,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_writer()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    atexit.register(repeats.flush)  # before the writer's end, as what is registered last goes first
    _take_over()


def _take_over() -> None:
    """What libraries log goes the same way, in the same form; nobody's call waits for standard error."""
    root = logging.getLogger()
    if not any(isinstance(handler, _Foreign) for handler in root.handlers):
        root.addHandler(_Foreign(logging.WARNING))


class _Foreign(logging.Handler):
    """Lines of Python's own logging, which libraries use, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over. Its kind is who wrote it, since its text may hold anything."""
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # their arguments don't fit their text
            said = str(record.msg)
        level = logging.ERROR if record.levelno >= logging.ERROR else logging.WARNING
        structlog.get_logger(record.name).log(
            level, f"told by {record.name}", says=said, exc_info=record.exc_info
        )
