import pytest

from extproc.core.prompt import BYTES_PER_TOKEN_ID
from tests.unit.reading import chain_of, check, prompt_of, refused, shared

COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


def test_a_string_is_one_prompt_counted_in_its_bytes() -> None:
    prompt = prompt_of(COMPLETIONS, {"model": "m", "prompt": "héllo", "max_tokens": 3, "best_of": 2})
    assert (prompt.dialect, prompt.kind, prompt.model) == ("openai_completions", "generate", "m")
    assert (prompt.size, prompt.max_output, prompt.n, prompt.token_ids) == (6, 3, 2, False)
    assert prompt.chains[0].ends == [6]


def test_token_ids_are_one_prompt_of_four_bytes_each() -> None:
    prompt = prompt_of(COMPLETIONS, {"model": "m", "prompt": [325, 610, 267]})
    assert prompt.token_ids
    assert prompt.chains[0].ends == [12]
    assert prompt.size == 3 * BYTES_PER_TOKEN_ID


def test_equally_long_lists_of_ids_are_told_apart() -> None:
    one, other = (chain_of(COMPLETIONS, {"prompt": ids}) for ids in ([1, 2, 3], [1, 2, 4]))
    assert one.hashes != other.hashes


def test_longer_ids_share_every_full_256_of_the_shorter() -> None:
    one = chain_of(COMPLETIONS, {"prompt": list(range(600))})
    other = chain_of(COMPLETIONS, {"prompt": list(range(700))})
    assert shared(one, other) == 2


@pytest.mark.parametrize(
    ("prompts", "ends"),
    [(["a", "bc"], [[1], [2]]), ([[1, 2], [3]], [[8], [4]]), (["", "b"], [[1], [1]])],
)
def test_a_batch_has_a_chain_for_each_member(prompts: list[object], ends: list[list[int]]) -> None:
    prompt = prompt_of(COMPLETIONS, {"model": "m", "prompt": prompts})
    assert [chain.ends for chain in prompt.chains] == ends
    assert prompt.size == sum(end[-1] for end in ends)
    check(prompt)


def test_a_member_is_the_same_alone_and_in_a_batch() -> None:
    assert prompt_of(COMPLETIONS, {"prompt": ["a", "b"]}).chains[1] == chain_of(COMPLETIONS, {"prompt": "b"})


def test_text_and_ids_of_equal_bytes_differ() -> None:
    text = chain_of(COMPLETIONS, {"prompt": "A\0\0\0"})
    assert text.hashes != chain_of(COMPLETIONS, {"prompt": [65]}).hashes


def test_embeddings_are_a_prompt_with_text_beside_them_or_alone() -> None:
    alone = prompt_of(COMPLETIONS, {"model": "m", "prompt_embeds": "QUJD"})
    assert [chain.ends for chain in alone.chains] == [[4000]]  # as an image: its tokens are not known
    assert (alone.size, alone.token_ids) == (4000, False)
    check(alone)
    empty = prompt_of(COMPLETIONS, {"model": "m", "prompt": "", "prompt_embeds": ["QUJD", "REVG"]})
    assert len(empty.chains) == 2
    assert empty.chains[0].hashes == alone.chains[0].hashes != empty.chains[1].hashes
    both = prompt_of(COMPLETIONS, {"model": "m", "prompt": [1, 2], "prompt_embeds": "QUJD"})
    assert ([chain.ends for chain in both.chains], both.token_ids) == ([[4000], [8]], True)


@pytest.mark.parametrize("value", [[], 1, {}, [1], [["a"]], [None]])
def test_embeddings_of_another_shape_are_refused(value: object) -> None:
    assert refused(COMPLETIONS, {"model": "m", "prompt_embeds": value}) == "wrong_shape"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [[]],
        1,
        True,
        {},
        [None],
        [True],
        [1.5],
        ["a", [1]],
        [[1], "a"],
        [1, "a"],
        [[1, "a"]],
        [[[1]]],
    ],
)
@pytest.mark.parametrize(("path", "key"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
def test_mixed_and_empty_inputs_are_a_wrong_shape(path: str, key: str, value: object) -> None:
    assert refused(path, {"model": "m", key: value}) == "wrong_shape"


@pytest.mark.parametrize("ids", [[-1], [2**32], [2**63], [1, 2.0]])
def test_ids_outside_32_bits_are_a_wrong_shape(ids: list[int]) -> None:
    assert refused(COMPLETIONS, {"prompt": ids}) == "wrong_shape"


@pytest.mark.parametrize("member", ["a", [1]])
def test_a_batch_beyond_its_limit_is_refused(member: object) -> None:
    assert prompt_of(COMPLETIONS, {"prompt": [member] * 4}, max_members=4)
    assert refused(COMPLETIONS, {"prompt": [member] * 5}, max_members=4) == "too_many_members"


def test_a_long_list_of_ids_is_one_member() -> None:
    assert prompt_of(COMPLETIONS, {"prompt": list(range(50))}, max_members=4)


def test_embeddings_take_the_same_forms_and_generate_nothing() -> None:
    for value in ("a", ["a", "b"], [1, 2], [[1], [2]]):
        prompt = prompt_of(EMBEDDINGS, {"model": "m", "input": value})
        assert (prompt.dialect, prompt.kind, prompt.max_output) == ("openai_embeddings", "embed", 0)
        assert prompt.chains == prompt_of(COMPLETIONS, {"model": "m", "prompt": value}).chains


def test_embeddings_take_a_chat_too() -> None:
    messages = [{"role": "user", "content": "a"}]
    prompt = prompt_of(EMBEDDINGS, {"model": "m", "messages": messages})
    assert prompt.kind == "embed"
    assert prompt.chains == prompt_of("/v1/chat/completions", {"model": "m", "messages": messages}).chains
