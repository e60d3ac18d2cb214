"""Immediate responses to requests that can't be placed, built once."""

from typing import Final

from extproc.core import replies

_INVALID: Final = "invalid_request_error"

TOO_LARGE: Final = replies.refuse(
    413, "The request body is too large; send less or ask for a higher limit.", _INVALID, "payload_too_large"
)
BAD_REQUEST: Final = replies.refuse(
    400,
    "The request body can't be read as this path's API; check its JSON and fields.",
    _INVALID,
    "invalid_body",
)
UNKNOWN_MODEL: Final = replies.refuse(
    404, "The model does not exist here; GET /v1/models lists those that do.", _INVALID, "model_not_found"
)
NO_CANDIDATE: Final = replies.refuse(
    503,
    "No replica can take this request now; try again shortly.",
    "server_error",
    "no_replica",
    retry_after=1,
)
