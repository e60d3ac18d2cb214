"""A request whose body comes in pieces and goes on only as the gateway sends it (FULL_DUPLEX_STREAMED).

Envoy keeps no copy of what it gave, so each byte is held here until the decision, and sent back once. Answers come in
the order in which Envoy demands them: headers, pieces of the body, trailers.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from extproc.core import replies
from extproc.pb import ext_proc_pb2 as pb

#: Largest piece sent on, bytes: some data planes take no message above 64 KiB, and the endpoint pickers that they
#: were made for keep to this bound.
MOST: Final = 62_000

_END = b"\x10\x01"  # StreamedBodyResponse { end_of_stream: true }


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
        return (headers, *_pieces_of(whole, ends), *self._last())

    def _last(self) -> tuple[bytes, ...]:
        return (replies.CONTINUE_REQUEST_TRAILERS,) if self._by_trailers else ()


def _pieces_of(body: bytes, ends: bool) -> Iterator[bytes]:
    """The body in messages of at most MOST bytes; the end goes with the last. An empty one is told only as an end."""
    if not body and not ends:
        return
    last = max(0, (len(body) - 1) // MOST) * MOST
    view = memoryview(body)
    for at in range(0, last, MOST):
        yield _piece(view[at : at + MOST], b"")
    yield _piece(view[last:], _END if ends else b"")


def _piece(data: memoryview, tail: bytes) -> bytes:
    return b"".join((_head(len(data), len(tail)), data, tail))


@lru_cache(maxsize=1024)
def _head(size: int, tail: int) -> bytes:
    """What stands before a piece on the wire, where `tail` bytes follow it: its length in each message around it.

    ProcessingResponse { request_body { response { body_mutation { streamed_response { body } } } } }
    """
    head = b"\x0a" + replies.varint(size)
    for tag in (b"\x1a", b"\x1a", b"\x0a", b"\x1a"):
        head = tag + replies.varint(len(head) + size + tail) + head
    return head
