"""Bodies made at random: pieces of any size, changed bytes, memory."""

import gzip
import itertools
import json
import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.usage.bodies import BodyUsage
from extproc.core.usage.record import Usage
from tests.examples import examples

SSE = "text/event-stream"
LIMIT = 1024

_COUNTS = st.integers(1, 10**6)
_TEXTS = st.sampled_from(
    ["", "a", "é\u2028", '"usage": {"prompt_tokens": 1}', "data: [DONE]\n\n", "\\", "{[\r\n", "x" * 1500]
)


@st.composite
def _usages(draw: st.DrawFn) -> dict[str, Any]:
    tokens = draw(_COUNTS)
    cached = draw(st.none() | st.integers(0, tokens))
    return {
        "prompt_tokens": tokens,
        "completion_tokens": draw(_COUNTS),
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }


@st.composite
def _streams(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
    """Events of a chat stream in one choice, and the usage it ends with."""
    texts = draw(st.lists(_TEXTS, max_size=6))
    events: list[Any] = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    for event in events:
        event["usage"] = draw(st.none() | _usages())
    last = draw(_usages())
    return [*events, {"choices": [], "usage": last}], last


def _written(draw: st.DrawFn, events: list[Any]) -> bytes:
    """The events in one of the forms the format allows."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    space = draw(st.sampled_from(["", " "]))
    indent = draw(st.sampled_from([None, 1]))
    noise = draw(st.sampled_from(["", ": ping" + end + end, "event: message" + end, "id: 1" + end]))
    parts = []
    for event in [*events, "[DONE]"]:
        text = event if isinstance(event, str) else json.dumps(event, indent=indent)
        parts.append(noise + "".join(f"data:{space}{line}{end}" for line in text.split("\n")) + end)
    return "".join(parts).encode()


def _read(pieces: list[bytes], kind: str = SSE, encoding: str = "") -> BodyUsage:
    reader = BodyUsage(kind, encoding, LIMIT)
    for piece in pieces:
        reader.feed(piece)
        assert reader.held <= LIMIT + 400
    reader.feed(b"", end=True)
    return reader


def _cut(body: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[a:b] for a, b in itertools.pairwise(marks)]


_PLACES = st.lists(st.integers(0, 10**6), max_size=12)


@given(st.data(), _streams(), _PLACES, st.sampled_from(["", "gzip"]))
def test_a_stream_in_any_form_and_any_pieces_gives_its_last_usage(
    data: st.DataObject, stream: tuple[list[Any], dict[str, Any]], places: list[int], encoding: str
) -> None:
    events, last = stream
    body = data.draw(st.composite(lambda draw: _written(draw, events))())
    if encoding:
        body = gzip.compress(body)
    reader = _read(_cut(body, places), encoding=encoding)
    details = last["prompt_tokens_details"] or {}
    expected = Usage(last["prompt_tokens"], last["completion_tokens"], details.get("cached_tokens"))
    assert reader.usage == expected
    assert reader.complete
    whole = _read([body], encoding=encoding)
    assert (whole.usage, whole.first_token, whole.oversized, whole.unreadable) == (
        reader.usage,
        reader.first_token,
        reader.oversized,
        reader.unreadable,
    )


_ANTHROPIC = {
    "message_start": {"message": {"usage": {"input_tokens": 420, "output_tokens": 1}}},
    "content_block_delta": {"delta": {"text": "é"}},
    "message_delta": {
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 4, "cache_read_input_tokens": 416, "output_tokens": 8},
    },
    "message_stop": {},
}
_META = {"prompt_tokens": 9, "cached_tokens": 8, "finish_reason": None}
#: Events of other APIs, and what they tell.
_OTHERS: list[tuple[list[Any], Usage]] = [
    ([{"type": kind, **rest} for kind, rest in _ANTHROPIC.items()], Usage(420, 8, 416, 1)),
    (
        [
            {"type": "response.output_text.delta", "delta": "a"},
            {
                "type": "response.completed",
                "response": {
                    "output": ["x" * 2000],
                    "usage": {"input_tokens": 11, "output_tokens": 8},
                    "status": "completed",
                },
            },
        ],
        Usage(11, 8, None, 1),
    ),
    (
        [{"text": "a" * 900 * n, "meta_info": {**_META, "completion_tokens": n}} for n in (1, 2, 3)],
        Usage(9, 3, 8),
    ),
]


@given(st.data(), st.sampled_from(_OTHERS), _PLACES)
def test_streams_of_other_apis_in_any_form_and_any_pieces_give_theirs(
    data: st.DataObject, stream: tuple[list[Any], Usage], places: list[int]
) -> None:
    body = data.draw(st.composite(lambda draw: _written(draw, stream[0]))())
    reader = _read(_cut(body, places))
    assert reader.usage == stream[1]
    assert reader.complete
    assert reader.first_token


@given(_usages(), st.lists(_TEXTS, max_size=6), _PLACES, st.booleans())
def test_a_json_body_in_any_pieces_gives_its_usage(
    usage: dict[str, Any], texts: list[str], places: list[int], first: bool
) -> None:
    choices = {"choices": [{"message": {"content": text}, "usage": {"prompt_tokens": 1}} for text in texts]}
    body = {"usage": usage, **choices} if first else {**choices, "usage": usage}
    got = _read(_cut(json.dumps(body).encode(), places), "application/json").usage
    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens")
    assert got is not None
    assert (got.input, got.output, got.cached) == (usage["prompt_tokens"], usage["completion_tokens"], cached)


# ---- changed bytes


def _numbers(value: Any) -> set[int]:
    """Every whole number in a JSON value."""
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(_numbers, value))
    if isinstance(value, float):
        return {int(value)} if value.is_integer() else set()
    return {value} if isinstance(value, int) else set()


def _held(body: bytes) -> list[set[int]]:
    """The numbers of each event that is JSON, by plain means: whole lines, whole events, Python's own parser."""
    held = []
    events, data = [], []
    for line in [*body.splitlines(), b""]:
        if line.startswith(b"data:"):
            data.append(line[5:])
        elif not line:
            events, data = [*events, b"\n".join(data)], []
    for event in events:
        try:
            held.append(_numbers(json.loads(event)))
        except ValueError:
            continue
    return held


_MUTATIONS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "cut", "add"]), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


