"""A message with a request body, taken apart by hand: of a large one all but the body parsed, the body where it lies.

Protobuf would copy the body twice, once as it parses and once as it is asked for, 20 ms each for 32 MiB. Only the
usual layout is read here, `request_body { body }` once each; anything else is left to protobuf.

The wire format: https://protobuf.dev/programming-guides/encoding/
"""

from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from extproc.core.pieces import varint
from extproc.core.scattered import Pieces
from extproc.pb import ext_proc_pb2 as pb

#: ProcessingRequest.request_body, and HttpBody.body: field number << 3 | 2 (a length and so many bytes).
_REQUEST_BODY: Final = 4 << 3 | 2
_BODY: Final = 1 << 3 | 2
#: Most bytes beside the body. Headers are not among them, so it is attributes and metadata: a few KiB.
_MOST_BESIDE: Final = 2**20
#: Most fields looked at: a message that has more is no Envoy's.
_MOST_FIELDS: Final = 1000
#: Bytes of the longest tag and length together.
_HEAD: Final = 20
#: Bytes of a field's value by its wire type, where that says it.
_FIXED: Final = {1: 8, 5: 4}

#: What follows a body that is whole: `end_of_stream: true`, and the empty `metadata_context` that Envoy sends along.
_END: Final = b"\x10\x01"
_END_AND_METADATA: Final = b"\x10\x01B\x00"

#: Messages of up to so many bytes are cut, which is done before a view of them is made: others are not copied.
_SMALL: Final = 4096


def whole_body(data: bytes) -> bytes | memoryview | None:
    """The body of a message that holds all of it and tells nothing else; None for any other message.

    That is what Envoy sends for nearly every request with a body.
    """
    tail = data[
        -len(_END_AND_METADATA) :
    ]  # slices are compared in less than `startswith` and `endswith` take
    if tail == _END_AND_METADATA:
        end = len(data) - len(_END_AND_METADATA)
    elif tail.endswith(_END):
        end = len(data) - len(_END)
    else:
        return None
    before = _before(end)
    begin = len(before)
    if data[:begin] != before:
        return None
    return data[begin:end] if end <= _SMALL else memoryview(data)[begin:end]


@lru_cache(maxsize=4096)
def _before(end: int) -> bytes:
    """What stands before a body that ends at `end`: both tags and lengths, whose own lengths depend on the body's."""
    for taken in range(4, 13):  # a tag and a length of one to five bytes, twice
        size = end - taken
        inner = bytes((_BODY,)) + varint(max(size, 0))
        before = bytes((_REQUEST_BODY,)) + varint(len(inner) + max(size, 0) + len(_END)) + inner
        if len(before) == taken and size >= 0:
            return before
    return b"\0"  # which begins no message


class _Found(NamedTuple):
    """A field's value, and every other field as it was."""

    at: int
    size: int
    others: bytes


def opened(pieces: Pieces) -> tuple[pb.ProcessingRequest, Pieces] | None:
    """The message with an empty body, and the body; None where it has another form."""
    outer = _found(pieces, 0, pieces.size, _REQUEST_BODY)
    inner = outer and _found(pieces, outer.at, outer.at + outer.size, _BODY)
    if outer is None or inner is None:
        return None
    try:
        message = pb.ProcessingRequest.FromString(outer.others)
        if message.WhichOneof("request") is not None:
            return None  # two of which the last counts
        message.request_body.MergeFromString(inner.others)
    except DecodeError:
        return None
    message.request_body.SetInParent()
    return message, pieces.part(inner.at, inner.size)


def _found(pieces: Pieces, at: int, end: int, wanted: int) -> _Found | None:
    """The one field with the tag `wanted` of the message between `at` and `end`."""
    others: list[bytes] = []
    beside, place, size = 0, -1, 0
    for _ in range(_MOST_FIELDS):
        if at == end:
            return _Found(place, size, b"".join(others)) if place >= 0 else None
        head = pieces.cut(at, min(_HEAD, end - at))
        tag, begin = _varint(head, 0)
        length, begin = _length(head, tag, begin)
        stop = at + begin + length
        if begin == 0 or stop > end:
            return None
        if tag == wanted:
            if place >= 0:
                return None
            place, size = at + begin, length
        else:
            beside += stop - at
            if beside > _MOST_BESIDE:
                return None
            others.append(pieces.cut(at, stop - at))
        at = stop
    return None


def _length(head: bytes, tag: int, at: int) -> tuple[int, int]:
    """Bytes of a field's value, and where it begins in `head`; 0 there for what can't be read."""
    kind = tag & 7
    if not at or kind not in (0, 1, 2, 5):
        return 0, 0
    if kind in _FIXED:
        return _FIXED[kind], at
    value, after = _varint(head, at)
    return (value, after) if kind == 2 or not after else (after - at, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends; 0 there where it does not within ten bytes."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, 0
