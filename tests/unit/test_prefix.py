import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.core.prefix import (
    CHUNK,
    DEEP,
    DEEP_CHUNK,
    MEDIA_BYTES,
    MESSAGE_BYTES,
    ChainWriter,
    canonical,
    fold,
    seed,
    tag,
    utf8,
)
from extproc.core.prompt import Chain
from extproc.errors import Unreadable
from tests.examples import LETTERS

KIND = tag("kind")
OTHER = tag("other")


def text_chain(text: str, start: int = 7) -> Chain:
    writer = ChainWriter(start)
    writer.text(KIND, text)
    return writer.chain()


def test_a_short_text_is_one_xxh3_of_its_utf8_bytes_cut_to_60_bits() -> None:
    expected = xxh3_64_intdigest("héllo".encode(), seed=7 ^ KIND) >> 4
    assert text_chain("héllo") == Chain([expected], [6])


def test_each_chunk_of_a_long_text_is_seeded_by_the_one_before() -> None:
    text = "x" * 2500
    first = xxh3_64_intdigest(b"x" * 1024, seed=7 ^ KIND) >> 4
    second = xxh3_64_intdigest(b"x" * 1024, seed=first) >> 4
    third = xxh3_64_intdigest(b"x" * 452, seed=second) >> 4
    assert text_chain(text) == Chain([first, second, third], [1024, 2048, 2500])


@pytest.mark.parametrize(
    ("length", "ends"),
    [(1, [1]), (1023, [1023]), (1024, [1024]), (1025, [1024, 1025]), (2048, [1024, 2048])],
)
def test_a_hash_stands_at_every_kib_and_at_the_end(length: int, ends: list[int]) -> None:
    assert text_chain("x" * length).ends == ends


def test_a_text_that_grows_keeps_the_hashes_of_its_full_chunks() -> None:
    short, long = text_chain("ab" * 1300), text_chain("ab" * 1300 + "more")
    assert short.ends == [1024, 2048, 2600]
    assert long.hashes[:2] == short.hashes[:2]
    assert long.hashes[2] != short.hashes[2]


@pytest.mark.parametrize("character", ["😀", "漢", "é", "\x00", "\ud83d"])
def test_a_character_across_a_chunk_border_is_cut_as_bytes_and_never_raises(character: str) -> None:
    for before in range(1018, 1027):
        chain = text_chain("x" * before + character + "y" * 10)
        data = ("x" * before + character + "y" * 10).encode("utf-8", "surrogatepass")
        first = xxh3_64_intdigest(data[:1024], seed=7 ^ KIND) >> 4
        assert chain.hashes == [first, xxh3_64_intdigest(data[1024:], seed=first) >> 4], before
        assert chain.ends == [1024, len(data)], before


def test_an_empty_prompt_has_one_hash_and_counts_one_byte() -> None:
    assert ChainWriter(7).chain().ends == [1]
    assert text_chain("").ends == [1]
    assert len(text_chain("").hashes) == 1


def test_a_message_counts_its_bytes_and_sixteen_more() -> None:
    writer = ChainWriter(7)
    writer.message(KIND, "hello")
    writer.message(KIND, "x" * 1500)
    assert writer.chain().ends == [21, 21 + 16 + 1024, 21 + 16 + 1500]


def test_many_small_pieces_leave_a_hash_about_every_kib() -> None:
    writer = ChainWriter(7)
    writer.open()
    for _ in range(10):
        writer.text(KIND, "x" * 300)
    writer.mark()
    assert writer.chain().ends == [16 + 1200, 16 + 2400, 16 + 3000]


def test_mark_twice_leaves_one_hash() -> None:
    writer = ChainWriter(7)
    writer.text(KIND, "a")
    writer.mark()
    writer.mark()
    assert writer.chain().ends == [1]


def test_the_fast_loop_and_single_messages_give_one_chain() -> None:
    texts = ["hello", "", "x" * 1024, "y" * 5000, "漢字" * 300, "end"]
    fast, single = ChainWriter(7), ChainWriter(7)
    fast.messages([{"role": "user", "content": text} for text in texts], {"user": KIND}, pytest.fail)
    for text in texts:
        single.message(KIND, text)
    assert fast.chain() == single.chain()


def fast_chain(texts: list[str], start: int = 7) -> Chain:
    writer = ChainWriter(start)

    def other(message: Any) -> None:
        writer.message(KIND, message["content"])

    writer.messages([{"role": "user", "content": text} for text in texts], {"user": KIND}, other)
    return writer.chain()


