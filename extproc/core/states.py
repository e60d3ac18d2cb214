"""The states of an exchange, and the words for how it was dealt with."""

from typing import Final

#: In the order in which an exchange goes through them.
START, BODY, UNREAD, HELD, DECIDED, OVER = range(6)

# How an exchange was dealt with: a closed set that labels metrics.
STEERED: Final = "steered"
UNREADABLE: Final = "unreadable"
NO_BODY: Final = "no_body"
NO_CANDIDATE: Final = "no_candidate"
BAD_REQUEST: Final = "bad_request"
TOO_LARGE: Final = "too_large"
UNKNOWN_MODEL: Final = "unknown_model"
NOT_ADMITTED: Final = "not_admitted"
OTHER_MODE: Final = "other_mode"
NOT_EXT_PROC: Final = "not_ext_proc"
OBSERVED: Final = "observed"
ANSWERED: Final = "answered"
ENDED_EARLY: Final = "ended_early"
