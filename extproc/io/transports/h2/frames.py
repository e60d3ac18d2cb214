"""Frames of RFC 9113, sections 4 and 6, as bytes: their header, their kinds, and those that a server sends."""

import struct
from typing import Final

from extproc.io.transports.h2.errors import (
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    ConnectionFault,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Length and kind as one word, flags, stream: unpacked in one call.
HEADER: Final = struct.Struct(">IBI")
#: The largest frame a peer takes until it says otherwise, and the largest that we take.
FRAME: Final = 16_384
LARGEST_FRAME: Final = 2**24 - 1
LARGEST_ID: Final = 2**31 - 1

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

_SETTING: Final = struct.Struct(">HI")
_TWO_WORDS: Final = struct.Struct(">II")
_WORD: Final = struct.Struct(">I")

SETTINGS_ACK: Final = b"\0\0\0\x04\x01\0\0\0\0"


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of `length` bytes."""
    return HEADER.pack(length << 8 | kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return head(6 * len(values), SETTINGS, 0, 0) + b"".join(_SETTING.pack(*pair) for pair in values.items())


def ping(payload: bytes, *, ack: bool) -> bytes:
    """A PING, or the answer to one; `payload` is eight bytes."""
    return head(8, PING, ACK if ack else 0, 0) + payload


def goaway(last: int, code: int, why: str = "") -> bytes:
    """GOAWAY: streams up to `last` are or were dealt with."""
    text = why.encode()[:256]
    return head(8 + len(text), GOAWAY, 0, 0) + _TWO_WORDS.pack(last, code) + text


def rst_stream(stream: int, code: int) -> bytes:
    """RST_STREAM."""
    return head(4, RST_STREAM, 0, stream) + _WORD.pack(code)


def window_update(stream: int, more: int) -> bytes:
    """WINDOW_UPDATE: `more` bytes may come, 1 to 2^31-1; stream 0 is the connection."""
    return head(4, WINDOW_UPDATE, 0, stream) + _WORD.pack(more)


def headers(stream: int, block: bytes, *, end: bool) -> bytes:
    """HEADERS with a whole block, which must fit one frame."""
    return head(len(block), HEADERS, END_HEADERS | (END_STREAM if end else 0), stream) + block


def unpadded(flags: int, data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Where the content of a DATA or HEADERS payload begins and ends. Raises ConnectionFault (section 6.1)."""
    if not flags & PADDED:
        return at, stop
    if at == stop:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a padded frame without a pad length")
    end = stop - data[at]
    if end <= at:
        raise ConnectionFault(PROTOCOL_ERROR, "padding as long as its frame")
    return at + 1, end


def word(data: bytes, at: int) -> int:
    """The four bytes at `at` as a number."""
    return int(_WORD.unpack_from(data, at)[0])


def pairs(data: bytes) -> list[tuple[int, int]]:
    """Identifier and value of each setting in a payload whose length is a multiple of six."""
    return list(_SETTING.iter_unpack(data))


def check_setting(name: int, value: int) -> None:
    """Raises ConnectionFault for a value that must not be (section 6.5.2)."""
    if name == ENABLE_PUSH and value > 1:
        raise ConnectionFault(PROTOCOL_ERROR, "ENABLE_PUSH that is neither 0 nor 1")
    if name == INITIAL_WINDOW_SIZE and value > LARGEST_ID:
        raise ConnectionFault(FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
    if name == MAX_FRAME_SIZE and not FRAME <= value <= LARGEST_FRAME:
        raise ConnectionFault(PROTOCOL_ERROR, "MAX_FRAME_SIZE outside of 2^14 to 2^24-1")


def priority_fault(number: int, data: bytes, at: int, stop: int) -> str:
    """What is wrong with the priority fields of HEADERS. Raises ConnectionFault when they are cut."""
    if stop - at < 5:
        raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS with half a priority")
    itself = word(data, at) & LARGEST_ID == number
    return "a stream that depends on itself" if itself else ""
