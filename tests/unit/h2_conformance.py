"""What a server must do, case by case: bytes of a client, and the answer that RFC 9113 or RFC 7541 asks for.

The cases are those of h2spec, numbered as there; what is sent and expected is written here from the RFCs. Requests
are plain GET and POST, which any server answers somehow.
"""

import struct
from dataclasses import dataclass

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import (
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
)
from tests.unit.h2_world import block, data, frame, headers, settings

Frame = tuple[int, int, int, bytes]


@dataclass(frozen=True)
class Answered:
    """The stream is answered."""

    stream: int = 1

    def fits(self, said: list[Frame]) -> bool:
        return any(kind == frames.HEADERS and stream == self.stream for kind, _, stream, _ in said)


@dataclass(frozen=True)
class Lives:
    """The connection goes on; a PING with this payload is answered with it, where one was sent."""

    payload: bytes = b""

    def fits(self, said: list[Frame]) -> bool:
        pongs = [payload for kind, flags, _, payload in said if kind == frames.PING and flags == frames.ACK]
        return (self.payload in pongs if self.payload else True) and not _codes(said, frames.GOAWAY)


@dataclass(frozen=True)
class Acknowledged:
    """SETTINGS are acknowledged, before any DATA."""

    def fits(self, said: list[Frame]) -> bool:
        kinds = [kind for kind, _, _, _ in said if kind in (frames.SETTINGS, frames.DATA)]
        return kinds[:1] == [frames.SETTINGS]


@dataclass(frozen=True)
class Sent:
    """The first DATA has so many bytes."""

    size: int

    def fits(self, said: list[Frame]) -> bool:
        return [len(payload) for kind, _, _, payload in said if kind == frames.DATA][:1] == [self.size]


class Ends:
    """GOAWAY with one of these codes."""

    def __init__(self, *codes: int) -> None:
        self.codes = set(codes)

    def fits(self, said: list[Frame]) -> bool:
        return bool(self.codes & _codes(said, frames.GOAWAY))


class Refuses(Ends):
    """RST_STREAM with one of these codes; or GOAWAY, as a stream's fault may always be the connection's."""

    def fits(self, said: list[Frame]) -> bool:
        return super().fits(said) or bool(self.codes & _codes(said, frames.RST_STREAM))


def _codes(said: list[Frame], kind: int) -> set[int]:
    at = 4 if kind == frames.GOAWAY else 0
    return {struct.unpack_from(">I", payload, at)[0] for got, _, _, payload in said if got == kind}


Expected = Answered | Lives | Acknowledged | Sent | Ends
#: Steps, each sent once the one before was dealt with; and what the last one brings.
Case = tuple[list[bytes], Expected]


def _word(value: int) -> bytes:
    return struct.pack(">I", value)


def _fields(method: bytes) -> list[tuple[bytes, bytes]]:
    return [(b":method", method), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"here")]


_GET, _POST = block(*_fields(b"GET")), block(*_fields(b"POST"))
_LONG = block((b"x-long", b"x" * 4000))
_PRIORITY = b"\0\0\0\0\xff"
_PING = frame(frames.PING, 0, 0, b"8 bytes.")
_PONG = Lives(b"8 bytes.")
_ES, _EH, _PADDED, _PRIO = frames.END_STREAM, frames.END_HEADERS, frames.PADDED, frames.WITH_PRIORITY


def _get(stream: int = 1, extra: bytes = b"", before: bytes = b"") -> bytes:
    return headers(stream, before + _GET + extra, end=True)


def _post(stream: int = 1, *extra: tuple[bytes, bytes]) -> bytes:
    return headers(stream, _POST + block(*extra))


def _cut(end: bool = True) -> bytes:
    """HEADERS that CONTINUATION has to follow."""
    return headers(1, _GET, end=end, more=True)


def _more(stream: int = 1, *, last: bool = True) -> bytes:
    return frame(frames.CONTINUATION, _EH if last else 0, stream, _LONG)


