"""Immediate responses to requests that can't be placed, built once."""

from typing import Final, NamedTuple

from extproc.core import replies


class Refused(NamedTuple):
    """The status that a client gets, and the message to Envoy that makes it."""

    status: int
    message: bytes


def _made(status: int, message: str, kind: str, code: str, *, retry_after: int | None = None) -> Refused:
    return Refused(status, replies.refuse(status, message, kind, code, retry_after=retry_after))


_INVALID: Final = "invalid_request_error"

TOO_LARGE: Final = _made(
    413, "The request body is too large; send less or ask for a higher limit.", _INVALID, "payload_too_large"
)
BAD_REQUEST: Final = _made(
    400,
    "The request body can't be read as this path's API; check its JSON and fields.",
    _INVALID,
    "invalid_body",
)
UNKNOWN_MODEL: Final = _made(
    404, "The model does not exist here; GET /v1/models lists those that do.", _INVALID, "model_not_found"
)
NO_CANDIDATE: Final = _made(
    503,
    "No replica can take this request now; try again shortly.",
    "server_error",
    "no_replica",
    retry_after=1,
)
