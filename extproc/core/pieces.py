"""Pieces of bodies in full duplex, as bytes: the gateway's answers that carry a body on, built around it.

    ProcessingResponse { request_body or response_body { response { body_mutation { streamed_response { body ... }}}}}

What stands before a piece depends on its length alone, and what follows it on its flags, so that nothing is built for
a piece but the message itself: a stream has thousands.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

#: Largest piece sent on, bytes: some data planes take no message above 64 KiB, and the endpoint pickers that they
#: were made for keep to this bound (the reference pickers of the Gateway API Inference Extension).
MOST: Final = 62_000

#: The field of ProcessingResponse, and those within it down to the body, each as its tag on the wire.
_REQUEST, _RESPONSE = b"\x1a", b"\x22"
_WITHIN = b"\x0a", b"\x1a", b"\x1a", b"\x0a"

# Fields of StreamedBodyResponse after the body.
_END = b"\x10\x01"  # end_of_stream
_END_WITHOUT_MESSAGE = b"\x18\x01"  # end_of_stream_without_message
_COMPRESSED = b"\x20\x01"  # grpc_message_compressed


def of_request(body: bytes, *, ends: bool) -> Iterator[bytes]:
    """A request's body in messages of at most MOST bytes; the end goes with the last. An empty one is told only as
    an end."""
    if body or ends:
        yield from _cut(_REQUEST, body, _END if ends else b"")


def of_response(
    body: bytes, *, end: bool = False, without_message: bool = False, compressed: bool = False
) -> bytes | tuple[bytes, ...]:
    """A piece of a response's body, sent back unchanged, in as many messages as it takes.

    Args:
        body: as it came, empty too.
        end, without_message, compressed: what came with it; goes with the last message.
    """
    tail = (
        (_END if end else b"")
        + (_END_WITHOUT_MESSAGE if without_message else b"")
        + (_COMPRESSED if compressed else b"")
    )
    if len(body) <= MOST:
        return _head(_RESPONSE, len(body), len(tail)) + body + tail
    return tuple(_cut(_RESPONSE, body, tail))


def _cut(kind: bytes, body: bytes, tail: bytes) -> Iterator[bytes]:
    last = max(0, (len(body) - 1) // MOST) * MOST
    view = memoryview(body)
    for at in range(0, last, MOST):
        yield b"".join((_head(kind, MOST, 0), view[at : at + MOST]))
    yield b"".join((_head(kind, len(body) - last, len(tail)), view[last:], tail))


@lru_cache(maxsize=4096)
def _head(kind: bytes, size: int, tail: int) -> bytes:
    """What stands before a piece on the wire, where `tail` bytes follow it: its length in each message around it."""
    *outer, innermost = kind, *_WITHIN
    head = innermost + varint(size)
    for tag in reversed(outer):
        head = tag + varint(len(head) + size + tail) + head
    return head


@lru_cache(maxsize=4096)
def varint(size: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    length = bytearray()
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length)
