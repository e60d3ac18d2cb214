"""Structured logs on standard error. No prompt text, header value or credential is ever handed to a logger."""

import contextlib
import logging
import sys
from typing import TextIO

import structlog

from extproc.config import LogSettings


class _Patient:
    """A stream whose reader may be gone: what can't be written is lost, and nobody else notices."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


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
        logger_factory=structlog.PrintLoggerFactory(_Patient(sys.stderr)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
