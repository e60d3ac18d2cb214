"""What the HTTP server of the admin port logs: faults of ours in full, requests that are no HTTP in a quiet line.

Whoever sends one, say with a URL of more than 8,190 bytes, is answered 400 with the reason; a line of ours with a
traceback for each would be theirs to write.
"""

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

_NAME: Final = "kvsteer.admin.http"


def quiet_logger() -> logging.Logger:
    """The logger for aiohttp's server."""
    logger = logging.getLogger(_NAME)
    logger.addFilter(_is_ours)  # the same one again changes nothing
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    """Keep a record, or write one without the traceback, for who looks at debug's lines, in its place."""
    fault = record.exc_info[1] if record.exc_info else None
    if not isinstance(fault, HttpProcessingError):
        return True
    logging.getLogger(_NAME).debug("a request that is no HTTP was refused: %s", type(fault).__name__)
    return False
