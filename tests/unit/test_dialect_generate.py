"""TGI, SGLang and vLLM's own APIs, two of which share a path."""

import pytest

from tests.unit.reading import chain_of, check, prompt_of, refused, shared

VLLM = "/inference/v1/generate"


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_tgi_is_known_by_its_inputs(path: str) -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 7, "best_of": 2, "adapter_id": "sql"}}
    prompt = prompt_of(path, body)
    assert (prompt.dialect, prompt.model, prompt.adapter) == ("tgi_generate", "", "sql")
    assert (prompt.max_output, prompt.n, prompt.size) == (7, 2, 5)


@pytest.mark.parametrize("key", ["text", "input_ids"])
def test_sglang_is_known_by_its_keys(key: str) -> None:
    prompt = prompt_of("/generate", {key: "hello" if key == "text" else [1, 2]})
    assert (prompt.dialect, prompt.token_ids) == ("sglang_generate", key == "input_ids")


def test_an_adapter_of_tgi_parts_its_chains() -> None:
    plain = chain_of("/", {"inputs": "a"})
    assert shared(plain, chain_of("/", {"inputs": "a", "parameters": {"adapter_id": "b"}})) == 0
    assert chain_of("/", {"inputs": "a", "parameters": None}) == plain
    assert chain_of("/", {"inputs": "a", "parameters": {"temperature": 1}}) == plain


def test_images_inside_tgi_text_count_4000_bytes() -> None:
    text = "see ![](data:image/png;base64," + "A" * 9000 + ") and ![](https://a/b.png)!"
    # "see " with the first image, " and " with the second, "!"
    assert chain_of("/", {"inputs": text}).ends == [4004, 8009, 8010]


def test_what_only_looks_like_an_image_is_text() -> None:
    assert chain_of("/", {"inputs": "![](not a url)"}).ends == [14]
    assert chain_of("/", {"inputs": "![](http://never closed"}).ends == [23]
    assert chain_of("/", {"inputs": "![](![](http://a)b"}).ends == [4 + 4000, 4 + 4000 + 1]


@pytest.mark.timeout(10)
def test_hundreds_of_thousands_of_images_never_closed_take_no_quadratic_time() -> None:
    assert prompt_of("/", {"inputs": "![](http://" * 400_000}).size == 4_400_000


def test_too_many_images_in_a_text_are_refused() -> None:
    assert refused("/", {"inputs": "![](http://a)" * 6}, max_parts=10) == "too_many_parts"


@pytest.mark.parametrize("body", [{"inputs": 1}, {"inputs": ["a"]}, {"inputs": "a", "parameters": []}])
def test_tgi_of_another_shape_is_refused(body: dict[str, object]) -> None:
    assert refused("/", body) == "wrong_shape"


def test_a_batch_of_sglang_has_its_own_adapter_salt_and_media_for_each() -> None:
    body = {
        "text": ["a", "a", "a", "a"],
        "lora_path": ["one", "two", None, None],
        "extra_key": [None, None, None, "salt"],
        "image_data": [None, None, ["http://a", {"url": "http://b"}], None],
        "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 9, "n": 2}, {"max_new_tokens": 1}],
    }
    prompt = prompt_of("/generate", body)
    check(prompt)
    assert [chain.ends for chain in prompt.chains] == [[1], [1], [4000, 8000, 8001], [1]]
    assert len({chain.hashes[-1] for chain in prompt.chains}) == 4
    assert (prompt.adapter, prompt.max_output, prompt.n) == ("one", 9, 2)
    assert prompt.chains[0] == chain_of("/generate", {"text": "a", "lora_path": "one"})
    assert prompt.chains[3] == chain_of("/generate", {"text": "a", "extra_key": "salt"})


def test_a_single_prompt_of_sglang_may_have_several_images() -> None:
    assert chain_of("/generate", {"text": "ab", "image_data": ["x", "y"]}).ends == [4000, 8000, 8002]
    assert chain_of("/generate", {"text": "ab", "image_data": "x"}).ends == [4000, 4002]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (None, None),
        ({}, None),
        ([], None),
        ({"max_new_tokens": 0}, 0),
        ({"max_new_tokens": 128}, 128),
        ([{"max_new_tokens": 4}, {}], None),
        ([{"max_new_tokens": 4}, {"max_new_tokens": 6}], 6),
    ],
)
def test_sglang_output_is_the_most_any_member_allows(sampling: object, expected: int | None) -> None:
    assert prompt_of("/generate", {"text": "a", "sampling_params": sampling}).max_output == expected


@pytest.mark.parametrize(
    "body",
    [
        {"text": 1},
        {"text": []},
        {"input_ids": ["a", [1]]},
        {"text": "a", "sampling_params": 1},
        {"text": "a", "sampling_params": [1]},
        {"text": "a", "lora_path": 1},
        {"text": "a", "lora_path": [1]},
    ],
)
def test_sglang_of_another_shape_is_refused(body: dict[str, object]) -> None:
    assert refused("/generate", body) == "wrong_shape"


def test_sglang_text_is_the_text_of_a_completion() -> None:
    body = {"model": "m", "text": "ab", "cache_salt": "s", "lora_path": "l"}
    same = {"model": "m", "prompt": "ab", "cache_salt": "s", "lora_path": "l"}
    assert chain_of("/generate", body) == chain_of("/v1/completions", same)


def test_vllm_token_ids_are_the_ids_of_a_completion() -> None:
    body = {"model": "tiny", "token_ids": [325, 610, 267], "sampling_params": {"max_tokens": 4, "n": 2}}
    prompt = prompt_of(VLLM, body)
    assert (prompt.dialect, prompt.token_ids, prompt.max_output, prompt.n) == ("vllm_generate", True, 4, 2)
    assert prompt.chains[0].ends == [12]
    assert prompt.chains == prompt_of("/v1/completions", {"model": "tiny", "prompt": [325, 610, 267]}).chains


def test_vllm_images_part_equal_ids() -> None:
    body = {"token_ids": [1, 2]}
    one = chain_of(VLLM, {**body, "features": {"mm_hashes": {"image": ["aa"]}, "kwargs_data": "x"}})
    other = chain_of(VLLM, {**body, "features": {"mm_hashes": {"image": ["bb"]}, "kwargs_data": "y"}})
    assert shared(one, other) == 0
    assert chain_of(VLLM, {**body, "features": None}) == chain_of(VLLM, body)


@pytest.mark.parametrize(
    "body",
    [{"token_ids": "a"}, {"token_ids": []}, {"token_ids": [[1]]}, {"token_ids": [1], "sampling_params": 1}],
)
def test_vllm_of_another_shape_is_refused(body: dict[str, object]) -> None:
    assert refused(VLLM, body) == "wrong_shape"