def _priority(stream: int, payload: bytes = _PRIORITY) -> bytes:
    return frame(frames.PRIORITY, 0, stream, payload)


def _reset(stream: int = 1, code: int = 8) -> bytes:
    return frame(frames.RST_STREAM, 0, stream, _word(code))


def _update(stream: int, more: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream, _word(more))


def _window(*sizes: int) -> bytes:
    return settings(*((frames.INITIAL_WINDOW_SIZE, size) for size in sizes))


def _only(*fields: tuple[bytes, bytes]) -> bytes:
    return headers(1, block(*fields), end=True)


def _without(at: int) -> bytes:
    return _only(*(pair for number, pair in enumerate(_fields(b"GET")) if number != at))


def _with(name: bytes, value: bytes) -> bytes:
    return _only(*_fields(b"GET"), (name, value))


#: The same field in each representation of RFC 7541, section 6.2, with names and values plain or Huffman-coded.
_HUFFMAN_NAME, _HUFFMAN_VALUE = b"\x85\xf2\xb2\x4a\x84\xff", b"\x84\x9c\x48\xac\xa4"
_AGENT_NAME = b"\x87\xb5\x05\xb1\x61\xcc\x5a\x93"
_WRITTEN = [
    first + rest
    for first in (b"\x40", b"\0", b"\x10")
    for rest in (
        b"\x0auser-agent\x06h2spec",
        _AGENT_NAME + _HUFFMAN_VALUE,
        b"\x06x-test\x06h2spec",
        _HUFFMAN_NAME + _HUFFMAN_VALUE,
    )
]

GENERIC: dict[str, Case] = {
    "1/1 a connection": ([b""], Lives()),
    "2/1 PRIORITY on an idle stream": ([_priority(1) + _PING], _PONG),
    "2/2 WINDOW_UPDATE on a half-closed stream": ([_window(0) + _get(), _update(1, 1)], Sent(1)),
    "2/3 PRIORITY on a half-closed stream": ([_window(0) + _get() + _priority(1), _update(1, 1)], Sent(1)),
    "2/4 RST_STREAM on a half-closed stream": ([_get() + _reset() + _PING], _PONG),
    "2/5 PRIORITY on a closed stream": ([_get(), _priority(1) + _PING], _PONG),
    "3.1/1 DATA": ([_post() + data(1, b"test", end=True)], Answered()),
    "3.1/2 several DATA": ([_post() + data(1, b"test") + data(1, b"test", end=True)], Answered()),
    "3.1/3 padded DATA": (
        [_post() + frame(frames.DATA, _ES | _PADDED, 1, b"\x05test" + bytes(5))], Answered()),
    "3.2/1 HEADERS": ([_get()], Answered()),
    "3.2/2 padded HEADERS": (
        [frame(frames.HEADERS, _ES | _EH | _PADDED, 1, b"\x06" + _GET + bytes(6))], Answered()),
    "3.2/3 HEADERS with a priority": (
        [frame(frames.HEADERS, _ES | _EH | _PRIO, 1, _PRIORITY + _GET)], Answered()),
    **{
        f"3.3/{number} PRIORITY {payload.hex()}": ([_priority(3, payload) + _get(3)], Answered(3))
        for number, payload in enumerate(
            (b"\0\0\0\0\0", b"\0\0\0\0\xff", b"\0\0\0\x01\xff", b"\x80\0\0\x01\xff"), 1)
    },
    "3.3/5 PRIORITY on a higher stream": ([_priority(5) + _get(3)], Answered(3)),
    "3.4/1 RST_STREAM": ([_post() + _reset() + _PING], _PONG),
    "3.5/1 SETTINGS": ([settings((3, 100))], Acknowledged()),
    "3.7/1 PING": ([_PING], _PONG),
    "3.8/1 GOAWAY": ([frame(frames.GOAWAY, 0, 0, bytes(8))], Ends(0)),
    "3.9/1 WINDOW_UPDATE on the connection": ([_update(0, 1) + _PING], _PONG),
    "3.9/2 WINDOW_UPDATE on a stream": ([_get() + _update(1, 1)], Answered()),
    "3.10/1 CONTINUATION": ([_cut() + _more()], Answered()),
    "3.10/2 several CONTINUATION": ([_cut() + _more(last=False) + _more()], Answered()),
    "4/1 GET": ([_get()], Answered()),
    "4/2 HEAD": ([headers(1, block(*_fields(b"HEAD")), end=True)], Answered()),
    "4/3 POST": ([_post() + data(1, b"test", end=True)], Answered()),
    "4/4 trailers": (
        [_post(1, (b"trailer", b"x-test")) + data(1, b"test") + headers(1, block((b"x-test", b"ok")), end=True)],
        Answered()),
    "5/1 an indexed field": ([_get(extra=b"\xba")], Answered()),
    **{
        f"5/{number} field {raw[:6].hex()}": ([_get(extra=raw)], Answered())
        for number, raw in enumerate(_WRITTEN, 2)
    },
    "5/14 a table size": ([_get(before=b"\x20")], Answered()),
    "5/15 two table sizes": ([_get(before=b"\x20\x3f\xe1\x1f")], Answered()),
}  # fmt: skip

