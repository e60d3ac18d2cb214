"""Events out of bytes in any pieces, and members out of JSON that is too large to keep."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.usage.events import Events
from extproc.core.usage.scan import Scanner

LIMIT = 1024


def _events(body: bytes, size: int = 10**9, limit: int = LIMIT) -> list[bytes]:
    events, got = Events(limit), []
    for at in range(0, len(body), size):
        got += [event.data for event in events.feed(body[at : at + size])]
        assert events.held <= limit + 500
    last = events.close()
    return got + ([last.data] if last is not None else [])


STREAMS: list[tuple[bytes, list[bytes]]] = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data:a\r\n\r\ndata:b\r\n\r\n", [b"a", b"b"]),
    (b"data:a\r\rdata:b\r\r", [b"a", b"b"]),
    (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    (b"data:  two spaces\n\n", [b" two spaces"]),
    (b": comment\n\n:\n\ndata: a\n\n", [b"a"]),
    (b"event: message_start\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
    (b"data: a\nevent: late\ndata: b\n\n", [b"a\nb"]),
    (b"data: 1\ndata: 2\ndata: 3\n\n", [b"1\n2\n3"]),
    (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    (b"database: no\n\ndata\n\n", []),
    (b"event: nothing\n\n\n\n\n", []),
    (b"data: a\n\ndata: left", [b"a", b"left"]),
    (b"data: a\n", [b"a"]),
    (b"", []),
]


@pytest.mark.parametrize(("body", "expected"), STREAMS)
def test_events_are_the_same_in_pieces_of_any_size(body: bytes, expected: list[bytes]) -> None:
    for size in (1, 2, 3, 5, 1000):
        assert _events(body, size) == expected, size


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_an_event_larger_than_the_limit_is_scanned(size: int) -> None:
    large = json.dumps({"text": "x" * 5000, "usage": {"prompt_tokens": 5}}).encode()
    events, got = Events(LIMIT), []
    body = b"data: a\n\ndata: " + large + b"\n\ndata: b\n\n"
    for at in range(0, len(body), size):
        got += events.feed(body[at : at + size])
        assert events.held <= LIMIT + 400
    assert [event.data for event in got] == [b"a", b"", b"b"]
    assert got[1].scanned is not None
    assert got[1].scanned.members() == {"response": {}, "usage": {"prompt_tokens": 5}}


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_an_event_of_many_lines_is_scanned_as_one(size: int) -> None:
    lines = (
        json.dumps({"text": ["x" * 50] * 50, "usage": {"prompt_tokens": 5}}, indent=1).encode().split(b"\n")
    )
    body = b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
    events, got = Events(LIMIT), []
    for at in range(0, len(body), size):
        got += events.feed(body[at : at + size])
    assert [event.scanned is not None for event in got] == [True]
    assert got[0].scanned is not None
    assert got[0].scanned.members() == {"response": {}, "usage": {"prompt_tokens": 5}}


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_lines_of_a_scanned_event_are_not_run_together(size: int) -> None:
    body = b'data: {"text": "' + b"x" * 2000 + b'", "index": 1\ndata:2}\n\n'
    events, got = Events(LIMIT), []
    for at in range(0, len(body), size):
        got += events.feed(body[at : at + size])
    assert got[0].scanned is not None
    assert got[0].scanned.members() is None  # "1 2" is no number, and never 12


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_long_comment_within_a_scanned_event_is_no_part_of_it(size: int) -> None:
    body = b'data: {"text": "' + b"x" * 2000 + b'"\n:"' + b"[" * 2000 + b'\ndata:, "index": 1}\n\n'
    events, got = Events(LIMIT), []
    for at in range(0, len(body), size):
        got += events.feed(body[at : at + size])
    assert got[0].scanned is not None
    assert got[0].scanned.members() == {"response": {}, "index": 1}


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_long_comment_is_passed_over(size: int) -> None:
    assert _events(b": " + b"x" * 5000 + b"\ndata: a\n\n", size) == [b"a"]


def test_many_empty_data_lines_hold_no_more_than_the_limit() -> None:
    events = Events(LIMIT)
    for _ in range(10_000):
        events.feed(b"data: \ndata:ab\n")
        assert events.held <= LIMIT + 400


# ---- scanning


def _scan(text: bytes, size: int, limit: int = 10_000) -> Scanner:
    scanner = Scanner(limit)
    for at in range(0, len(text), size):
        scanner.feed(text[at : at + size])
        assert scanner.held <= limit + 400
    return scanner


NESTED = {
    "id": 'a "usage": {"prompt_tokens": 1} \\',
    "choices": [{"index": 0, "message": {"content": '\\"usage\\": {'}}, {"usage": {"prompt_tokens": 2}}],
    "\\": [[], {}, [{"usage": 3}], "]}"],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "note": 'x"},{['},
    "type": "t",
    "response": {"usage": {"input_tokens": 8}, "output": [{"usage": 1}], "status": "completed"},
    "index": 3,
}
FOUND = {
    "usage": NESTED["usage"],
    "type": "t",
    "index": 3,
    "response": {"usage": {"input_tokens": 8}, "status": "completed"},
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("indent", [None, 2])
def test_members_of_the_outermost_object_are_found_in_pieces_of_any_size(
    size: int, indent: int | None
) -> None:
    scanner = _scan(json.dumps(NESTED, indent=indent).encode(), size)
    assert scanner.members() == FOUND
    assert scanner.choices == 2


def test_a_name_in_escapes_is_the_same_name() -> None:
    assert _scan(rb'{"us\u0061ge": 5, "\ud800": 1}', 1).members() == {"response": {}, "usage": 5}


def test_of_a_name_given_twice_the_last_counts_as_with_any_json() -> None:
    assert _scan(b'{"usage": 5, "usage": 6}', 3).members() == {"response": {}, "usage": 6}


BROKEN = [
    b"",
    b"[]",
    b"7",
    b'"usage"',
    b'{"usage": 5',
    b'{"usage": 5]',
    b'{"usage": [5}',
    b'{"usage": {]}',
    b'{"usage": 5} {',
    b'{"usage": 5} x',
    b'{"usage" 5}',
    b'{"usage": five}',
    b'{"usage": "5}',
    b'x{"usage": 5}',
    b'{"a": ' + b"[" * 300 + b"]" * 300 + b', "usage": 5}',
]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_whole_object_gives_nothing(text: bytes, size: int) -> None:
    assert _scan(text, size).members() is None


def test_a_member_too_large_to_keep_gives_nothing() -> None:
    text = json.dumps({"usage": {"x": "y" * 2000}}).encode()
    for size in (1, 100, 10_000):
        assert _scan(text, size, limit=1000).members() is None
    assert _scan(text, 1, limit=3000).members() is not None


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(st.sampled_from('a"\\{}[]:,é\n'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["usage", "response", "choices", "x", 'q"\\']), inner, max_size=3)
    ),
    max_leaves=12,
)
_NAMES = st.sampled_from(["usage", "response", "meta_info", "choices", "type", "x", 'us"', "us\\"])


@given(st.dictionaries(_NAMES, _VALUES, max_size=5), st.integers(1, 9), st.sampled_from([None, 1]))
def test_scanning_finds_what_parsing_finds(body: dict[str, Any], size: int, indent: int | None) -> None:
    kept = ("usage", "meta_info", "type")
    expected = {name: body[name] for name in kept if name in body}
    inner = body.get("response")
    expected["response"] = {n: inner[n] for n in kept if n in inner} if isinstance(inner, dict) else {}
    assert _scan(json.dumps(body, indent=indent).encode(), size).members() == expected
