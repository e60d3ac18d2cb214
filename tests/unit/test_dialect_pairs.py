"""Rerank and score."""

import pytest

from tests.unit.reading import check, prompt_of, refused, shared


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("key", ["documents", "texts"])
def test_rerank_has_a_chain_per_document_with_the_query_first(path: str, key: str) -> None:
    prompt = prompt_of(path, {"model": "m", "query": "what", key: ["one", {"text": "two"}]})
    check(prompt)
    assert (prompt.dialect, prompt.kind, prompt.max_output) == ("rerank", "rerank", 0)
    # the query has 4 bytes, the step to the document 1, the document 3
    assert [chain.ends for chain in prompt.chains] == [[4, 8], [4, 8]]
    assert shared(*prompt.chains) == 1


@pytest.mark.parametrize(
    "keys", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("query", "items")]
)
def test_score_takes_every_spelling(keys: tuple[str, str]) -> None:
    prompt = prompt_of("/v1/score", {"model": "m", keys[0]: "q", keys[1]: ["a", "b"]})
    assert (prompt.dialect, prompt.kind, len(prompt.chains)) == ("score", "rerank", 2)
    assert prompt.chains == prompt_of("/rerank", {"model": "m", "query": "q", "documents": ["a", "b"]}).chains


def test_score_pairs_two_lists_side_by_side() -> None:
    both = prompt_of("/score", {"text_1": ["a", "b"], "text_2": ["c", "d"]}).chains
    assert both == [prompt_of("/score", {"text_1": x, "text_2": y}).chains[0] for x, y in ("ac", "bd")]


def test_a_byte_moved_from_query_to_document_makes_another_chain() -> None:
    one, other = (
        prompt_of("/score", {"text_1": x, "text_2": y}).chains[0] for x, y in (("ab", "c"), ("a", "bc"))
    )
    assert shared(one, other) == 0


def test_token_ids_parts_and_objects_are_taken() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://a"}}
    items = [[1, 2], {"content": ["a", image]}, {"title": "t"}]
    prompt = prompt_of("/score", {"query": [3], "items": items})
    assert [chain.ends for chain in prompt.chains] == [[4, 13], [4, 4 + 1 + 1 + 4000], [4, 4 + 1 + 13]]
    assert not prompt.token_ids
    assert prompt_of("/score", {"query": [3], "items": [[1, 2]]}).token_ids


@pytest.mark.parametrize(
    "body",
    [
        {"query": "a"},
        {"query": "a", "documents": "b"},
        {"query": "a", "documents": []},
        {"query": "a", "documents": [1]},
        {"query": "a", "documents": [None]},
        {"query": 1, "documents": ["b"]},
        {"query": None, "documents": ["b"]},
        {"query": ["a", "b"], "documents": ["b"]},
    ],
)
def test_rerank_of_another_shape_is_refused(body: dict[str, object]) -> None:
    assert refused("/rerank", body) == "wrong_shape"


@pytest.mark.parametrize("body", [{"text_1": ["a", "b"], "text_2": ["c"]}, {"text_1": [], "text_2": "a"}])
def test_lists_that_do_not_fit_are_refused(body: dict[str, object]) -> None:
    assert refused("/score", body) == "wrong_shape"


def test_too_many_documents_are_refused() -> None:
    body = {"query": "a", "documents": ["b"] * 5}
    assert prompt_of("/rerank", body, max_members=5)
    assert refused("/rerank", body, max_members=4) == "too_many_members"