def single_chain(texts: list[str], start: int = 7) -> Chain:
    writer = ChainWriter(start)
    for text in texts:
        writer.open()
        writer.data(KIND, utf8(text))  # which remembers nothing
        writer.mark()
    return writer.chain()


@given(
    st.lists(
        st.builds(
            lambda letters, times, end: letters * times + end,
            st.sampled_from(["a", "ab", "ä", "漢字", "\ud800"]),
            st.sampled_from([0, 1, 340, 341, 511, 512, 1023, 1024, 1025, 2047, 2048, 2049, 9000]),
            st.sampled_from(["", "b", "é"]),
        ),
        max_size=5,
    ),
    st.integers(1, 3),
)
def test_texts_that_come_again_have_the_chain_they_had(texts: list[str], start: int) -> None:
    expected = single_chain(texts, start)
    assert fast_chain(texts, start) == expected
    assert fast_chain(texts, start) == expected
    grown = [*texts, "more " * 900]
    assert fast_chain(grown, start) == single_chain(grown, start)
    pieces = ChainWriter(start)
    for text in grown:
        pieces.message(KIND, text)
    assert pieces.chain() == single_chain(grown, start)


def test_a_chain_that_is_changed_later_leaves_what_is_known_of_its_texts() -> None:
    texts = ["q" * 6000]
    fast_chain(texts).hashes.append(5)
    assert fast_chain(texts) == single_chain(texts)


@pytest.mark.parametrize("length", [DEEP - MESSAGE_BYTES, DEEP - MESSAGE_BYTES + 1])
def test_the_fast_loop_is_the_same_far_from_the_begin(length: int) -> None:
    texts = ["x" * length, "y" * 5000, "z"]
    assert fast_chain(texts) == single_chain(texts)


def test_the_fast_loop_hands_on_what_is_not_a_role_and_a_text() -> None:
    odd = [
        None,
        "text",
        {},
        {"role": "user"},
        {"role": [], "content": "a"},
        {"role": "other", "content": "a"},
    ]
    odd.append({"role": "user", "content": "a", "name": "b"})
    seen: list[object] = []
    ChainWriter(7).messages(odd, {"user": KIND}, seen.append)
    assert seen == odd


def test_media_count_alike_whatever_their_length_and_differ_by_their_source() -> None:
    chains = []
    for source in (b"https://a/b.png", b"data:image/png;base64," + b"A" * 100_000):
        writer = ChainWriter(7)
        writer.media(KIND, source)
        chains.append(writer.chain())
    assert [chain.ends for chain in chains] == [[MEDIA_BYTES], [MEDIA_BYTES]]
    assert chains[0].hashes != chains[1].hashes


def test_token_ids_count_four_bytes_each_with_a_hash_every_256() -> None:
    writer = ChainWriter(7)
    writer.ids(KIND, list(range(600)))
    packed = b"".join(value.to_bytes(4, "little") for value in range(600))
    chain = writer.chain()
    assert chain.ends == [1024, 2048, 2400]
    assert chain.hashes[0] == xxh3_64_intdigest(packed[:1024], seed=7 ^ KIND) >> 4


@pytest.mark.parametrize("ids", [[], [-1], [2**32], [1.5], ["1"], [None], [[1]], [2**200]])
def test_what_is_no_token_id_is_a_wrong_shape(ids: list[int]) -> None:
    with pytest.raises(Unreadable, match="wrong_shape"):
        ChainWriter(7).ids(KIND, ids)


def test_more_parts_than_allowed_are_refused() -> None:
    writer = ChainWriter(7, parts=3)
    writer.spend(3)
    with pytest.raises(Unreadable, match="too_many_parts"):
        writer.spend(1)


def test_model_adapter_and_both_salts_part_chains_and_are_never_mixed_up() -> None:
    starts = [
        seed("ab"),
        seed("a", "b"),
        seed("a", "", "b"),
        seed("a", "", "", "b"),
        seed("", "ab"),
        seed("", "", "ab"),
        seed(""),
        seed("2,0,0,0;ab"),
        fold(seed("a"), KIND, b"b"),
        fold(seed("a"), OTHER, b"b"),
    ]
    assert len(set(starts)) == len(starts)
    assert all(0 <= start < 2**60 for start in starts)


@given(
    st.lists(st.tuples(st.sampled_from([KIND, OTHER]), st.text(LETTERS, max_size=5)), min_size=1, max_size=6)
)
def test_two_ways_of_cutting_one_text_give_two_chains(messages: list[tuple[int, str]]) -> None:
    whole = "".join(text for _, text in messages)
    cut, single = ChainWriter(7), ChainWriter(7)
    for role, text in messages:
        cut.message(role, text)
    single.message(messages[0][0], whole)
    assert (cut.chain() == single.chain()) == (len(messages) == 1)


