"""What an exchange does after a message, and the answers that change nothing."""

from typing import Final, NamedTuple

from extproc.core import replies


class Reply(NamedTuple):
    """What to do after a message: send `data`, one message or several, then end the stream with OK if `close`."""

    data: bytes | tuple[bytes, ...] | None
    close: bool = False


SILENCE: Final = Reply(None)
CLOSE: Final = Reply(None, close=True)
#: Answer to request headers whose body is still to come.
GO_ON: Final = Reply(replies.continue_headers(()))
#: "Go on unchanged" for a further piece of a request's body, where one is due.
GO_ON_BODY: Final = Reply(replies.CONTINUE_REQUEST_BODY)
#: The same for the end of a response that told all that the access log would.
ALL_TOLD: Final = Reply(replies.ALL_TOLD)
#: The same for what comes after the decision.
NEUTRAL: Final = {
    "response_headers": Reply(replies.CONTINUE_RESPONSE_HEADERS),
    "response_body": Reply(replies.CONTINUE_RESPONSE_BODY),
    "request_trailers": Reply(replies.CONTINUE_REQUEST_TRAILERS),
    "response_trailers": Reply(replies.CONTINUE_RESPONSE_TRAILERS),
}
