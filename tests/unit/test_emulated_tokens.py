"""Text to tokens by bytes, block hashes in a chain, and generated text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.emulated.tokens import Cutter, TokenStream, cache_root, generated_text


def test_four_bytes_make_a_token_and_the_last_one_may_be_short():
    cutter = Cutter(4.0, 16)
    assert [cutter.count(size) for size in (0, 1, 4, 5, 64)] == [0, 1, 1, 2, 16]
    assert cutter.slices(b"abcdefghi") == [b"abcd", b"efgh", b"i"]


def test_a_fractional_ratio_is_kept_over_many_tokens():
    cutter = Cutter(2.7, 16)
    # Token i begins at floor(2.7 i): 0, 2, 5, 8, 10; ten tokens are exactly 27 bytes.
    assert [cutter.cut(i) for i in range(5)] == [0, 2, 5, 8, 10]
    assert cutter.count(27) == 10
    assert cutter.count(27_000_000) == 10_000_000


def test_only_full_blocks_are_hashed():
    cutter = Cutter(4.0, 2)  # a block is 8 bytes
    assert [len(TokenStream(cutter, b"x" * size, 1).hashes) for size in (7, 8, 15, 16)] == [0, 1, 1, 2]


def test_prompts_share_the_hashes_of_their_common_blocks_and_none_after():
    cutter = Cutter(4.0, 2)
    one = TokenStream(cutter, b"0123456789abcdefsame    ", 1).hashes
    two = TokenStream(cutter, b"0123456789abXdefsame    ", 1).hashes
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] != two[2], "a hash stands for everything before it, too"


def test_model_adapter_and_salt_keep_caches_apart():
    roots = [cache_root(parts) for parts in (("m", "", ""), ("m", "a", ""), ("m", "", "a"), ("n", "", ""))]
    assert len(set(roots)) == 4
    assert cache_root(("m", "", "")) == roots[0]


def test_generated_text_is_the_same_each_time_and_needs_no_json_escapes():
    text = generated_text(7, 0, 200_000)
    assert len(text) == 200_000, "longer than the pool, so it has to wrap"
    assert json.dumps(text) == f'"{text}"'
    assert generated_text(7, 1000, 1100) == text[1000:1100]
    assert generated_text(8, 0, 100) != text[:100]


@given(st.binary(max_size=300), st.integers(1000, 9000), st.integers(1, 8), st.lists(st.integers(0, 9)))
def test_a_prompt_and_its_answer_hash_like_a_prompt_that_holds_both(data, milli, block_size, steps):
    cutter = Cutter(milli / 1000, block_size)
    stream = TokenStream(cutter, data, 5)
    generated, hashes = 0, list(stream.hashes)
    for step in steps:
        generated += step
        hashes += stream.extend(generated)
    whole = TokenStream(cutter, data + stream.text(0, generated).encode(), 5)
    assert hashes == stream.hashes == whole.hashes
    assert whole.prompt_tokens <= stream.prompt_tokens + generated, "room for the answer is always enough"


@given(st.integers(0, 10_000), st.integers(1000, 9000), st.integers(1, 32))
def test_full_blocks_never_exceed_the_tokens_counted(size, milli, block_size):
    cutter = Cutter(milli / 1000, block_size)
    full = cutter.full_blocks(size)
    assert full * block_size <= cutter.count(size)
    assert cutter.cut(full * block_size) <= size < cutter.cut((full + 1) * block_size)


def test_a_sibling_has_the_same_prompt_and_another_answer():
    stream = TokenStream(Cutter(4.0, 2), b"0123456789", 1)
    sibling = stream.sibling(1)
    assert sibling.hashes == stream.hashes
    assert sibling.text(0, 20) != stream.text(0, 20)
    sibling.extend(10)
    assert len(stream.hashes) == 1, "the answer of one does not grow the other"