@given(st.text(LETTERS, min_size=1, max_size=8), st.text(LETTERS, max_size=8), st.booleans())
def test_a_byte_moved_to_the_next_piece_or_message_gives_another_chain(a: str, b: str, message: bool) -> None:
    def write(first: str, second: str) -> Chain:
        writer = ChainWriter(7)
        for text in (first, second):
            if message:
                writer.message(KIND, text)
            else:
                writer.text(KIND, text)
        return writer.chain()

    assert write(a, b).hashes[-1] != write(a[:-1], a[-1] + b).hashes[-1]


def test_far_from_the_begin_hashes_stand_wider_and_still_share_what_texts_share() -> None:
    def chain(*texts: bytes) -> Chain:
        writer = ChainWriter(7)
        for text in texts:
            writer.data(KIND, text)
        return writer.chain()

    one = chain(b"a" * 1000, bytes(DEEP) + b"x" * 40_000)
    # 4,096 KiB chunks would end at DEEP + 1,000: the last one before DEEP is cut there, as one hash begins there.
    assert one.ends[0] == 1000 + CHUNK
    assert one.ends[4094:4096] == [1000 + 4095 * CHUNK, DEEP]
    assert one.ends[4096:] == [DEEP + DEEP_CHUNK, DEEP + 2 * DEEP_CHUNK, DEEP + 41_000]
    other = chain(b"a" * 1000, bytes(DEEP) + b"x" * 35_000 + b"y" * 90_000)
    shared = [a == b for a, b in zip(one.hashes, other.hashes, strict=False)]
    assert shared == [True] * 4098 + [False]
    assert chain(bytes(DEEP)).ends[-1] == DEEP
    assert len(chain(bytes(DEEP), bytes(2 * DEEP_CHUNK)).hashes) == 4096 + 2


def test_a_long_text_is_not_copied() -> None:
    data = bytes(8 * 2**20)
    writer = ChainWriter(7)
    tracemalloc.start()
    try:
        writer.data(KIND, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(writer.chain().hashes) == 4096 + 256, "4 MiB by 1 KiB, and 4 MiB by 16 KiB"
    assert peak < 2 * 2**20, f"{peak} bytes held to hash {len(data)}"


def test_canonical_form_keeps_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": [True, None, 1.5]}, 8) == b'{"b":1,"a":[true,null,1.5]}'
    assert canonical({"b": 1, "a": 2}, 8) != canonical({"a": 2, "b": 1}, 8)


def nest(depth: int) -> object:
    value: object = 1
    for at in range(depth):
        value = [value] if at % 2 else {"k": value}
    return value


@pytest.mark.parametrize("limit", [4, 128, 400, 900])
def test_the_depth_limit_is_exact_also_beyond_what_orjson_writes(limit: int) -> None:
    assert canonical(nest(limit), limit)
    with pytest.raises(Unreadable, match="too_deep"):
        canonical(nest(limit + 1), limit)


def test_brackets_inside_strings_are_not_depth() -> None:
    assert canonical(["[" * 1000, "{" * 1000], 4)
    assert canonical([[] for _ in range(1000)], 4)


def test_a_value_too_wide_to_walk_is_refused_before_it_is_walked() -> None:
    assert canonical([[]] * 100_000, 128)
    with pytest.raises(Unreadable, match="too_deep"):
        canonical([[]] * 200_001, 128)


def test_a_nest_no_stack_could_hold_is_refused_and_not_raised_as_recursion() -> None:
    with pytest.raises(Unreadable, match="too_deep"):
        canonical(nest(100_000), 128)


def test_what_orjson_cannot_write_still_has_a_form_of_its_own() -> None:
    odd = [2**64, -(2**64), 2**70_000, "\ud800", {"\udfff": 1}, [2**64, "a"], [2**64, "b"], [2**64, ["a"]]]
    odd += [[2**64, None], [2**64, "None"], [2**64, True], [2**64, 1], {"a": 2**64}, {"a": {"a": 2**64}}]
    forms = [canonical(value, 128) for value in odd]
    assert len(set(forms)) == len(forms)
    assert forms == [canonical(value, 128) for value in odd]


def test_overheads_are_whole_tokens_of_four_bytes() -> None:
    assert MESSAGE_BYTES % 4 == 0
    assert MEDIA_BYTES % 4 == 0
