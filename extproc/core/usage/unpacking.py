"""A response body out of its content-encoding while it comes, in bounded memory.

gzip and deflate need a window of 32 KiB and are undone piece by piece. br and zstd need windows of megabytes
(4 MiB and more at the usual settings) for as long as the stream lasts: their bodies, and those in several codings,
are undone at their end, when they are no larger than the limit until then.
"""

import zlib
from collections.abc import Iterator

from extproc.core import encoding
from extproc.errors import TooLarge, Unreadable

#: Bytes asked of zlib at a time.
_BLOCK = 32 * 1024
#: Most times its size that a body which is undone at its end may grow to, in memory for a moment. JSON and
#: events of short texts shrink to a tenth or a fifteenth.
_MOST_GROWTH = 16
#: Bytes given of each piece fed, and of a response, beside `_MOST_GROWTH` times what came: short texts that repeat
#: themselves shrink to less. It bounds the work: JSON that is all escapes is read at some 64 MB/s, and nothing else
#: of the gateway goes on meanwhile.
_FREE = 4 * 2**20
#: Most bytes given of one piece, whatever its size: 0.13 s of such work.
_MOST_AT_ONCE = 8 * 2**20
#: Most gzip members in one body.
_MAX_MEMBERS = 16

_GZIP = ("gzip", "x-gzip")


def codings(content_encoding: str) -> list[str]:
    """The codings a content-encoding header names, in lower case, without those that change nothing."""
    names = map(str.strip, content_encoding.lower().split(","))
    return [name for name in names if name not in ("", "identity")]


class Unpacking:
    """Fed an encoded body in pieces. Raises `Unreadable` or `TooLarge` for what can't be undone within bounds."""

    __slots__ = ("_coding", "_held", "_inflater", "_left", "_limit", "_members", "_room")

    def __init__(self, content_encoding: str, limit: int) -> None:
        """`limit`: most encoded bytes kept of a body that can only be undone whole."""
        self._coding = ",".join(
            name
            for name in map(str.strip, content_encoding.lower().split(","))
            if name and name != "identity"
        )
        self._limit = limit
        self._room = _FREE  # bytes that the response may still give
        self._left = 0  # ... and this piece of it
        self._members = 1
        self._inflater: zlib._Decompress | None = None
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes held at this moment, zlib's window of 32 KiB left out."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` gives, in pieces of a few ten KiB."""
        if self._coding in _GZIP or self._coding == "deflate":
            return self._inflated(data)
        if len(self._held) + len(data) > self._limit:
            raise TooLarge("too_large")
        self._held += data
        return iter(())

    def close(self) -> Iterator[bytes]:
        """What is left at the end of the body."""
        if not self._held:
            return iter(())
        body, self._held = bytes(self._held), bytearray()
        most = max(self._limit, min(self._limit * _MOST_GROWTH, _MOST_AT_ONCE))
        return iter((encoding.decode(body, self._coding, most),))

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        self._left = min(_FREE + len(data) * _MOST_GROWTH, _MOST_AT_ONCE)
        self._room += len(data) * _MOST_GROWTH
        if self._inflater is None:
            data = bytes(self._held) + data
            self._held = bytearray(data if len(data) < 2 else b"")
            if self._held or not data:
                return
            self._inflater = self._new(data)
        piece = b""
        while data or len(piece) == _BLOCK:  # with a full block zlib may have more ready
            if data and self._inflater.eof:
                self._inflater = self._next_member()
            piece, data = self._step(self._inflater, data)
            yield piece

    def _step(self, inflater: "zlib._Decompress", data: bytes) -> tuple[bytes, bytes]:
        """One block out of `data`, and what is left of it."""
        try:
            piece = inflater.decompress(data, _BLOCK)
        except zlib.error:
            raise Unreadable("bad_encoding") from None
        self._room -= len(piece)
        self._left -= len(piece)
        if self._room < 0 or self._left < 0:
            raise TooLarge("too_large")
        return piece, inflater.unconsumed_tail or inflater.unused_data

    def _next_member(self) -> "zlib._Decompress":
        self._members += 1
        if self._coding == "deflate" or self._members > _MAX_MEMBERS:
            raise Unreadable("bad_encoding")
        return zlib.decompressobj(16 + zlib.MAX_WBITS)

    def _new(self, data: bytes) -> "zlib._Decompress":
        """A decoder for a body that begins with `data`: deflate comes with zlib's two bytes, or without."""
        if self._coding in _GZIP:
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        wrapped = data[0] & 15 == zlib.DEFLATED and (data[0] << 8 | data[1]) % 31 == 0  # RFC 1950, 2.2
        return zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
