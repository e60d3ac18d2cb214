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
        large: larger messages that came in pieces are given so, and not copied.
        freed: called with the size of each of those, once its pieces are needed no more.

    Attributes:
        held: bytes kept until more come.
    """

    __slots__ = ("_freed", "_large", "_missing", "_most", "_parts", "_prefix", "_size", "held")

    def __init__(
        self, most: int, large: int = NEVER, freed: Callable[[int], None] = lambda _size: None
    ) -> None:
        self.held = 0
        self._most = most
        self._large, self._freed = large, freed
        self._prefix = b""  # of the message under way, as far as it came
        self._parts: list[bytes] = []  # what came of the message itself
        self._size = self._missing = 0

    def goes_on(self, data: bytes, at: int, stop: int) -> bool:
        """Keep `data[at:stop]` if it is but a part of what the message under way needs; else it is for `feed`."""
        size = stop - at
        if size >= self._missing:
            return False
        self._parts.append(data[at:stop])
        self._missing -= size
        self.held += size
        return True

    def feed(self, data: bytes, at: int, stop: int) -> tuple[list[bytes | Pieces], Refused | None]:
        """The messages that `data[at:stop]` completes, in order, and why none can follow."""
        made: list[bytes | Pieces] = []
        while at < stop:
            if len(self._prefix) < PREFIX_SIZE:
                until = min(stop, at + PREFIX_SIZE - len(self._prefix))
                self._prefix += data[at:until]
                at = until
                if len(self._prefix) < PREFIX_SIZE:
                    break
                flag, self._size = PREFIX.unpack(self._prefix)
                self._missing = self._size
                refused = self.fault(flag, self._size)
                if refused is not None:
                    return made, refused
            part = data[at : min(stop, at + self._missing)]
            self._parts.append(part)
            self._missing -= len(part)
            at += len(part)
            if not self._missing:
                made.append(self._whole())
        self.held = len(self._prefix) + self._size - self._missing
        return made, None

    def _whole(self) -> bytes | Pieces:
        parts, size, freed = self._parts, self._size, self._freed
        self._prefix, self._parts, self._size = b"", [], 0
        if len(parts) == 1:
            return parts[0]
        return Pieces(parts, lambda: freed(size)) if size > self._large else b"".join(parts)

    def fault(self, flag: int, size: int) -> Refused | None:
        """What is wrong with a message by its prefix."""
        if flag:
            return Refused(
                UNIMPLEMENTED, "compressed messages are not taken; send them as they are (identity)"
            )
        if size > self._most:
            return Refused(RESOURCE_EXHAUSTED, f"a message of {size} bytes; at most {self._most} are taken")
        return None
