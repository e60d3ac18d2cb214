"""What an exchange does after a message, and the answers that change nothing."""

from typing import Final, TypeAlias

from extproc.core import replies

#: What to do after a message: send this, one message or several, and then end the stream with OK or go on. Plain, as
#: one is made for every request.
Reply: TypeAlias = tuple[bytes | tuple[bytes, ...] | None, bool]

SILENCE: Final[Reply] = (None, False)
CLOSE: Final[Reply] = (None, True)
#: Answer to request headers whose body is still to come.
GO_ON: Final[Reply] = (replies.continue_headers(()), False)
#: "Go on unchanged" for a further piece of a request's body, where one is due.
GO_ON_BODY: Final[Reply] = (replies.CONTINUE_REQUEST_BODY, False)
#: The same for the end of a response that told all that the access log would.
ALL_TOLD: Final[Reply] = (replies.ALL_TOLD, False)
#: The same for what comes after the decision.
NEUTRAL: Final[dict[str, Reply]] = {
    "response_headers": (replies.CONTINUE_RESPONSE_HEADERS, False),
    "response_body": (replies.CONTINUE_RESPONSE_BODY, False),
    "request_trailers": (replies.CONTINUE_REQUEST_TRAILERS, False),
    "response_trailers": (replies.CONTINUE_RESPONSE_TRAILERS, False),
}
