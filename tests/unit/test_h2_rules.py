"""HTTP/2 rules for a server, each by the section of RFC 9113 (or 7541) that makes it: what comes, and which error."""

import struct

import pytest

from extproc.io.transports.h2 import frames
from extproc.io.transports.h2.errors import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
)
from extproc.io.transports.h2.limits import Limits
from tests.unit.h2_world import POST, World, block, data, frame, headers, message, request, settings

OPEN = headers(1)
SENT = headers(1, end=True)  # answered at once, so closed
RESET = OPEN + frame(frames.RST_STREAM, 0, 1, b"\0\0\0\x08")
HALF = headers(1, request(b"/test/Silent"), end=True)


def word(value: int) -> bytes:
    return struct.pack(">I", value)


def without(name: bytes) -> bytes:
    return block(*(pair for pair in POST if pair[0] != name))


def also(name: bytes, value: bytes, *, first: bool = False) -> bytes:
    return block((name, value), *POST) if first else block(*POST, (name, value))


#: What -> the code of the GOAWAY that it brings.
CONNECTION = {
    "4.1 a frame above the size that was announced": (
        OPEN + data(1, b"x" * (frames.FRAME + 1)), FRAME_SIZE_ERROR),
    "4.3 a block that can't be decoded": (headers(1, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    "4.3 a block that ends within a field": (headers(1, request()[:-3]), COMPRESSION_ERROR),
    "4.3 another frame within a block": (
        headers(1, request()[:20], more=True) + frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\x10"), PROTOCOL_ERROR),
    "4.3 another stream's headers within a block": (
        headers(1, request()[:20], more=True) + headers(3), PROTOCOL_ERROR),
    "5.1 DATA on an idle stream": (data(1, b"x"), PROTOCOL_ERROR),
    "5.1 RST_STREAM on an idle stream": (frame(frames.RST_STREAM, 0, 1, word(8)), PROTOCOL_ERROR),
    "5.1 WINDOW_UPDATE on an idle stream": (frame(frames.WINDOW_UPDATE, 0, 1, word(100)), PROTOCOL_ERROR),
    "5.1 CONTINUATION on an idle stream": (frame(frames.CONTINUATION, 4, 1, request()), PROTOCOL_ERROR),
    "5.1 DATA after both ends": (SENT + data(1, b"x"), STREAM_CLOSED),
    "5.1 HEADERS after both ends": (SENT + headers(1), STREAM_CLOSED),
    "5.1 CONTINUATION after both ends": (SENT + frame(frames.CONTINUATION, 4, 1, request()), PROTOCOL_ERROR),
    "5.1.1 an even stream": (headers(2), PROTOCOL_ERROR),
    "5.1.1 a stream below one that was opened": (headers(5) + headers(3), PROTOCOL_ERROR),
    "6.1 DATA on stream 0": (data(0, b"x"), PROTOCOL_ERROR),
    "6.1 padding as long as DATA": (OPEN + frame(frames.DATA, frames.PADDED, 1, b"\x06hello"), PROTOCOL_ERROR),
    "6.1 padded DATA of nothing": (OPEN + frame(frames.DATA, frames.PADDED, 1), FRAME_SIZE_ERROR),
    "6.2 HEADERS on stream 0": (headers(0), PROTOCOL_ERROR),
    "6.2 padding as long as HEADERS": (
        frame(frames.HEADERS, frames.PADDED | frames.END_HEADERS, 1, b"\xff" + request()), PROTOCOL_ERROR),
    "6.2 HEADERS with half a priority": (
        frame(frames.HEADERS, frames.WITH_PRIORITY | frames.END_HEADERS, 1, b"\0\0"), FRAME_SIZE_ERROR),
    "6.3 PRIORITY on stream 0": (frame(frames.PRIORITY, 0, 0, b"\0\0\0\x01\x10"), PROTOCOL_ERROR),
    "6.4 RST_STREAM on stream 0": (frame(frames.RST_STREAM, 0, 0, word(8)), PROTOCOL_ERROR),
    "6.4 RST_STREAM of three bytes": (OPEN + frame(frames.RST_STREAM, 0, 1, b"\0\0\x08"), FRAME_SIZE_ERROR),
    "6.5 SETTINGS on a stream": (frame(frames.SETTINGS, 0, 1), PROTOCOL_ERROR),
    "6.5 an ack with content": (frame(frames.SETTINGS, 1, 0, b"\0" * 6), FRAME_SIZE_ERROR),
    "6.5 SETTINGS of five bytes": (frame(frames.SETTINGS, 0, 0, b"\0" * 5), FRAME_SIZE_ERROR),
    "6.5.2 ENABLE_PUSH of 2": (settings((frames.ENABLE_PUSH, 2)), PROTOCOL_ERROR),
    "6.5.2 a window above 2^31-1": (settings((frames.INITIAL_WINDOW_SIZE, 2**31)), FLOW_CONTROL_ERROR),
    "6.5.2 frames below 2^14": (settings((frames.MAX_FRAME_SIZE, 16383)), PROTOCOL_ERROR),
    "6.5.2 frames above 2^24-1": (settings((frames.MAX_FRAME_SIZE, 2**24)), PROTOCOL_ERROR),
    "6.6 PUSH_PROMISE of a client": (frame(frames.PUSH_PROMISE, 4, 1, word(2)), PROTOCOL_ERROR),
    "6.7 PING on a stream": (frame(frames.PING, 0, 1, b"8 bytes."), PROTOCOL_ERROR),
    "6.7 PING of six bytes": (frame(frames.PING, 0, 0, b"6bytes"), FRAME_SIZE_ERROR),
    "6.8 GOAWAY on a stream": (frame(frames.GOAWAY, 0, 1, b"\0" * 8), PROTOCOL_ERROR),
    "6.8 GOAWAY of four bytes": (frame(frames.GOAWAY, 0, 0, b"\0" * 4), FRAME_SIZE_ERROR),
    "6.9 a connection's window update of 0": (frame(frames.WINDOW_UPDATE, 0, 0, word(0)), PROTOCOL_ERROR),
    "6.9 WINDOW_UPDATE of three bytes": (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\x01"), FRAME_SIZE_ERROR),
    "6.9.1 a connection window above 2^31-1": (
        frame(frames.WINDOW_UPDATE, 0, 0, word(2**31 - 1)), FLOW_CONTROL_ERROR),
    "6.9.2 SETTINGS that take a window above 2^31-1": (
        headers(1, request(b"/test/Silent"))
        + frame(frames.WINDOW_UPDATE, 0, 1, word(2**31 - 1 - 65535))
        + settings((frames.INITIAL_WINDOW_SIZE, 65536)),
        FLOW_CONTROL_ERROR),
    "6.10 CONTINUATION on stream 0": (
        headers(1, request()[:20], more=True) + frame(frames.CONTINUATION, 4, 0, request()[20:]), PROTOCOL_ERROR),
    "6.10 CONTINUATION after a whole block": (
        OPEN + frame(frames.CONTINUATION, 4, 1, request()), PROTOCOL_ERROR),
    "6.10 DATA within a block": (headers(1, request()[:20], more=True) + data(1, b"x"), PROTOCOL_ERROR),
    "7541 2.3.3 an index that no table has": (headers(1, b"\xbe" + request()), COMPRESSION_ERROR),
    "7541 4.2 a table size at the end of a block": (headers(1, request() + b"\x20"), COMPRESSION_ERROR),
    "7541 6.1 index 0": (headers(1, b"\x80" + request()), COMPRESSION_ERROR),
    "7541 6.3 a table above what was announced": (headers(1, b"\x3f\xe2\x1f" + request()), COMPRESSION_ERROR),
    "7541 5.2 Huffman coding with padding above 7 bits": (
        headers(1, b"\0\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"), COMPRESSION_ERROR),
}  # fmt: skip

#: What -> the code of the RST_STREAM of stream 1 that it brings; the connection goes on.
STREAM = {
    "5.1 DATA after END_STREAM": (HALF + data(1, b"x"), STREAM_CLOSED),
    "5.1 HEADERS after END_STREAM": (HALF + headers(1), STREAM_CLOSED),
    "5.1 DATA after the client's RST_STREAM": (RESET + data(1, b"x"), STREAM_CLOSED),
    "5.1 HEADERS after the client's RST_STREAM": (RESET + headers(1), STREAM_CLOSED),
    "5.3.1 HEADERS that depend on themselves": (
        frame(frames.HEADERS, frames.WITH_PRIORITY | frames.END_HEADERS, 1, word(1) + b"\x10" + request()),
        PROTOCOL_ERROR),
    "5.3.1 PRIORITY that depends on itself": (
        OPEN + frame(frames.PRIORITY, 0, 1, word(1) + b"\x10"), PROTOCOL_ERROR),
    "6.3 PRIORITY of four bytes": (OPEN + frame(frames.PRIORITY, 0, 1, word(3)), FRAME_SIZE_ERROR),
    "6.9 a stream's window update of 0": (OPEN + frame(frames.WINDOW_UPDATE, 0, 1, word(0)), PROTOCOL_ERROR),
    "6.9.1 a stream window above 2^31-1": (
        OPEN + frame(frames.WINDOW_UPDATE, 0, 1, word(2**31 - 1)), FLOW_CONTROL_ERROR),
    "8.1 trailers that don't end the stream": (OPEN + headers(1, block((b"a", b"b"))), PROTOCOL_ERROR),
    "8.1 pseudo fields in trailers": (OPEN + headers(1, block((b":method", b"x")), end=True), PROTOCOL_ERROR),
    "8.1.1 a body shorter than told": (
        headers(1, request(content_length=b"3")) + data(1, b"xx", end=True), PROTOCOL_ERROR),
    "8.1.1 a body longer than told": (
        headers(1, request(content_length=b"3")) + data(1, b"xx") + data(1, b"xx", end=True), PROTOCOL_ERROR),
    "8.1.1 no body where one was told": (headers(1, request(content_length=b"3"), end=True), PROTOCOL_ERROR),
    "8.1.1 a body shorter than told, with trailers": (
        headers(1, request(content_length=b"3")) + data(1, b"x") + headers(1, block((b"a", b"b")), end=True),
        PROTOCOL_ERROR),
    "8.1.1 a content-length that is no number": (headers(1, request(content_length=b"+3")), PROTOCOL_ERROR),
    "8.2.1 a capital letter in a name": (headers(1, also(b"X-Name", b"v")), PROTOCOL_ERROR),
    "8.2.1 a space in a name": (headers(1, also(b"a b", b"v")), PROTOCOL_ERROR),
    "8.2.1 a line feed in a value": (headers(1, also(b"a", b"v\nb: c")), PROTOCOL_ERROR),
    "8.2.1 a value that begins with a space": (headers(1, also(b"a", b" v")), PROTOCOL_ERROR),
    "8.2.2 connection": (headers(1, also(b"connection", b"keep-alive")), PROTOCOL_ERROR),
    "8.2.2 transfer-encoding": (headers(1, also(b"transfer-encoding", b"chunked")), PROTOCOL_ERROR),
    "8.2.2 te of another value": (headers(1, also(b"te", b"gzip")), PROTOCOL_ERROR),
    "8.3 a pseudo field that nobody knows": (headers(1, also(b":test", b"x", first=True)), PROTOCOL_ERROR),
    "8.3 a pseudo field of answers": (headers(1, also(b":status", b"200", first=True)), PROTOCOL_ERROR),
    "8.3 a pseudo field after others": (headers(1, block(*POST[1:], POST[0])), PROTOCOL_ERROR),
    "8.3.1 an empty path": (headers(1, request(b"")), PROTOCOL_ERROR),
    "8.3.1 no method": (headers(1, without(b":method")), PROTOCOL_ERROR),
    "8.3.1 no scheme": (headers(1, without(b":scheme")), PROTOCOL_ERROR),
    "8.3.1 no path": (headers(1, without(b":path")), PROTOCOL_ERROR),
    "8.3.1 two methods": (headers(1, also(b":method", b"POST", first=True)), PROTOCOL_ERROR),
    "8.5 CONNECT with a path": (
        headers(1, block((b":method", b"CONNECT"), *POST[1:])), PROTOCOL_ERROR),
}  # fmt: skip

#: What is taken without a word.
FINE = {
    "4.1 a frame of a kind nobody knows": frame(0x16, 0xFF, 0, b"12345678"),
    "4.1 flags nobody knows": frame(frames.PING, 0x16, 0, b"8 bytes."),
    "4.1 the reserved bit": frame(frames.PING, 0, 2**31, b"8 bytes."),
    "5.1 PRIORITY on an idle stream": frame(frames.PRIORITY, 0, 7, b"\0\0\0\x01\x10"),
    "5.1 PRIORITY, WINDOW_UPDATE and RST_STREAM after both ends": SENT
    + frame(frames.PRIORITY, 0, 1, b"\0\0\0\x03\x10")
    + frame(frames.WINDOW_UPDATE, 0, 1, word(9))
    + frame(frames.RST_STREAM, 0, 1, word(8)),
    "6.5.2 a setting nobody knows": settings((0xFF, 0xFF)),
    "6.5.2 every setting that there is": settings(
        (1, 0), (2, 0), (3, 7), (4, 2**31 - 1), (5, 2**24 - 1), (6, 100)
    ),
    "6.5.2 a setting twice": settings((4, 100), (4, 200)),
    "6.5.3 an ack nobody asked for": frames.SETTINGS_ACK,
    "6.7 an answer to a PING nobody sent": frame(frames.PING, 1, 0, b"8 bytes."),
    "7 an error code nobody knows": OPEN + frame(frames.RST_STREAM, 0, 1, word(0xFF)),
    "8.2.1 a value with bytes above ASCII": headers(1, also(b"a", b"\xc3\xa4")),
    "7541 4.2 a table of size 0": headers(1, b"\x20\x20" + request()),
    "7541 4.2 a table of size 0, then of 4,096": headers(1, b"\x20\x3f\xe1\x1f" + request()),
}


@pytest.mark.parametrize("what", CONNECTION)
def test_what_ends_the_connection(what: str) -> None:
    raw, code = CONNECTION[what]
    world = World()
    assert world.goaway(raw) == code
    assert world.say(headers(9)) == [], "a closed connection went on"
    assert not world.connection.streams.open


@pytest.mark.parametrize("what", STREAM)
def test_what_ends_its_stream_alone(what: str) -> None:
    raw, code = STREAM[what]
    world = World()
    assert world.reset(raw) == {1: code}
    assert not world.connection.streams.open
    assert world.alive()


@pytest.mark.parametrize("what", FINE)
def test_what_is_taken_without_a_word(what: str) -> None:
    world = World()
    assert world.reset(FINE[what]) == {}
    assert world.alive()


@pytest.mark.parametrize("what", [*CONNECTION, *STREAM, *FINE])
def test_every_rule_holds_where_bytes_come_one_by_one(what: str) -> None:
    raw, whole = {**CONNECTION, **STREAM, **dict.fromkeys(FINE, (b"", None))}[what][0] or FINE[what], World()
    expected = whole.say(raw)
    single, got = World(), []
    for at in range(len(raw)):
        got += single.say(raw[at : at + 1])
    assert got == expected
    assert single.events == whole.events


# -- the beginning -----------------------------------------------------------------------------------------


def test_the_server_greets_before_anything_came() -> None:
    world = World(greet=False)
    (kind, flags, stream, payload), (update, *_) = world.say(b"")
    assert (kind, flags, stream, update) == (frames.SETTINGS, 0, 0, frames.WINDOW_UPDATE)
    assert dict(struct.iter_unpack(">HI", payload)) == {3: 10_000, 4: 262_144, 6: 65_536}


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01\x02"])
def test_another_preface_ends_the_connection(raw: bytes) -> None:
    world = World(greet=False)
    world.say(b"")
    assert world.goaway(raw) == PROTOCOL_ERROR


@pytest.mark.parametrize("first", [headers(1), frames.SETTINGS_ACK, frame(frames.PING, 0, 0, b"8 bytes.")])
def test_anything_but_settings_after_the_preface_ends_the_connection(first: bytes) -> None:
    assert World(greet=False).goaway(frames.PREFACE + first) == PROTOCOL_ERROR


def test_settings_are_acknowledged() -> None:
    assert World().say(settings((frames.MAX_FRAME_SIZE, 20_000))) == [(frames.SETTINGS, 1, 0, b"")]


# -- headers -----------------------------------------------------------------------------------------------


def test_padding_and_priority_of_headers_and_data_are_taken_off() -> None:
    world = World()
    flags = frames.PADDED | frames.WITH_PRIORITY | frames.END_HEADERS
    world.say(frame(frames.HEADERS, flags, 1, b"\x03" + b"\0\0\0\x05\x10" + request() + b"\0\0\0"))
    world.say(frame(frames.DATA, frames.PADDED, 1, b"\x02" + message(b"hello") + b"\0\0"))
    assert world.events == [("message", b"hello")]


def test_a_block_may_come_in_pieces() -> None:
    world, whole = World(), request()
    world.say(headers(1, whole[:10], more=True) + frame(frames.CONTINUATION, 0, 1, whole[10:30]))
    world.say(frame(frames.CONTINUATION, frames.END_HEADERS, 1, whole[30:]) + data(1, message(b"a")))
    assert world.events == [("message", b"a")]


def kept(world: World) -> list[bytes]:
    return list(world.connection._blocks._own.heads)


def test_a_block_that_leaves_the_dynamic_table_alone_is_kept_until_the_table_changes() -> None:
    world = World()
    enters, names = request() + b"\x40\x01a\x01b", request() + b"\xbe"  # a: b, which is then the first
    assert world.reset(headers(1, enters)) == {}
    assert kept(world) == []
    assert world.reset(headers(3, names) + headers(5, names)) == {}
    assert kept(world) == [names]
    assert world.connection._blocks.head(names).fields[-1] == (b"a", b"b")
    assert world.reset(headers(7, request() + b"\x40\x01c\x01d")) == {}
    assert kept(world) == []
    assert world.connection._blocks.head(names).fields[-1] == (b"c", b"d")
    assert len(world.handlers) == 4
    assert world.shared.cache.heads == {}


def test_the_same_entry_again_changes_the_table_too() -> None:
    blocks = World().connection._blocks
    enters = request() + b"\x40\x01a\x01b"
    second = request() + b"\xbf"  # the second entry of the dynamic table
    blocks.head(enters + b"\x40\x01c\x01d")
    assert blocks.head(second).fields[-1] == (b"a", b"b")
    blocks.head(enters)
    assert blocks.head(second).fields[-1] == (b"c", b"d")
    blocks.head(enters)
    assert blocks.head(second).fields[-1] == (b"a", b"b")


def test_an_entry_that_pushes_out_the_only_other_one_changes_the_table() -> None:
    blocks = World().connection._blocks
    first, second = (b"\x40\x01a\x7f\xe9\x0f" + letter * 2152 for letter in (b"x", b"y"))
    named = request() + b"\xbe"
    for entry, letter in ((first, b"x"), (second, b"y"), (first, b"x")):
        blocks.head(request() + entry)
        assert blocks.head(named).fields[-1] == (b"a", letter * 2152)
        assert blocks.head(named).fields[-1] == (b"a", letter * 2152)


def test_a_smaller_table_forgets_and_a_block_that_names_what_is_gone_can_t_be_read() -> None:
    world = World()
    world.say(headers(1, request() + b"\x40\x01a\x01b") + headers(3, request() + b"\xbe"))
    assert world.goaway(headers(5, b"\x20\x3f\xe1\x1f" + request() + b"\xbe")) == COMPRESSION_ERROR


def test_few_blocks_are_kept_for_a_connection() -> None:
    world = World()
    for at in range(100):
        world.connection._blocks.head(request(number=b"%d" % at))
    assert 12 < len(kept(world)) <= 16


def test_blocks_are_kept_by_their_bytes_once_the_peer_has_no_table() -> None:
    world = World()
    world.say(headers(1, b"\x20" + request()) + headers(3) + headers(5))
    assert list(world.shared.cache.heads) == [request()]
    assert len(world.handlers) == 3


def test_our_first_block_says_that_our_table_is_empty_and_no_other_does() -> None:
    world = World()
    blocks = [
        payload
        for n in (1, 3)
        for kind, _, _, payload in world.say(headers(n) + data(n, message(b"x")))
        if kind == frames.HEADERS
    ]
    assert [payload[:2] for payload in blocks] == [b"\x20\x88", b"\x88\0"]


# -- limits ------------------------------------------------------------------------------------------------


def test_streams_above_the_limit_are_refused_and_counted() -> None:
    world = World(Limits(streams=2))
    assert world.reset(headers(1) + headers(3) + headers(5)) == {5: REFUSED_STREAM}
    assert world.shared.refusals.counts == {"streams": 1}


@pytest.mark.parametrize(
    ("reason", "limits", "raw"),
    [
        ("continuations", Limits(continuations=3), headers(1, b"", more=True) + 4 * frame(9, 0, 1, b"\0")),
        ("header_block", Limits(header_block=1024), headers(1, b"", more=True) + 2 * frame(9, 0, 1, b"\0" * 600)),
        ("empty", Limits(empty=1), headers(1) + 11 * data(1, b"")),
        ("empty", Limits(empty=1), 11 * frame(frames.PRIORITY, 0, 3, b"\0\0\0\x01\x10")),
        ("empty", Limits(empty=1), 11 * frame(0x33, 0, 0)),
        ("control", Limits(control=1), 11 * frame(frames.PING, 0, 0, b"8 bytes.")),
        ("control", Limits(control=1), 11 * settings()),
        ("control", Limits(control=1), 11 * frame(frames.PING, 1, 0, b"8 bytes.")),
        ("control", Limits(control=1), 11 * frames.SETTINGS_ACK),
        ("resets", Limits(resets=1), b"".join(
            headers(n) + frame(frames.RST_STREAM, 0, n, word(8)) for n in range(1, 23, 2))),
        ("resets", Limits(resets=1), b"".join(
            headers(n, also(b"A", b"b")) for n in range(1, 23, 2))),
    ],
)  # fmt: skip
def test_floods_end_the_connection_and_are_counted(reason: str, limits: Limits, raw: bytes) -> None:
    world = World(limits)
    assert world.goaway(raw) == ENHANCE_YOUR_CALM
    assert world.shared.refusals.counts[reason] == 1


def test_a_rate_that_is_kept_is_none_of_a_flood() -> None:
    world = World(Limits(control=1))
    for second in range(50):
        world.now = float(second)
        assert world.alive()


def test_resets_of_streams_that_were_answered_are_free() -> None:
    world = World(Limits(resets=1))
    for number in range(1, 101, 2):
        assert world.reset(headers(number) + data(number, message(b"x"))) == {}
        assert world.reset(frame(frames.RST_STREAM, 0, number, word(8))) == {}


def test_a_header_list_above_the_limit_ends_the_connection() -> None:
    world = World(Limits(header_list=1000))
    assert world.goaway(headers(1, request(long=b"x" * 1000))) == ENHANCE_YOUR_CALM
    assert world.shared.refusals.counts == {"header_list": 1}
