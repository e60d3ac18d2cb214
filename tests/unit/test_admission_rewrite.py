"""Degrading writes one member into a body; every other byte stays as the client wrote it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.admission.rewrite import degraded
from extproc.core.admission.tenants import Degrade
from tests.examples import LETTERS

LATER = Degrade("priority", "10")
SMALL = Degrade("model", "small")


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (rb'{"model":"big"}', rb'{"priority":10,"model":"big"}'),
        (rb'{}', rb'{"priority":10}'),
        (b" {\n } ", b' {\n "priority":10} '),
        (
            rb'{"d":1.000,"n":9007199254740993,"u":"\u00e9"}',
            rb'{"priority":10,"d":1.000,"n":9007199254740993,"u":"\u00e9"}',
        ),
        (
            rb'{"x":12345678901234567890123, "priority" : 3 ,"x":1E2}',
            rb'{"x":12345678901234567890123, "priority" : 10 ,"x":1E2}',
        ),
        (
            rb'{"priority":1,"a":2,"priority":2,"pri\u006frity":7}',
            rb'{"priority":10,"a":2,"priority":10,"pri\u006frity":10}',
        ),
        (
            rb'{"a":{"priority":1},"b":[{"priority":2}]}',
            rb'{"priority":10,"a":{"priority":1},"b":[{"priority":2}]}',
        ),
        (rb'{"u":"\ud800","\udc00":1}', rb'{"priority":10,"u":"\ud800","\udc00":1}'),
        (rb'{"u":"\ud800","\udc00":1,"priority":null}', rb'{"u":"\ud800","\udc00":1,"priority":10}'),
    ],
)  # fmt: skip
def test_a_priority_is_put_in_and_every_other_byte_stays(body: bytes, made: bytes) -> None:
    assert degraded(body, LATER) == made


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ("500", "500"), ("10", "10"), ("11", "11"), ("9007199254740993", "9007199254740993"), ("10.5", "10.5"),
        ('"500"', '"500"'), ('"5\\u00300"', '"5\\u00300"'), ("1e2", "1e2"),
        ("9", "10"), ("-5", "10"), ("0", "10"), ("null", "10"), ("true", "10"), ('"x}{"', "10"), ('"nan"', "10"),
        ('"inf"', "10"), ('{"priority":500}', "10"), ("[500]", "10"), ("9" * 500, "10"),
    ],
)  # fmt: skip
def test_a_clients_own_later_priority_is_not_improved(own: str, sent: str) -> None:
    assert (
        degraded(b'{"priority":%s,"a":1}' % own.encode(), LATER) == b'{"priority":%s,"a":1}' % sent.encode()
    )


def test_of_several_priorities_the_latest_counts_whichever_the_engine_takes() -> None:
    assert degraded(b'{"priority":1,"priority":500,"priority":2}', LATER) == (
        b'{"priority":500,"priority":500,"priority":500}'
    )


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (
            rb'{"model":"big","d":1.000,"mo\u0064el":"x"}',
            rb'{"model":"small","d":1.000,"mo\u0064el":"small"}',
        ),
        (rb'{"d":1.000}', rb'{"model":"small","d":1.000}'),
        (rb'{"model":"big","u":"\udfff"}', rb'{"model":"small","u":"\udfff"}'),
    ],
)
def test_a_model_is_put_in_and_every_other_byte_stays(body: bytes, made: bytes) -> None:
    assert degraded(body, SMALL) == made


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"1", b"\xff", b'"{}"', b"null"])
@pytest.mark.parametrize("lesser", [LATER, SMALL])
def test_what_is_no_object_stays_as_it_is(body: bytes, lesser: Degrade) -> None:
    assert degraded(body, lesser) is None


def test_another_pool_needs_no_other_body() -> None:
    assert degraded(b"{}", Degrade("pool", "spare")) is None


@given(
    st.dictionaries(
        st.sampled_from(["priority", "model", "a", '\u00e9"\\']),
        st.recursive(
            st.none() | st.booleans() | st.integers(-9, 9) | st.text(LETTERS, max_size=9),
            st.lists,
            max_leaves=4,
        ),
    ),
    st.booleans(),
)
def test_readers_find_what_was_asked_for_and_all_else_as_it_was(
    parsed: dict[str, Any], indented: bool
) -> None:
    body = orjson.dumps(parsed, option=orjson.OPT_INDENT_2 if indented else None)
    for lesser, value in ((LATER, 10), (SMALL, "small")):
        made = degraded(body, lesser)
        assert made is not None
        assert orjson.loads(made) == {**parsed, lesser.kind: value}
