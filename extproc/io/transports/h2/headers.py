"""Header blocks: decoded (RFC 7541), checked (RFC 9113, section 8), kept by their bytes.

What was made of a block is kept by its bytes, as a peer like Envoy sends few different ones. A block that leaves the
dynamic table as it found it means the same as long as the table stays; where the peer has a table of size 0, it means
the same on every connection. Where Envoy traces, blocks differ by their `traceparent` alone: what was made of the
other fields is kept by what they say.
"""

from itertools import islice
from typing import Final

from extproc.io.transports.h2.decoding import Decoder, Field, TooLarge
from extproc.io.transports.h2.errors import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from extproc.io.transports.h2.limits import Refusals

#: Of section 8.2.2; `te` may say "trailers" and nothing else.
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED: Final = (b":method", b":scheme", b":path")
#: Characters of a name (section 8.2.1: a token of RFC 9110 without capital letters).
_NAME: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_NOT_IN_VALUES: Final = (b"\0", b"\r", b"\n")
#: The field that is another one in each request (https://www.w3.org/TR/trace-context).
_TRACE: Final = b"traceparent"


class Head:
    """One header block: what a request or its trailers say, or what is wrong with it.

    Attributes:
        fields: all fields in order, `:method` and its like included.
        request_fault: why this can't begin a request; "" when it can.
        trailer_fault: why this can't end one; "" when it can.
        content_length: bytes that the body must have; None where none is told.
        trace: its `traceparent`; empty where there is none.
        like: the head that has all but `traceparent` in common with this one; None where this was read by itself.
        note: kept here by who reads heads, so that it is worked out once for each block.
    """

    __slots__ = ("content_length", "fields", "like", "note", "request_fault", "trace", "trailer_fault")

    def __init__(self, fields: list[Field]) -> None:
        self.fields = fields
        self.like: Head | None = None
        self.content_length: int | None = None
        self.note: object = None
        common = _common_fault(fields)
        self.request_fault = common or self._request_fault()
        self.trailer_fault = common or ("a pseudo field in trailers" if _pseudo(fields) else "")
        self.trace = self.get(_TRACE) or b""

    def traced(self, trace: Field, fields: list[Field]) -> "Head":
        """The head of `fields`: these and, after the pseudo fields, `trace`."""
        made = Head.__new__(Head)
        fault = _common_fault([trace])
        made.request_fault = fault or self.request_fault
        made.trailer_fault = fault or self.trailer_fault
        made.fields, made.content_length = fields, self.content_length
        made.like, made.note, made.trace = self, None, trace[1]
        return made

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field; None where it is not there."""
        return next((value for key, value in self.fields if key == name), None)

    def _request_fault(self) -> str:
        names = [name for name, _ in self.fields]
        pseudo = _pseudo(self.fields)
        if names[: len(pseudo)] != pseudo:
            return "a pseudo field after other fields"
        if len(set(pseudo)) != len(pseudo) or not _PSEUDO.issuperset(pseudo):
            return "a pseudo field that is unknown or stands twice"
        return self._target_fault(dict(self.fields[: len(pseudo)])) or self._length_fault()

    @staticmethod
    def _target_fault(pseudo: dict[bytes, bytes]) -> str:
        if pseudo.get(b":method") == b"CONNECT":
            fits = set(pseudo) == {b":method", b":authority"}
            return "" if fits else "CONNECT with a scheme or a path, or without an authority"
        if not all(pseudo.get(name) for name in _NEEDED):
            return "without method, scheme or path"
        return ""

    def _length_fault(self) -> str:
        lengths = {value for name, value in self.fields if name == b"content-length"}
        if not lengths:
            return ""
        value = lengths.pop()
        if lengths or not value.isdigit() or len(value) > 18:
            return "a content-length that is no number"
        self.content_length = int(value)
        return ""


def _pseudo(fields: list[Field]) -> list[bytes]:
    return [name for name, _ in fields if name.startswith(b":")]


def _common_fault(fields: list[Field]) -> str:
    for name, value in fields:
        if not name or not _NAME.issuperset(name.removeprefix(b":")):
            return "a field name with characters that are not allowed"
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            return "a field that belongs to HTTP/1 connections"
        if any(byte in value for byte in _NOT_IN_VALUES) or value != value.strip(b" \t"):
            return "a field value with characters that are not allowed"
    return ""


#: Heads that are kept for one connection whose peer has a dynamic table.
_OWN: Final = 16
#: Bytes of a block of which something is kept.
_LONGEST: Final = 2048


class HeadCache:
    """Heads by the bytes of their block; bounded, the oldest quarter goes when there are too many.

    Many at once, as to ask a dict for its first key takes the longer the more were taken out before it.

    Args:
        most: heads kept, at least 4.
    """

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self.heads: dict[bytes, Head] = {}

    def keep(self, block: bytes, head: Head) -> None:
        """Keep it, unless it is long."""
        if len(block) > _LONGEST:
            return
        if len(self.heads) >= self._most:
            for oldest in list(islice(self.heads, self._most // 4)):
                del self.heads[oldest]
        self.heads[block] = head


class Blocks:
    """Header blocks of one connection, in the order in which they come.

    Args:
        cache: shared by connections whose peers have no dynamic table.
        list_size: most bytes of a decoded block, counted as RFC 7541, section 4.1.
        refusals: told of larger ones.

    Attributes:
        kept: heads of blocks that still mean what they meant; a look at it is quicker than `head`.
    """

    def __init__(self, cache: HeadCache, list_size: int, refusals: Refusals) -> None:
        self._shared = cache
        self._own = self._cache = HeadCache(most=_OWN)
        self.kept = self._cache.heads
        self._refusals = refusals
        self._untraced: dict[tuple[Field, ...], Head] = {}
        self._decoder = Decoder(list_size)

    def head(self, block: bytes) -> Head:
        """What a block says. Raises ConnectionFault where it can't be read: the tables are no longer alike."""
        kept = self.kept.get(block)
        if kept is not None:
            return kept
        decoder = self._decoder
        before = decoder.changes
        fields = self._decode(block)
        head = self._read(fields) if len(block) <= _LONGEST else Head(fields)
        if decoder.changes == before:
            self._cache.keep(block, head)
        else:
            self._own.heads.clear()
            self._cache = self._own if decoder.size else self._shared
            self.kept = self._cache.heads
        return head

    def _read(self, fields: list[Field]) -> Head:
        """The head of fields whose block nobody knows: often those of another one, but for the trace."""
        names = [name for name, _ in fields]
        if _TRACE not in names:
            return Head(fields)
        at = names.index(_TRACE)
        if names[at + 1 : at + 2] and names[at + 1].startswith(b":"):
            return Head(fields)  # it stands where it must not
        others = (*fields[:at], *fields[at + 1 :])
        like = self._untraced.get(others)
        if like is None:
            if len(self._untraced) >= _OWN:
                self._untraced.clear()
            like = self._untraced[others] = Head(list(others))
        return like.traced(fields[at], fields)

    def _decode(self, block: bytes) -> list[Field]:
        try:
            return self._decoder.decode(block)
        except TooLarge as error:
            self._refusals.add("header_list")
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a header list above the limit") from error
        except (ValueError, IndexError) as error:
            raise ConnectionFault(COMPRESSION_ERROR, "a header block that can't be decoded") from error


def literal(name: bytes, value: bytes) -> bytes:
    """A field that no table keeps, without Huffman coding (RFC 7541, section 6.2.2)."""
    return b"\0" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7) + text


def _integer(value: int, bits: int) -> bytes:
    """RFC 7541, section 5.1, with nothing in the bits before the prefix."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    made, value = bytearray((most,)), value - most
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def answer(status: int, *fields: Field) -> bytes:
    """The block of an answer: `status` is an HTTP status of three digits."""
    first = b"\x88" if status == 200 else literal(b":status", b"%d" % status)
    return first + b"".join(literal(name, value) for name, value in fields)