HTTP2: dict[str, Case] = {
    "4.1/1 a frame of an unknown kind": ([frame(0x16, 0, 0, bytes(8)) + _PING], _PONG),
    "4.1/2 undefined flags": ([frame(frames.PING, 0x16, 0, b"8 bytes.")], _PONG),
    "4.1/3 the reserved bit": ([frame(frames.PING, 0, 2**31, b"8 bytes.")], _PONG),
    "4.2/1 DATA of 2^14 bytes": ([_post() + data(1, b"x" * 16384, end=True)], Answered()),
    "4.2/2 a larger DATA": ([_post() + data(1, b"x" * 16385, end=True)], Refuses(FRAME_SIZE_ERROR)),
    "4.2/3 a larger HEADERS": ([_get(extra=5 * _LONG)], Ends(FRAME_SIZE_ERROR)),
    "4.3/1 a block that can't be decoded": ([headers(1, b"\x40", end=True)], Ends(COMPRESSION_ERROR)),
    "4.3/2, 6.2/1 PRIORITY within a block": ([_cut() + _priority(1) + _more()], Ends(PROTOCOL_ERROR)),
    "4.3/3, 6.2/2 HEADERS of another stream within a block": (
        [_cut() + _get(3) + _more()], Ends(PROTOCOL_ERROR)),
    "5.1/1 DATA on an idle stream": ([data(1, b"test", end=True)], Ends(PROTOCOL_ERROR)),
    "5.1/2, 6.4/2 RST_STREAM on an idle stream": ([_reset()], Ends(PROTOCOL_ERROR)),
    "5.1/3 WINDOW_UPDATE on an idle stream": ([_update(1, 100)], Ends(PROTOCOL_ERROR)),
    "5.1/4 CONTINUATION on an idle stream": (
        [frame(frames.CONTINUATION, _EH, 1, _GET)], Ends(PROTOCOL_ERROR)),
    "5.1/5, 6.1/2 DATA on a half-closed stream": ([_get() + data(1, b"test", end=True)], Refuses(STREAM_CLOSED)),
    "5.1/6 HEADERS on a half-closed stream": ([_get() + _get()], Refuses(STREAM_CLOSED)),
    "5.1/7 CONTINUATION on a half-closed stream": ([_get() + _more()], Refuses(STREAM_CLOSED, PROTOCOL_ERROR)),
    "5.1/8 DATA after RST_STREAM": (
        [_post() + _reset() + data(1, b"test", end=True)], Refuses(STREAM_CLOSED)),
    "5.1/9 HEADERS after RST_STREAM": ([_post() + _reset() + _get()], Refuses(STREAM_CLOSED)),
    "5.1/10 CONTINUATION after RST_STREAM": (
        [_post() + _reset() + _more()], Refuses(STREAM_CLOSED, PROTOCOL_ERROR)),
    "5.1/11 DATA on a closed stream": ([_get(), data(1, b"test", end=True)], Ends(STREAM_CLOSED)),
    "5.1/12 HEADERS on a closed stream": ([_get(), _get()], Ends(STREAM_CLOSED)),
    "5.1/13 CONTINUATION on a closed stream": ([_get(), _more()], Ends(STREAM_CLOSED, PROTOCOL_ERROR)),
    "5.1.1/1 an even stream": ([_get(2)], Ends(PROTOCOL_ERROR)),
    "5.1.1/2 a stream below another": ([_get(5), _get(3)], Ends(PROTOCOL_ERROR)),
    "5.3.1/1 HEADERS that depend on themselves": (
        [frame(frames.HEADERS, _ES | _EH | _PRIO, 1, b"\0\0\0\x01\xff" + _GET)], Refuses(PROTOCOL_ERROR)),
    "5.3.1/2 PRIORITY that depends on itself": ([_priority(2, b"\0\0\0\x02\xff")], Refuses(PROTOCOL_ERROR)),
    "5.4.1/1 GOAWAY before the end": ([frame(frames.PING, 0, 3, bytes(8))], Ends(PROTOCOL_ERROR)),
    "5.5/1 a frame of an extension": ([frame(0x16, 0, 0, bytes(8)) + _PING], _PONG),
    "5.5/2 a frame of an extension within a block": (
        [_cut() + frame(0x16, 0, 0, bytes(8)) + _more()], Ends(PROTOCOL_ERROR)),
    "6.1/1 DATA on the connection": ([data(0, b"test", end=True)], Ends(PROTOCOL_ERROR)),
    "6.1/3 DATA with too much padding": (
        [_post() + frame(frames.DATA, _ES | _PADDED, 1, b"\x06test")], Ends(PROTOCOL_ERROR)),
    "6.2/3 HEADERS on the connection": ([_get(0)], Ends(PROTOCOL_ERROR)),
    "6.2/4 HEADERS with too much padding": (
        [frame(frames.HEADERS, _ES | _EH | _PADDED, 1, bytes((len(_GET) + 2,)) + _GET)],
        Refuses(PROTOCOL_ERROR)),
    "6.3/1 PRIORITY on the connection": ([_priority(0)], Ends(PROTOCOL_ERROR)),
    "6.3/2 PRIORITY of four bytes": ([_post() + _priority(1, bytes(4))], Refuses(FRAME_SIZE_ERROR)),
    "6.4/1 RST_STREAM on the connection": ([_reset(0)], Ends(PROTOCOL_ERROR)),
    "6.4/3 RST_STREAM of three bytes": (
        [_post() + frame(frames.RST_STREAM, 0, 1, bytes(3))], Ends(FRAME_SIZE_ERROR)),
    "6.5/1 an ack with content": ([frame(frames.SETTINGS, 1, 0, b"\0")], Ends(FRAME_SIZE_ERROR)),
    "6.5/2 SETTINGS on a stream": ([frame(frames.SETTINGS, 0, 1, b"\0\3\0\0\0d")], Ends(PROTOCOL_ERROR)),
    "6.5/3 SETTINGS of three bytes": ([frame(frames.SETTINGS, 0, 0, bytes(3))], Ends(FRAME_SIZE_ERROR)),
    "6.5.2/1 ENABLE_PUSH of 2": ([settings((2, 2))], Ends(PROTOCOL_ERROR)),
    "6.5.2/2, 6.9.2/3 a window above 2^31-1": ([_window(2**31)], Ends(FLOW_CONTROL_ERROR)),
    "6.5.2/3 frames below 2^14": ([settings((5, 16383))], Ends(PROTOCOL_ERROR)),
    "6.5.2/4 frames above 2^24-1": ([settings((5, 2**24))], Ends(PROTOCOL_ERROR)),
    "6.5.2/5 an unknown setting": ([settings((0xFF, 1)) + _PING], _PONG),
    "6.5.3/1 a window twice in one frame": ([_window(100, 1), _get()], Sent(1)),
    "6.5.3/2 SETTINGS are acknowledged": ([settings((2, 0))], Acknowledged()),
    "6.7/1 PING": ([_PING], _PONG),
    "6.7/2 an answer to no PING": ([frame(frames.PING, 1, 0, b"nothing.") + _PING], _PONG),
    "6.7/3 PING on a stream": ([frame(frames.PING, 0, 1, bytes(8))], Ends(PROTOCOL_ERROR)),
    "6.7/4 PING of six bytes": ([frame(frames.PING, 0, 0, bytes(6))], Ends(FRAME_SIZE_ERROR)),
    "6.8/1 GOAWAY on a stream": ([frame(frames.GOAWAY, 0, 1, bytes(8))], Ends(PROTOCOL_ERROR)),
    "6.9/1 an update of 0 on the connection": ([_update(0, 0)], Ends(PROTOCOL_ERROR)),
    "6.9/2 an update of 0 on a stream": ([_post() + _update(1, 0)], Refuses(PROTOCOL_ERROR)),
    "6.9/3 WINDOW_UPDATE of three bytes": (
        [frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1")], Ends(FRAME_SIZE_ERROR)),
    "6.9.1/1 a window of one byte": ([_window(1), _get()], Sent(1)),
    "6.9.1/2 a connection window above 2^31-1": (
        [_update(0, 2**31 - 1) + _update(0, 2**31 - 1)], Ends(FLOW_CONTROL_ERROR)),
    "6.9.1/3 a stream window above 2^31-1": (
        [_post() + _update(1, 2**31 - 1) + _update(1, 2**31 - 1)], Refuses(FLOW_CONTROL_ERROR)),
    "6.9.2/1 a window that opens: DATA": ([_window(0), _get(), _window(1)], Sent(1)),
    "6.9.2/1 a window that opens: the ack first": ([_window(0), _get(), _window(1)], Acknowledged()),
    "6.9.2/2 a window below zero": ([_window(3), _get(), _window(2), _update(1, 2)], Sent(1)),
    "6.10/1 CONTINUATION": ([_cut() + _more(last=False) + _more()], Answered()),
    "6.10/2 DATA within a block": (
        [_cut() + _more(last=False) + data(1, b"test", end=True)], Ends(PROTOCOL_ERROR)),
    "6.10/3 CONTINUATION on the connection": ([_cut() + _more(0)], Ends(PROTOCOL_ERROR)),
    "6.10/4 CONTINUATION after a whole block": ([_post() + _more()], Ends(PROTOCOL_ERROR)),
    "6.10/5 CONTINUATION after the last": ([_cut(end=False) + _more() + _more()], Ends(PROTOCOL_ERROR)),
    "6.10/6 CONTINUATION after DATA": ([_post() + data(1, b"test", end=True) + _more()], Ends(PROTOCOL_ERROR)),
    "7/1 GOAWAY with an unknown code": ([frame(frames.GOAWAY, 0, 0, bytes(4) + _word(0xFF))], Ends(0)),
    "7/2 RST_STREAM with an unknown code": ([_post() + _reset(1, 0xFF) + _PING], _PONG),
    "8.1/1 trailers that end nothing": (
        [_post() + data(1, b"test") + headers(1, block((b"x-test", b"ok")))], Refuses(PROTOCOL_ERROR)),
    "8.1.2/1 a capital letter": ([_with(b"X-TEST", b"ok")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.1/1 an unknown pseudo field": ([_with(b":test", b"ok")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.1/2 a pseudo field of answers": ([_with(b":status", b"200")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.1/3 a pseudo field in trailers": (
        [_post() + data(1, b"test") + headers(1, block((b":method", b"GET"), (b"x", b"y")), end=True)],
        Refuses(PROTOCOL_ERROR)),
    "8.1.2.1/4 a pseudo field after another": (
        [_only((b"x-test", b"ok"), *_fields(b"GET"))], Refuses(PROTOCOL_ERROR)),
    "8.1.2.2/1 connection": ([_with(b"connection", b"keep-alive")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.2/2 te beyond trailers": ([_with(b"te", b"trailers, deflate")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/1 an empty path": (
        [_only((b":method", b"GET"), (b":scheme", b"http"), (b":path", b""))], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/2 no method": ([_without(0)], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/3 no scheme": ([_without(1)], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/4 no path": ([_without(2)], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/5 two methods": ([_with(b":method", b"GET")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/6 two schemes": ([_with(b":scheme", b"http")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.3/7 two paths": ([_with(b":path", b"/")], Refuses(PROTOCOL_ERROR)),
    "8.1.2.6/1 a body longer than told": (
        [_post(1, (b"content-length", b"1")) + data(1, b"test", end=True)], Refuses(PROTOCOL_ERROR)),
    "8.1.2.6/2 two parts longer than told": (
        [_post(1, (b"content-length", b"1")) + data(1, b"test") + data(1, b"test", end=True)],
        Refuses(PROTOCOL_ERROR)),
    "8.2/1 PUSH_PROMISE": (
        [frame(frames.PUSH_PROMISE, _EH, 1, _word(2) + _GET)], Ends(PROTOCOL_ERROR)),
}  # fmt: skip

_HUFFMAN = b"\0" + _HUFFMAN_NAME
HPACK: dict[str, Case] = {
    "2.3.3/1 an indexed field beyond the tables": ([_get(extra=b"\xc6")], Ends(COMPRESSION_ERROR)),
    "2.3.3/2 a name beyond the tables": ([_get(extra=b"\x7f\x07\x04test")], Ends(COMPRESSION_ERROR)),
    "4.2/1 a table size at the end of a block": ([_get(extra=b"\x21")], Ends(COMPRESSION_ERROR)),
    "5.2/1 padding above seven bits": (
        [_get(extra=_HUFFMAN + b"\x84\x49\x50\x9f\xff")], Ends(COMPRESSION_ERROR)),
    "5.2/2 padding of zeros": ([_get(extra=_HUFFMAN + b"\x83\x49\x50\x90")], Ends(COMPRESSION_ERROR)),
    "5.2/3 the end symbol": (
        [_get(extra=_HUFFMAN + b"\x87\xff\xff\xff\xfd\x25\x42\x7f")], Ends(COMPRESSION_ERROR)),
    "6.1/1 index 0": ([_get(extra=b"\x80")], Ends(COMPRESSION_ERROR)),
    "6.3/1 a table above 4,096 bytes": ([_get(before=b"\x3f\xe2\x1f")], Ends(COMPRESSION_ERROR)),
}  # fmt: skip

CASES: dict[str, Case] = {
    f"{part} {name}": case
    for part, cases in (("generic", GENERIC), ("http2", HTTP2), ("hpack", HPACK))
    for name, case in cases.items()
}
#: 3.5/1 and 3.5/2 are of the beginning, 5.1.2/1 of the limit that SETTINGS told.
PREFACE_ENDS = b"NO HTTP/2 AT ALL, NOT EVEN A BIT\r\n\r\n"


def above(limit: int) -> Case:
    """5.1.2/1: one stream more than may be open at once, none of which can be answered in full."""
    asked = b"".join(_get(1 + 2 * at) for at in range(limit + 1))
    return [_window(0), asked], Refuses(PROTOCOL_ERROR, REFUSED_STREAM)
