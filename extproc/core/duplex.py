"""A request whose body comes in pieces and goes on only as the gateway sends it (FULL_DUPLEX_STREAMED).

Envoy keeps no copy of what it gave, so each byte is held here until the decision, and sent back once. Answers come in
the order in which Envoy demands them: headers, pieces of the body, trailers.
"""

from extproc.core import pieces, replies
from extproc.core.scattered import Pieces
from extproc.pb import ext_proc_pb2 as pb


class Shelf:
    """What all bodies of a gateway take that are held so.

    Attributes:
        size: bytes now.
        most: bytes that may be; beyond, requests are refused.
    """

    __slots__ = ("most", "size")

    def __init__(self, most: int) -> None:
        self.size = 0
        self.most = most


class Duplex:
    """Fed the pieces of a body, and gives them back with the decision.

    Args:
        shelf: where it counts until it is given back or dropped.

    Attributes:
        size: bytes that came.
        complete: whether the body has come to its end: by a last piece, or by trailers.
        keeps: whether what came was neither given back nor dropped.
    """

    __slots__ = ("_by_trailers", "_got", "_shelf", "complete", "keeps", "size")

    def __init__(self, shelf: Shelf) -> None:
        self._got = bytearray()  # a list would take forty times as much for pieces of one byte
        self._shelf = shelf
        self._by_trailers = False
        self.size = 0
        self.complete = False
        self.keeps = True

    def feed(self, message: pb.ProcessingRequest) -> None:
        """The next piece, or trailers, which end a body whose last piece did not.

        What comes after the end is ignored: Envoy may tell the end twice.
        """
        if self.complete:
            return
        if message.HasField("request_trailers"):
            self._by_trailers = self.complete = True
            return
        piece = message.request_body
        size = len(piece.body)
        self.size += size
        self._shelf.size += size
        self._got += piece.body
        self.complete = piece.end_of_stream

    @property
    def body(self) -> bytes:
        """All that came."""
        return bytes(self._got)

    @property
    def where_it_lies(self) -> Pieces:
        """All that came, not copied; once it is complete."""
        return Pieces([self._got])

    @property
    def crowded(self) -> bool:
        """Whether all such bodies together take more than they may."""
        return self._shelf.size > self._shelf.most

    def drop(self) -> None:
        """Forget what came: it was given back, or goes nowhere. Idempotent."""
        if self.keeps:
            self._shelf.size -= self.size
        self._got = bytearray()
        self.keeps = False

    def answer(
        self, headers: bytes, body: bytes | None = None, *, decoded: bool = False
    ) -> tuple[bytes, ...]:
        """Everything that Envoy waits for; call it once.

        Args:
            headers: the answer to the request's headers.
            body: sent on instead of what came; None for that.
            decoded: whether what came was in a content-encoding, and `body` is not.
        """
        if body is not None:
            headers += replies.with_length(len(body), decoded=decoded)
        whole = self.body if body is None else body
        self.drop()
        ends = self.complete and not self._by_trailers
        return (headers, *pieces.of_request(whole, ends=ends), *self._last())

    def _last(self) -> tuple[bytes, ...]:
        return (replies.CONTINUE_REQUEST_TRAILERS,) if self._by_trailers else ()
