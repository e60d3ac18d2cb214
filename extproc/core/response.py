"""The response side of one exchange whose body Envoy sends, in whatever mode: read for its usage, and never changed
but for the model's name where a pool has that told as the client asked (core/answer_name.py).

In FULL_DUPLEX_STREAMED (and GRPC) the gateway holds the body: what it does not send back never reaches the client.
In BUFFERED, BUFFERED_PARTIAL and STREAMED each message is answered "go on" and Envoy passes on its own copy.
"""

from typing import Final

from extproc.core import pieces, replies
from extproc.core.answer_name import AnswerName
from extproc.core.ending import Ending
from extproc.core.usage import bodies, token_usage
from extproc.core.usage.allowance import Allowance
from extproc.core.usage.bodies import BodyUsage
from extproc.pb import ext_proc_pb2 as pb

_Mode = pb.ProcessingMode
#: Modes in which what comes must be sent back, or it is lost.
_ECHOED: Final = frozenset({_Mode.FULL_DUPLEX_STREAMED, _Mode.GRPC})
#: Modes in which pieces come as the replica sends them, so that the first of them tells of the first token.
_PIECEMEAL: Final = frozenset({*_ECHOED, _Mode.STREAMED})

_EVENTS: Final = "text/event-stream"

#: What a body that gave nothing is called beside the records that Envoy makes of bodies itself.
_VERDICTS = {
    bodies.TOO_LARGE: token_usage.PARTIAL,
    bodies.ENCODING: token_usage.FAILED,
    bodies.GARBLED: token_usage.GARBLED,
}


class Response:
    """Fed the messages of a response.

    Args:
        mode: the body mode that Envoy told.
        limit: most bytes of the body kept at any time (core/usage/bodies.py).
        allowed: what reading may take, of all responses together; None for as long as it takes.
    """

    __slots__ = (
        "_allowed",
        "_coding",
        "_echoes",
        "_kind",
        "_left",
        "_limit",
        "_naming",
        "_over",
        "_piecemeal",
        "_read",
        "_reading",
    )

    def __init__(self, mode: int, limit: int, allowed: Allowance | None = None) -> None:
        self._allowed = allowed
        self._limit = limit
        self._echoes = mode in _ECHOED
        self._piecemeal = mode in _PIECEMEAL
        self._kind = self._coding = ""
        self._naming: AnswerName | None = None
        self._reading: BodyUsage | None = None
        self._left = -1  # bytes still to come; below 0 while not told
        self._read = self._over = False

    @property
    def held(self) -> int:
        """Bytes of the body held at this moment, a decoder's window left out."""
        return self._reading.held if self._reading is not None else 0

    @property
    def holding(self) -> bool:
        """Whether the gateway is to send the body back and its end has not come."""
        return self._echoes and not self._over

    @property
    def first_token(self) -> bool:
        """Whether the first token of the answer came, where pieces come as they are made."""
        return self._piecemeal and self._reading is not None and self._reading.first_token

    def headers(self, told: pb.HttpHeaders, ending: Ending) -> None:
        """The response began; `ending` knows its status already."""
        for header in told.headers.headers:
            if header.key == "content-type":
                self._kind = _text(header)
            elif header.key == "content-encoding":
                self._coding = f"{self._coding},{_text(header)}" if self._coding else _text(header)
            elif header.key == "content-length":
                self._left = _length(_text(header))
        if told.end_of_stream:
            self._over = True
            self._end(ending)

    def named(self, name: str) -> bool:
        """Have the model called so in the body to come, if its headers say that it can be read; whether it will."""
        kind = self._kind.partition(";")[0].strip().lower()
        is_json, is_events = kind == "application/json" or kind.endswith("+json"), kind == _EVENTS
        if self._over or not (is_json or is_events) or self._coding.strip().lower() not in ("", "identity"):
            return False
        self._naming = AnswerName(name, events=is_events)
        return True

    def body(self, piece: pb.HttpBody, ending: Ending) -> bytes | tuple[bytes, ...] | None:
        """The next piece of the body: what to answer, in as many messages as it takes.

        Nothing is read or sent back after the end, which Envoy may deliver twice.
        """
        if self._over:
            return None if self._echoes else replies.CONTINUE_RESPONSE_BODY
        body, end, without_message = piece.body, piece.end_of_stream, piece.end_of_stream_without_message
        if self._reading is None:
            self._reading = BodyUsage(self._kind, self._coding, self._limit, ending.status, self._allowed)
        # A client that knows the length may be gone before Envoy tells of the end.
        self._left -= len(body)
        self._over = end or without_message
        last = self._over or self._left == 0
        self._reading.feed(body, last)
        if last:
            self._end(ending)
        goes = body if self._naming is None else self._naming.feed(body)
        if not self._echoes:
            return replies.CONTINUE_RESPONSE_BODY if goes is body else replies.response_body(goes)
        return pieces.of_response(
            goes, end=end, without_message=without_message, compressed=piece.grpc_message_compressed
        )

    def trailers(self, ending: Ending) -> None:
        """Trailers came: they end a body that had no end of its own."""
        self._over = True
        if self._reading is not None:
            self._reading.feed(b"", end=True)
        self._end(ending)

    def left(self, ending: Ending) -> None:
        """The exchange is over before the body was, as with clients that leave at a stream's `[DONE]`."""
        reading = self._reading
        if not self._read and reading is not None and reading.complete:
            ending.found(*token_usage.judged(reading.usage))

    def _end(self, ending: Ending) -> None:
        if self._read:
            return
        self._read = True
        reading = self._reading
        told = token_usage.judged(reading.usage if reading is not None and reading.complete else None)
        if reading is not None and told.verdict == token_usage.ABSENT:
            garbled = token_usage.GARBLED if reading.unreadable else token_usage.ABSENT
            told = token_usage.Told(None, _VERDICTS.get(reading.why, garbled))
        ending.finished(*told)


def _length(text: str) -> int:
    """A content-length; -1 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def _text(header: pb.HeaderValue) -> str:
    return header.raw_value.decode("latin-1") if header.raw_value else header.value
