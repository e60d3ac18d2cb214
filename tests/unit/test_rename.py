"""A model renamed in a body's bytes: everything else stays."""

import os
import time
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.core import rename
from extproc.core.rename import renamed

_NAMES = st.sampled_from(["llama", 'a"b\\c', "é模型", "", "org/name:v2"])
_TEXTS = st.text(max_size=30) | st.sampled_from(['"model"', '","model":"x"', "\\", '\\"', "}{][", 'model":'])
_NUMBERS = st.sampled_from(["9007199254740993", "1e400", "-0.0", "1E+2", "12345678901234567890123", "0.1000"])


def spelled(text: str, ways: list[int]) -> bytes:
    """A JSON string with some characters as escapes, as `ways` says (0 as they are, 1 \\u, 2 \\U in capitals)."""
    out = bytearray(b'"')
    for number, letter in enumerate(text):
        way = ways[number % len(ways)] if ways else 0
        if way and ord(letter) < 0x10000 and not 0xD800 <= ord(letter) < 0xE000:
            code = f"{ord(letter):04x}"
            out += b"\\u" + (code if way == 1 else code.upper()).encode()
        else:
            out += orjson.dumps(letter)[1:-1]
    return bytes(out + b'"')


@st.composite
def _values(draw: st.DrawFn, depth: int = 0) -> bytes:
    kind = draw(st.integers(0, 3 if depth > 2 else 5))
    if kind == 0:
        return spelled(draw(_TEXTS), draw(st.lists(st.integers(0, 2), max_size=3)))
    if kind == 1:
        return draw(_NUMBERS).encode()
    if kind in (2, 3):
        return draw(st.sampled_from([b"true", b"null", b'""', b"[]", b"{ }", b'{"model":1}', b'["model"]']))
    items = draw(st.lists(_values(depth + 1), max_size=3))
    space = draw(st.sampled_from([b"", b" ", b"\n\t"]))
    if kind == 4:
        return b"[" + space + (space + b"," + space).join(items) + space + b"]"
    keys = [draw(st.sampled_from([b'"model"', b'"a"', rb'"mod\u0065l"'])) for _ in items]
    return (
        b"{"
        + space
        + b",".join(key + space + b":" + item for key, item in zip(keys, items, strict=True))
        + b"}"
    )


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """A body in pieces, and which of them are the outermost model's values."""
    pieces, models = [draw(st.sampled_from([b"{", b" \n{ ", b"{\t"]))], []
    members = draw(st.lists(st.tuples(st.booleans(), _values()), min_size=1, max_size=6))
    for number, (is_model, value) in enumerate(members):
        space = draw(st.sampled_from([b"", b" ", b"\r\n"]))
        if is_model:
            key = spelled("model", draw(st.lists(st.integers(0, 2), max_size=5)))
        else:
            key = spelled(draw(st.text(max_size=8).filter(lambda it: it != "model")), [])
        pieces.append((b"," if number else b"") + space + key + space + b":" + space)
        if is_model:
            models.append(len(pieces))
        pieces.append(value)
        pieces.append(space)
    pieces.append(draw(st.sampled_from([b"}", b"}\n", b" } "])))
    return pieces, models


def parses(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def in_either_way(body: bytes, name: str) -> bytes:
    """The body renamed by reading it whole, which leaps must come to as well."""
    slow = renamed(body, name)
    with patch.object(rename, "_LARGE", 0), patch.object(rename, "_NEAR", 1):
        with patch.object(rename, "_BYTES_A_LOOK", 0.01):
            assert renamed(body, name) == slow, "by leaps"
        assert renamed(body, name) == slow, "by leaps, given up"
    with patch.object(rename, "_by_lengths", side_effect=rename._OtherWayError):
        assert renamed(body, name) == slow, "read whole"
    return slow


@settings(max_examples=int(os.environ.get("KVSTEER_BODIES", "500")), deadline=None)
@given(_bodies(), _NAMES)
@example(([b"{", b'"model":', b'"\\\\"', b',"x":"\\"model\\":"}'], [2]), "llama")
@example(([b'{"model', b'":', b"[9007199254740993]", b',"model":', b"1e400", b"}"], [2, 4]), "x")
def test_all_but_the_outermost_models_stays_byte_for_byte(
    made: tuple[list[bytes], list[int]], name: str
) -> None:
    pieces, models = made
    body = b"".join(pieces)
    if not parses(body):
        return  # a number that no parser takes
    wanted = b"".join(orjson.dumps(name) if i in models else piece for i, piece in enumerate(pieces))
    assert in_either_way(body, name) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{}", b"{}"),
        (b' { "a" : 1 } ', b' { "a" : 1 } '),
        (b'{"model":"a"}', b'{"model":"b"}'),
        (rb'{"mod\u0065l":"a","n":9007199254740993}', rb'{"mod\u0065l":"b","n":9007199254740993}'),
        (b'{"model":"a","x":{"model":"a"},"model" : "a"}', b'{"model":"b","x":{"model":"a"},"model" : "b"}'),
        (rb'{"x":"\"model\":\"a\"","model":"a"}', rb'{"x":"\"model\":\"a\"","model":"b"}'),
        (rb'{"x":"\\","model":"a"}', rb'{"x":"\\","model":"b"}'),
        (b'{"x":"' + b"\\\\" * 99 + b'","model":"a"}', b'{"x":"' + b"\\\\" * 99 + b'","model":"b"}'),
    ],
)
def test_a_body_renamed(body: bytes, wanted: bytes) -> None:
    assert in_either_way(body, "b") == wanted


def _chat(content: bytes, messages: int = 1, **more: Any) -> bytes:
    message = b'{"role":"user","content":"' + content + b'"}'
    return b'{"messages":[' + b",".join([message] * messages) + b'],"model":"a","n":9007199254740993}'


@pytest.mark.parametrize(
    "body",
    [
        _chat(b"lorem ipsum " * 1_400_000),
        _chat(b'He said \\"model\\": \\"a\\".\\n' * 5 + b"lorem ipsum " * 600, 2_400),
        _chat(b"\\\\" * 8 * 2**20),
        b'{"prompt":[' + b"1234," * 3_300_000 + b'1],"model":"a"}',
        b'{"model":"a","x":' + b"[" * 1000 + b"]" * 1000 + b',"y":"' + b"z" * 16 * 2**20 + b'"}',
    ],
    ids=["one long text", "many messages", "backslashes", "token ids", "deep"],
)
def test_sixteen_mebibytes_are_renamed_in_a_moment(body: bytes) -> None:
    """What it takes is benchmarks/rename.py's; here only that nothing grows beyond what the size explains."""
    took = []
    for _ in range(3):
        began = time.process_time()
        made = renamed(body, "bb")
        took.append(time.process_time() - began)
    assert made == body.replace(b'"model":"a"', b'"model":"bb"')
    assert min(took) < 2.0
