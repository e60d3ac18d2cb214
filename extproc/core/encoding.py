"""Request bodies out of their content-encoding, with a bound on what they may grow to."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import brotli
import zstandard

from extproc.errors import TooLarge, Unreadable

#: Bytes handed to and asked of a decoder at a time, where its library can't be told a limit outright.
_BLOCK = 64 * 1024

#: Most codings one body may be wrapped in; each is a pass over all of it. Nobody is known to use two.
_MAX_CODINGS = 4

#: Most gzip members or zstd frames in one body. Concatenated files have a few; each costs a new decoder.
_MAX_MEMBERS = 16

#: Largest zstd window accepted: what RFC 9659 lets a sender of this content-encoding use.
_ZSTD_WINDOW = 8 * 2**20

#: A zstd block gives at most 128 KiB (RFC 8878, 3.1.1.2.4) and takes at least 4 bytes (3 of header, 1 of an
#: RLE block): so many output bytes at most for one of input.
_ZSTD_EXPANSION = 32 * 1024

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


#: Largest head of a brotli stream that is looked at: 14 bits at most say what its first meta-block holds, and 24
#: how much (RFC 7932, 9.1 and 9.2).
_BROTLI_HEAD = 8

#: Bits of a brotli window that no stream has, for one that can't be read here ("large window brotli").
_NO_WINDOW = 62


def decode(body: bytes, content_encoding: str, limit: int) -> bytes:
    """`body` without its content-encoding: identity, gzip, deflate, br, zstd or a list of these.

    A list names the codings in the order they were applied. At no time more than `limit` bytes and one
    block of a codec (a few hundred KiB) are held per coding. Raises `TooLarge` above `limit` bytes, and
    `Unreadable("bad_encoding")` for an unknown coding and for broken off or garbled bytes.
    """
    return _undone(body, content_encoding, limit, _DECODERS)


def decode_at_once(body: bytes, content_encoding: str, limit: int) -> bytes:
    """As `decode`, with no more work than `limit` bytes and the body's own make, for those whom others wait for.

    Raises `TooLarge` above `limit` bytes, and where a decoder can't be kept from making more at a time: brotli fills
    its window before it gives anything, 16 MiB out of 50 bytes (75 ms).
    """
    return _undone(body, content_encoding, limit, _AT_ONCE)


#: Takes a body and most bytes it may expand to.
_Decoder = Callable[[bytes, int], bytes]


def _undone(body: bytes, content_encoding: str, limit: int, decoders: Mapping[str, _Decoder]) -> bytes:
    codings = [name for name in map(str.strip, content_encoding.lower().split(",")) if name]
    if len(codings) > _MAX_CODINGS:
        raise _bad()
    for name in reversed(codings):
        decoder = decoders.get(name)
        if decoder is None:
            raise _bad()
        body = decoder(body, limit) if body else body
    if len(body) > limit:
        raise _too_large()
    return body


def _bad() -> Unreadable:
    return Unreadable("bad_encoding")


def _too_large() -> TooLarge:
    return TooLarge("too_large")


def _identity(body: bytes, limit: int) -> bytes:
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    return _collected(_gzip_members(body, limit), limit)


def _gzip_members(body: bytes, room: int) -> Iterator[bytes]:
    """What each gzip member holds, one after the other; zlib itself stops one byte above the room left."""
    for _ in range(_MAX_MEMBERS):
        piece, body = _inflated(body, _GZIP, room)
        yield piece
        room -= len(piece)
        if not body:
            return
    raise _bad()


def _inflated(body: bytes, window: int, limit: int) -> tuple[bytes, bytes]:
    """One whole zlib stream and the bytes after it."""
    decoder = zlib.decompressobj(window)
    try:
        piece = decoder.decompress(body, limit + 1)
    except zlib.error:
        raise _bad() from None
    if len(piece) > limit:
        raise _too_large()
    if not decoder.eof:
        raise _bad()
    return piece, decoder.unused_data


def _deflate(body: bytes, limit: int) -> bytes:
    """Deflate with its zlib wrapper, as RFC 9110 has it, or without, as some clients send it."""
    try:
        piece, rest = _inflated(body, zlib.MAX_WBITS, limit)
    except TooLarge:
        raise
    except Unreadable:
        piece, rest = _inflated(body, _RAW, limit)
    if rest:
        raise _bad()
    return piece


def _brotli(body: bytes, limit: int) -> bytes:
    return _collected(_brotli_blocks(body), limit)


def _brotli_blocks(body: bytes) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    view = memoryview(body)
    try:
        for at in range(0, len(view), _BLOCK):
            piece = decoder.process(view[at : at + _BLOCK], output_buffer_limit=_BLOCK)
            # `can_accept_more_data` is no sign that all is out, only that all is in: asked until nothing comes.
            while piece or not decoder.can_accept_more_data():
                yield piece
                if decoder.is_finished():
                    break
                piece = decoder.process(b"", output_buffer_limit=_BLOCK)
    except brotli.error:
        raise _bad() from None
    if not decoder.is_finished():
        raise _bad()


def _brotli_at_once(body: bytes, limit: int) -> bytes:
    if _brotli_burst(body) > limit:
        raise _too_large()
    return _brotli(body, limit)


def _brotli_burst(body: bytes) -> int:
    """Most bytes that a decoder makes before it can be stopped: all, where the head says how much, or its window.

    By RFC 7932, 9.1 and 9.2: bits from the lowest of each byte on. What is garbled gives any number.
    """
    bits = _Bits(int.from_bytes(body[:_BROTLI_HEAD], "little"))
    window = _brotli_window(bits)
    if not bits.take(1):  # others follow, of which nothing is known
        return 1 << window
    if bits.take(1):  # the last one, and empty
        return 0
    nibbles = bits.take(2)
    return 1 << window if nibbles == 3 else bits.take(4 * (4 + nibbles)) + 1


def _brotli_window(bits: "_Bits") -> int:
    """Bits of the window."""
    if not bits.take(1):
        return 16
    if high := bits.take(3):
        return 17 + high
    low = bits.take(3)
    return {0: 17, 1: _NO_WINDOW}.get(low, 8 + low)


class _Bits:
    """A number taken apart from its lowest bit on."""

    def __init__(self, number: int) -> None:
        self._number = number

    def take(self, count: int) -> int:
        """The next bits."""
        taken = self._number & ((1 << count) - 1)
        self._number >>= count
        return taken


#: Fewest bytes a zstd decoder is fed at a time: it may pass the limit by what they expand to, 256 KiB.
_ZSTD_FED = 8

#: Most pieces a zstd body is fed in: 0.6 s, where 30 MiB of empty blocks just below the limit took 44 s. A body
#: that grows, or at least doesn't shrink, takes _ZSTD_EXPANSION * (ln(limit / 256 KiB) + 1) at most: the
#: integral of one over the feed, and the floor. That is 214,000 for 64 MiB and 305,000 for 1 GiB.
_ZSTD_PIECES = 400_000


def _zstd(body: bytes, limit: int) -> bytes:
    return _collected(_zstd_blocks(body, limit, _ZSTD_FED), limit)


def _zstd_at_once(body: bytes, limit: int) -> bytes:
    """Measured by a reader that takes a limit, but doesn't tell a whole body from a broken off one; then all at once.

    Fed in small pieces, 200 KiB would take 27 ms.
    """
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        size = len(context.stream_reader(body, read_across_frames=True).read(limit + 1))
    except zstandard.ZstdError:
        raise _bad() from None
    if size > limit:
        raise _too_large()
    return _collected(_zstd_blocks(body, limit, len(body)), limit)


def _zstd_blocks(body: bytes, room: int, least: int) -> Iterator[bytes]:
    """The content of all frames; the decoder takes no limit, so it is fed what can't outgrow the room, or `least`."""
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    decoder = context.decompressobj()
    view, at, frames, pieces = memoryview(body), 0, 1, 0
    while at < len(view):
        pieces += 1
        if pieces > _ZSTD_PIECES:
            raise _bad()
        if decoder.eof:
            decoder, frames = context.decompressobj(), frames + 1
            if frames > _MAX_MEMBERS:
                raise _bad()
        fed = view[at : at + max(least, room // _ZSTD_EXPANSION)]
        try:
            piece = decoder.decompress(fed)
        except zstandard.ZstdError:
            raise _bad() from None
        yield piece
        at += len(fed) - len(decoder.unused_data)
        room -= len(piece)
    if not decoder.eof:
        raise _bad()


def _collected(blocks: Iterator[bytes], limit: int) -> bytes:
    """All blocks in one; `TooLarge` with the first that passes `limit`."""
    whole = io.BytesIO()  # its value is handed out without another copy
    for block in blocks:
        if whole.tell() + len(block) > limit:
            raise _too_large()
        whole.write(block)
    return whole.getvalue()


_DECODERS: dict[str, _Decoder] = {
    "identity": _identity,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _brotli,
    "zstd": _zstd,
}
_AT_ONCE = {**_DECODERS, "br": _brotli_at_once, "zstd": _zstd_at_once}
