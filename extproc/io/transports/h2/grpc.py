"""gRPC over HTTP/2 as bytes: what a request asks for, messages with their lengths, statuses and how they are told.

The protocol: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from extproc.core.scattered import Pieces
from extproc.io.transports.h2.headers import Head, answer, literal

OK: Final = 0
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13

#: Compressed or not, and the length.
PREFIX: Final = struct.Struct(">BI")
PREFIX_SIZE: Final = 5
#: No message is so large.
NEVER: Final = 2**62

_TYPE: Final = (b"content-type", b"application/grpc")
#: The block that begins an answer, and the one that ends it well.
HEADERS: Final = answer(200, _TYPE)
TRAILERS_OK: Final = literal(b"grpc-status", b"0")

_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: What `grpc-message` carries as it is: printable ASCII but for the percent sign.
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}


class Refused(NamedTuple):
    """Why a call can't go on: its status and a sentence."""

    status: int
    text: str


class Ask(NamedTuple):
    """What the head of a request asks for.

    Attributes:
        path: the method, as `/package.Service/Method`.
        timeout: seconds; None for as long as it takes.
        fault: what is wrong with it as a call; "" where nothing is.
        http: an HTTP status where this is no gRPC at all; 0 where it is.
    """

    path: bytes
    timeout: float | None
    http: int
    fault: str = ""


def ask(head: Head) -> Ask:
    """Read a request's head, which `connection` has found well formed."""
    path = head.get(b":path") or b""
    if head.get(b":method") != b"POST":
        return Ask(path, None, 405)
    kind = (head.get(b"content-type") or b"").lower()
    if not kind.startswith(b"application/grpc") or kind[16:17] not in (b"", b"+", b";"):
        return Ask(path, None, 415)
    told = head.get(b"grpc-timeout")
    if told is None:
        return Ask(path, None, 0)
    match = _TIMEOUT.fullmatch(told)
    if match is None:  # a call without the deadline that its client counts on would be worse than none
        return Ask(path, None, 0, "grpc-timeout is not 1 to 8 digits and one of H, M, S, m, u, n")
    return Ask(path, int(match[1]) * _UNITS[match[2]], 0)


def trailers(status: int, text: str = "") -> bytes:
    """The block that ends an answer."""
    if status == OK and not text:
        return TRAILERS_OK
    told = literal(b"grpc-message", _percent(text)) if text else b""
    spoken = literal(b"grpc-accept-encoding", b"identity") if status == UNIMPLEMENTED else b""
    return literal(b"grpc-status", b"%d" % status) + told + spoken


def _percent(text: str) -> bytes:
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in text.encode()[:1024])


class Assembly:
    """Messages of one stream put together again, wherever they were cut.

    Args:
        most: bytes of a message.
        large: larger messages are given in pieces, and not copied.
        freed: called with the size of each of those, once its pieces are needed no more.

    Attributes:
        held: bytes kept until more come.
    """

    __slots__ = ("_freed", "_large", "_most", "_need", "_parts", "held")

    def __init__(
        self, most: int, large: int = NEVER, freed: Callable[[int], None] = lambda _size: None
    ) -> None:
        self.held = 0
        self._most = most
        self._large, self._freed = large, freed
        self._parts: list[bytes] = []
        self._need = PREFIX_SIZE

    def feed(self, chunk: bytes) -> tuple[list[bytes | Pieces], Refused | None]:
        """The messages that `chunk` completes, in order, and why none can follow."""
        self._parts.append(chunk)
        self.held += len(chunk)
        if self.held < self._need:
            return [], None
        if self._need - PREFIX_SIZE > self._large:
            return self._feed_large()
        data, at = b"".join(self._parts), 0
        made: list[bytes | Pieces] = []
        refused = None
        self._need = PREFIX_SIZE
        while refused is None and len(data) - at >= PREFIX_SIZE:
            flag, size = PREFIX.unpack_from(data, at)
            refused = self.fault(flag, size)
            if len(data) - at - PREFIX_SIZE < size:
                self._need = PREFIX_SIZE + size
                break
            at += PREFIX_SIZE
            if refused is None:
                made.append(data[at : at + size])
                at += size
        self._keep(b"" if refused else data[at:])
        return made, refused

    def _feed_large(self) -> tuple[list[bytes | Pieces], Refused | None]:
        """The same, where the first message is a large one, whose prefix was seen to be good."""
        parts, size = self._parts, self._need - PREFIX_SIZE
        over = self.held - self._need  # all in the last part, as there was too little without it
        last = parts[-1]
        inner = len(last) - over
        views = [memoryview(part) for part in parts]
        views[-1] = views[-1][:inner]
        views[0] = views[0][PREFIX_SIZE:]
        freed = self._freed
        self._keep(b"")
        self._need = PREFIX_SIZE
        more, refused = self.feed(last[inner:]) if over else ([], None)
        return [Pieces(views, lambda: freed(size)), *more], refused

    def _keep(self, rest: bytes) -> None:
        self._parts = [rest] if rest else []
        self.held = len(rest)

    def fault(self, flag: int, size: int) -> Refused | None:
        """What is wrong with a message by its prefix."""
        if flag:
            return Refused(
                UNIMPLEMENTED, "compressed messages are not taken; send them as they are (identity)"
            )
        if size > self._most:
            return Refused(RESOURCE_EXHAUSTED, f"a message of {size} bytes; at most {self._most} are taken")
        return None