def _mutated(body: bytes, mutations: list[tuple[int, str, int]]) -> bytes:
    for place, how, byte in mutations:
        at = place % (len(body) + 1)
        rest = body[at:] if how == "add" else body[at + 1 :] if how == "set" else body[at + byte :]
        body = body[:at] + (b"" if how == "cut" else bytes([byte])) + rest
    return body


@examples(50)
@given(st.data(), _streams(), _MUTATIONS, _PLACES)
def test_a_changed_stream_gives_nothing_that_no_event_held(
    data: st.DataObject, stream: tuple[list[Any], dict[str, Any]], mutations: list[Any], places: list[int]
) -> None:
    body = _mutated(data.draw(st.composite(lambda draw: _written(draw, stream[0]))()), mutations)
    reader = _read(_cut(body, places))
    got = reader.usage
    assert got == _read([body]).usage
    if got is not None and got.known:
        told = {number for number in (got.input, got.output, got.cached) if number is not None}
        assert any(told <= numbers for numbers in _held(body))


@examples(50)
@given(_usages(), st.lists(_TEXTS, max_size=4), _MUTATIONS, _PLACES)
def test_a_changed_json_body_gives_nothing_that_it_does_not_hold(
    usage: dict[str, Any], texts: list[str], mutations: list[Any], places: list[int]
) -> None:
    body = _mutated(json.dumps({"choices": texts, "usage": usage}).encode(), mutations)
    got = _read(_cut(body, places), "application/json").usage
    assert got == _read([body], "application/json").usage
    if got is not None and got.known:
        digits = {
            str(number).encode() for number in (got.input, got.output, got.cached) if number is not None
        }
        assert all(text in body for text in digits)


@given(st.lists(st.binary(max_size=300), max_size=8), st.sampled_from([SSE, "application/json"]))
def test_any_bytes_are_read_without_raising(pieces: list[bytes], kind: str) -> None:
    for encoding in ("", "gzip", "deflate", "br", "zstd"):
        _read(pieces, kind, encoding)


# ---- memory


def test_memory_stays_under_the_bound_whatever_comes() -> None:
    """Of 64 KiB and some small objects each, with pieces of 4 KiB; measured while 128 KiB pass and more."""
    bodies = {
        "one line": b"data: " + b"x" * 2**17,
        "one string": b'data: {"usage": "' + b"x" * 2**17,
        "short data lines": b"data:ab\n" * 2**14,
        "a comment": b":" + b"x" * 2**17,
        "brackets": b"data: " + b"[" * 2**17,
        "members": b"data: {" + b'"usage": {"a": 1}, ' * 2**13,
        "choices": b"".join(b'data: {"choices":[{"index":%d}]}\n\n' % n for n in range(2**12)),
        "answers": b"".join(b'data: {"meta_info":{},"index":%d}\n\n' % n for n in range(2**12)),
    }
    for name, body in bodies.items():
        reader = BodyUsage(SSE)
        pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]
        tracemalloc.start()
        for piece in pieces:
            reader.feed(piece)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 100 * 1024, f"{name}: {held} bytes"
        assert reader.held <= 64 * 1024 + 400


def test_a_body_that_comes_whole_is_not_copied_whole() -> None:
    """Of 1 MiB: a million empty lines would be a list of 8 MB."""
    for kind, body in ((SSE, b"\n" * 2**20), ("application/json", b'{"a": "' + b"x" * 2**20 + b'"}')):
        reader = BodyUsage(kind)
        tracemalloc.start()
        reader.feed(body, end=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**19, f"{kind}: {peak} bytes at once"
