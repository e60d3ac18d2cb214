"""Header blocks: the decoder beside the `hpack` library's, and heads that differ by their trace alone."""

import random

import hpack
import pytest
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from extproc.io.transports.h2.decoding import Decoder, TooLarge
from extproc.io.transports.h2.headers import Blocks, HeadCache
from extproc.io.transports.h2.limits import Refusals
from tests.examples import examples
from tests.unit.h2_world import POST, World, block, data, headers, message

Field = tuple[bytes, bytes]

NAMES = st.sampled_from([b":path", b"te", b"content-type", b"traceparent", b"x", b"cookie"]) | st.binary(
    max_size=9
)
VALUES = st.sampled_from([b"", b"POST", b"trailers", b"z" * 200, b"v" * 4100]) | st.binary(max_size=40)
TALK = st.lists(st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=6), max_size=8)


def theirs(decoder: hpack.Decoder, raw: bytes) -> list[Field] | None:
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(raw, raw=True)]
    except (HPACKError, IndexError, UnicodeDecodeError):
        return None


def ours(decoder: Decoder, raw: bytes) -> list[Field] | None:
    try:
        return decoder.decode(raw)
    except (TooLarge, ValueError, IndexError):
        return None


@examples(150)
@given(TALK, st.booleans(), st.sampled_from([4096, 200, 0]))
def test_whatever_a_foreign_encoder_says_is_understood(
    talk: list[list[tuple[bytes, bytes, bool]]], coded: bool, size: int
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(10**6)
    encoder.header_table_size = size
    for fields in talk:
        raw = encoder.encode(fields, huffman=coded)
        assert decoder.decode(raw) == [(name, value) for name, value, _ in fields]


@examples(300)
@given(TALK, st.lists(st.tuples(st.integers(0, 2**12), st.integers(0, 255)), max_size=4), st.booleans())
def test_damaged_blocks_are_read_or_refused_as_by_the_library(
    talk: list[list[tuple[bytes, bytes, bool]]], damage: list[tuple[int, int]], coded: bool
) -> None:
    encoder, decoder, other = hpack.Encoder(), Decoder(2**16), hpack.Decoder(2**16)
    for fields in talk:
        raw = bytearray(encoder.encode(fields, huffman=coded))
        for at, value in damage:
            if raw:
                raw[at % len(raw)] = value
        said = ours(decoder, bytes(raw))
        assert said == theirs(other, bytes(raw))
        if said is None:
            return  # the connection ends here


@examples(300)
@given(st.lists(st.binary(max_size=30), max_size=4))
def test_noise_is_read_or_refused_as_by_the_library(talk: list[bytes]) -> None:
    decoder, other = Decoder(2**16), hpack.Decoder(2**16)
    for raw in talk:
        said = ours(decoder, raw)
        assert said == theirs(other, raw)
        if said is None:
            return


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x80", "number 0"),
        (b"\x82\x20", "after a field"),
        (b"\x3f\xe2\x1f", "SETTINGS_HEADER_TABLE_SIZE"),  # 4,097
        (b"\xff" + b"\x80" * 9 + b"\x01", "integer"),
        (b"\0\x01a\x05b", "after its block"),
        (b"\0\x01a\x84\xff\xff\xff\xff", "none"),  # the code of the end of a text
        (b"\0\x01a\x81\xfe", "within a code"),
        (b"\0\x01a\x82\x1f\xff", "within a code"),  # "a", then eleven bits of padding
    ],
)
def test_what_can_t_be_read_is_told(raw: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Decoder(1000).decode(raw)


@pytest.mark.parametrize("raw", [b"\xbe", b"\xff", b"\x40", b"\0\x01a", b"\x3f"])
def test_a_block_that_is_cut_or_names_what_is_not_there_is_refused(raw: bytes) -> None:
    with pytest.raises(IndexError):
        Decoder(1000).decode(raw)


def test_fields_count_with_what_an_entry_takes() -> None:
    raw = b"\0\x01a\x02bc"  # 32 + 1 + 2
    assert Decoder(35).decode(raw) == [(b"a", b"bc")]
    with pytest.raises(TooLarge):
        Decoder(34).decode(raw)


# -- what a block says but for its trace -------------------------------------------------------------------


def traced(number: int) -> Field:
    return b"traceparent", b"00-%032x-%016x-01" % (number, number)


def blocks() -> Blocks:
    return Blocks(HeadCache(), 2**16, Refusals())


@pytest.mark.parametrize("place", [6, 5, 4])
def test_heads_that_differ_by_their_trace_alone_share_what_was_made_of_them(place: int) -> None:
    read, encoder = blocks(), hpack.Encoder()
    seen = []
    for number in range(100):  # more than a table of 4,096 bytes holds of them
        fields = [*POST[:place], traced(number), *POST[place:]]
        head = read.head(encoder.encode(fields))
        assert (head.fields, head.trace) == (fields, traced(number)[1])
        assert (head.request_fault, head.trailer_fault) == ("", "a pseudo field in trailers")
        assert head.get(b"traceparent") == traced(number)[1]
        seen.append(head.like)
    assert seen[0] is not None
    assert all(like is seen[0] for like in seen)
    assert seen[0].fields == list(POST)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_trace_among_the_pseudo_fields_is_a_fault(place: int) -> None:
    head = blocks().head(block(*POST[:place], traced(1), *POST[place:]))
    assert head.request_fault == "a pseudo field after other fields"


@pytest.mark.parametrize("value", [b"00-\n", b"\0", b" 00", b"a\r"])
def test_a_trace_with_what_no_value_may_have_is_a_fault(value: bytes) -> None:
    head = blocks().head(block(*POST, (b"traceparent", value)))
    assert "value" in head.request_fault
    assert "value" in head.trailer_fault


def test_faults_and_lengths_of_the_other_fields_count_whatever_the_trace() -> None:
    read = blocks()
    for number in range(3):
        assert read.head(block(*POST, (b"content-length", b"7"), traced(number))).content_length == 7
        assert read.head(block(*POST, (b"Upper", b"1"), traced(number))).request_fault
        assert read.head(block(traced(number))).trailer_fault == ""


def test_few_heads_are_kept_for_their_traces() -> None:
    read = blocks()
    for number in range(100):
        read.head(block(*POST, (b"x", b"%d" % number), traced(number)))
        assert len(read._untraced) <= 16
    long = (b"x", b"y" * 3000)
    kept = len(read._untraced)
    assert read.head(block(*POST, long, traced(1))).trace == traced(1)[1]
    assert len(read._untraced) == kept, "a long block was kept"


def test_each_call_is_told_its_own_trace() -> None:
    world, encoder = World(), hpack.Encoder()
    rng = random.Random(1)
    numbers = [rng.getrandbits(64) for _ in range(60)]
    for at, number in enumerate(numbers):
        fields = [*POST, traced(number)] if at % 7 else [*POST]
        world.say(headers(2 * at + 1, encoder.encode(fields)) + data(2 * at + 1, message(b"x"), end=True))
    traces = [call.trace for call in world.handlers]
    assert traces == [traced(number)[1].decode() if at % 7 else "" for at, number in enumerate(numbers)]
