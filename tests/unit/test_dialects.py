"""Finding and reading across all dialects: paths, limits, and any bytes at all."""

import pathlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import dialects
from extproc.core.dialects import DIALECTS, Limits, find, read
from extproc.core.prompt import REASONS
from extproc.errors import Unreadable
from tests.examples import LETTERS, examples
from tests.unit.reading import CHAT, chat, check, prompt_of, refused, user

BODIES: dict[str, dict[str, object]] = {
    CHAT: chat(
        {"role": "system", "content": "be kind"},
        user(
            [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}]
        ),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": ["a", "b"]},
        tools=[{"type": "function", "function": {"name": "f"}}],
        chat_template_kwargs={"enable_thinking": False},
        cache_salt="s",
        max_tokens=9,
        n=2,
    ),
    "/v1/completions": {"model": "m", "prompt": ["a", "b"], "max_tokens": 5},
    "/v1/responses": {
        "model": "m",
        "instructions": "be kind",
        "input": [user("hi"), {"type": "function_call_output", "call_id": "c", "output": "42"}],
    },
    "/v1/embeddings": {"model": "m", "input": [[1, 2], [3]]},
    "/rerank": {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]},
    "/score": {"model": "m", "text_1": "q", "text_2": ["a", {"content": [{"type": "text", "text": "b"}]}]},
    "/v1/messages": {
        "model": "m",
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}])],
        "max_tokens": 7,
    },
    "/generate_stream": {"inputs": "hi ![](http://a/b.png)", "parameters": {"max_new_tokens": 3}},
    "/generate": {
        "input_ids": [[1, 2], [3]],
        "sampling_params": [{"n": 2}, {"max_new_tokens": 4}],
        "lora_path": ["a", None],
        "image_data": [["x"], None],
    },
    "/inference/v1/generate": {"model": "m", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}},
}
BODIES["/v1/messages"]["messages"][0]["content"][0]["content"][0]["source"] = {
    "type": "url",
    "url": "http://a",
}  # type: ignore[index]
each_path = pytest.mark.parametrize("path", BODIES)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai_chat"),
        ("/foo/v1/chat/completions", "openai_chat"),
        ("/v1/chat/completions/", "openai_chat"),
        ("/v1/chat/completions?api-version=1/2", "openai_chat"),
        ("/v1/chat/completions/?a=/v1/completions", "openai_chat"),
        ("/openai/deployments/gpt/chat/completions", "openai_chat"),
        ("/v1/completions", "openai_completions"),
        ("/a/b/c/v1/completions", "openai_completions"),
        ("/v1/responses", "openai_responses"),
        ("/v1/embeddings", "openai_embeddings"),
        ("/rerank", "rerank"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "rerank"),
        ("/foo/rerank", "rerank"),
        ("/score", "score"),
        ("/v1/score", "score"),
        ("/v1/messages", "anthropic_messages"),
        ("/generate_stream", "tgi_generate"),
        ("/", "tgi_generate"),
        ("/?a=b", "tgi_generate"),
        ("/generate", "sglang_generate"),
        ("/foo/generate", "sglang_generate"),
        ("/inference/v1/generate", "vllm_generate"),
        ("/foo/inference/v1/generate", "vllm_generate"),
        ("/" + "x" * 10_000 + "/v1/chat/completions", "openai_chat"),
    ],
)
def test_a_path_finds_its_dialect(path: str, name: str) -> None:
    found = find(path)
    assert found is not None
    assert name == found.NAME


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "/foo/",
        "/v1/Chat/Completions",
        "/V1/completions",
        "/v1/chat/completions/render",
        "/v1/chat/completionsx",
        "/xv1/completions",
        "/completions",
        "/v1/messages/count_tokens",
        "/v1/threads/t/messages",
        "/v1/models",
        "/xgenerate",
        "v1/completions",
        "?/v1/completions",
        "/" + "/" * 10_000,
    ],
)
def test_other_paths_find_none(path: str) -> None:
    assert find(path) is None
    assert refused(path, {}) == "no_dialect"


def test_found_paths_are_remembered_within_bounds() -> None:
    for at in range(3000):
        find(f"/{at}/v1/completions")
    size = dialects._find.cache_info()
    assert size.currsize <= (size.maxsize or 0) <= 1024


def test_names_and_paths_belong_to_one_dialect_each() -> None:
    names = [dialect.NAME for dialect in DIALECTS]
    assert len(set(names)) == len(names)
    paths = [path for dialect in DIALECTS for path in dialect.PATHS]
    assert {path for path in paths if paths.count(path) > 1} == {"/generate"}
    assert max(map(len, paths)) * 2 < 64


def test_every_dialect_path_and_reason_is_documented() -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
    wanted = [dialect.NAME for dialect in DIALECTS]
    wanted += [path for dialect in DIALECTS for path in dialect.PATHS]
    wanted += list(REASONS)
    assert [word for word in wanted if f"`{word}`" not in page] == []


@each_path
def test_every_sample_is_read_and_holds_together(path: str) -> None:
    check(prompt_of(path, BODIES[path]))


@each_path
def test_spaces_escapes_and_order_of_top_level_keys_do_not_matter(path: str) -> None:
    body = BODIES[path]
    text = orjson.dumps(dict(reversed(body.items())), option=orjson.OPT_INDENT_2)
    spelled = text.replace(b"hi", b"\\u0068\\u0069").replace(b"a/b", b"a\\/b")
    assert read(path, spelled, Limits()) == prompt_of(path, body)


@each_path
def test_a_memoryview_reads_like_bytes(path: str) -> None:
    body = orjson.dumps(BODIES[path])
    assert read(path, memoryview(body), Limits()) == read(path, body, Limits())


@each_path
def test_model_and_salt_part_every_chain(path: str) -> None:
    base = prompt_of(path, BODIES[path])
    for change in (
        {"model": "other"},
        {"cache_salt": "other"},
        {"extra_key": "other"},
        {"lora_path": "other"},
    ):
        changed = prompt_of(path, {**BODIES[path], **change})
        for one, other in zip(base.chains, changed.chains, strict=True):
            assert not set(one.hashes) & set(other.hashes), change


@each_path
def test_what_does_not_change_the_prompt_does_not_change_the_chain(path: str) -> None:
    extra = {
        "temperature": 0.3,
        "top_p": 0.1,
        "user": "u",
        "metadata": {"a": "b"},
        "session_id": "s",
        "rid": "r",
        "seed": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_object"},
        "tool_choice": "auto",
        "priority": 3,
        "unknown": [[[[1]]]],
        "cache_salt": BODIES[path].get("cache_salt"),
    }
    assert prompt_of(path, {**BODIES[path], **extra}).chains == prompt_of(path, BODIES[path]).chains


@each_path
def test_json_of_another_shape_is_a_wrong_shape(path: str) -> None:
    for body in ({}, [], 1, None, "text", True, {"model": "m"}):
        assert refused(path, body) == "wrong_shape", body


NOT_JSON = [
    b"",
    b" ",
    b"\0",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"{",
    b'{"a":1}x',
    b"NaN",
    b'{"n":NaN}',
    b'{"n":1e999}',
    b'{"model":"\\ud800"}',
    b'{"lora_path":["\\udc00"]}',
    b'{"prompt":"\\ud800","n":NaN}',
    b'{"prompt":"\\ud800\x00"}',
    b'\xef\xbb\xbf{"prompt":"\\ud800"}',
    b'{"prompt":"\xed\xa0\x80"}',
    b"--boundary\r\nContent-Disposition: form-data",
]


@each_path
def test_what_is_not_json_says_so(path: str) -> None:
    for body in NOT_JSON:
        assert refused(path, body) == "not_json", body


@each_path
def test_half_of_a_surrogate_pair_is_a_character_like_any_other(path: str) -> None:
    body = orjson.dumps({**BODIES[path], "model": "m"})
    odd = body.replace(b'{"', b'{"\\udfff":"\\ud800","', 1).replace(
        b'"m"', b'"m","big":12345678901234567890123'
    )
    assert read(path, odd, Limits()) == read(path, body, Limits())


def test_texts_that_differ_in_half_of_a_surrogate_pair_have_different_prefixes() -> None:
    texts = [rb"\ud800", rb"\ud801", rb"\udc00\ud800", rb"\ud800\udc00"]
    bodies = [rb'{"messages":[{"role":"user","content":"a%s"}]}' % text for text in texts]
    assert len({read(CHAT, body, Limits()).chains[0].hashes[-1] for body in bodies}) == 4


@each_path
def test_half_of_a_surrogate_pair_anywhere_is_read_or_refused(path: str) -> None:
    for holder, key in inner_places(body := orjson.loads(orjson.dumps(BODIES[path]))):
        kept = holder[key]
        for value in ("\ud800", ["\udc00"], {"\ud800": "\ud800"}):
            holder[key] = value
            survives(path, as_json(body))
        holder[key] = kept


@each_path
def test_a_bomb_beside_half_of_a_surrogate_pair_is_too_deep(path: str) -> None:
    assert refused(path, b'{"a":"\\ud800","b":' + b"[" * 1_000 + b"]" * 1_000 + b"}") in REASONS
    assert refused(path, b'{"a":"\\ud800","b":' + b"[" * 100_000) == "too_deep"


@each_path
def test_a_nesting_bomb_is_too_deep(path: str) -> None:
    for bomb in (b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000):
        assert refused(path, bomb) == "too_deep", bomb[:9]
        assert refused(path, b'{"messages":' + bomb) == "too_deep", bomb[:9]


@each_path
@pytest.mark.parametrize("piece", [b"[],", b"{},"])
def test_a_body_of_millions_of_lists_is_refused_before_it_is_parsed(path: str, piece: bytes) -> None:
    assert refused(path, piece * 3_000_000) == "too_many_parts"


def test_a_body_of_millions_of_keys_is_refused_before_it_is_parsed() -> None:
    body = b"{" + b'"a":1,' * 900_000 + b'"b":1}'
    assert refused("/v1/chat/completions", body) == "too_many_parts"


def test_a_long_text_may_hold_brackets() -> None:
    assert prompt_of(CHAT, chat(user("[{(" * 100_000)))


def test_the_last_of_two_equal_keys_counts_and_case_matters() -> None:
    body = b'{"model":"a","Model":"x","MESSAGES":1,"messages":[{"role":"user","content":"a"}],"model":"b"}'
    assert read(CHAT, body, Limits()).model == "b"


@each_path
def test_a_model_that_is_no_string_is_a_wrong_shape(path: str) -> None:
    for value in (1, True, ["a"], {"a": 1}, 1.5):
        assert refused(path, {**BODIES[path], "model": value}) == "wrong_shape", value


def test_an_absent_or_null_model_is_empty() -> None:
    assert prompt_of(CHAT, {"messages": [user("a")]}).model == ""
    assert prompt_of(CHAT, {"messages": [user("a")], "model": None}).model == ""


@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(path: str, body: bytes) -> None:
    survives(path, body)


WORDS = st.sampled_from(
    [
        "model",
        "messages",
        "role",
        "content",
        "type",
        "text",
        "image_url",
        "url",
        "tools",
        "name",
        "input",
        "prompt",
        "documents",
        "query",
        "items",
        "source",
        "tool_result",
        "tool_use",
        "document",
        "user",
        "assistant",
        "cache_salt",
        "n",
        "max_tokens",
        "system",
        "data",
        "parameters",
        "inputs",
        "input_ids",
        "token_ids",
        "sampling_params",
        "features",
        "lora_path",
        "image_data",
        "function_call_output",
        "output",
    ]
)
NUMBERS = st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | st.just(1e308)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(LETTERS, max_size=6) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(BODIES)), st.dictionaries(WORDS, JSON, max_size=5))
@examples(50)
def test_any_json_is_read_or_refused(path: str, body: dict[str, object]) -> None:
    survives(path, as_json(body))


@given(st.sampled_from(sorted(BODIES)), st.data())
@examples(100)
def test_a_valid_body_with_one_value_exchanged_is_read_or_refused(path: str, data: st.DataObject) -> None:
    body = orjson.loads(orjson.dumps(BODIES[path]))
    places = list(inner_places(body))
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(JSON)
    survives(path, as_json(body))


@given(st.sampled_from(sorted(BODIES)), st.data())
def test_a_valid_body_with_one_byte_exchanged_is_read_or_refused(path: str, data: st.DataObject) -> None:
    body = bytearray(orjson.dumps(BODIES[path]))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(path, bytes(body))


def survives(path: str, body: bytes) -> None:
    try:
        check(read(path, body, Limits()))
    except Unreadable as error:
        reason = error.reason
    else:
        reason = "not_json"
    assert reason in REASONS


def as_json(body: object) -> bytes:
    """As orjson would write it, ints beyond 64 bits too."""
    import json

    return json.dumps(body, ensure_ascii=True).encode()


def inner_places(value: object):
    keys = value.keys() if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from inner_places(value[key])


def test_a_name_of_thousands_of_characters_is_no_name_and_the_model_is_told_for_what_cant_be_read() -> None:
    long = "m" * 5000
    for field in ("model", "lora_path", "cache_salt"):
        body = orjson.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}], field: long})
        assert refused("/v1/chat/completions", body) == "wrong_shape", field
    with pytest.raises(Unreadable) as caught:
        read("/v1/embeddings", orjson.dumps({"model": "b", "input": ["x"] * 3000}), Limits())
    assert (caught.value.reason, caught.value.model) == ("too_many_members", "b")


def test_what_the_members_of_a_batch_share_is_hashed_once() -> None:
    """A query of 4 MiB before 2,048 documents would be 8 GiB of hashing; its chains alone 8 million hashes."""
    body = orjson.dumps({"model": "demo", "query": "a" * 2**22, "documents": ["a"] * 2048})
    assert refused("/v1/rerank", body) == "too_many_parts"
    small = read("/v1/rerank", orjson.dumps({"query": "q" * 5000, "documents": ["a", "b"]}), Limits())
    first, second = small.chains
    assert first.hashes[:5] == second.hashes[:5]
    assert first.hashes[-1] != second.hashes[-1]
    image = orjson.dumps({"text": ["a"] * 2048, "image_data": "x" * 2**22})
    assert len(read("/generate", image, Limits()).chains) == 2048
    sampling = orjson.dumps({"text": "a", "sampling_params": [{}] * 3000})
    assert refused("/generate", sampling) == "too_many_members"


def test_a_large_body_of_millions_of_scalars_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_LARGE", 1_000)
    monkeypatch.setattr(dialects, "_MOST_COMMAS", 1_000)
    assert read("/v1/completions", orjson.dumps({"prompt": [1] * 1_001}), Limits()).size == 4_004
    monkeypatch.setattr(dialects.orjson, "loads", None)  # a call of it would be a TypeError
    assert refused("/v1/completions", orjson.dumps({"prompt": [1] * 1_002})) == "too_many_parts"
    assert refused("/v1/completions", b'"ab",' * 1_001) == "too_many_parts"


def test_a_million_token_ids_and_long_prose_are_read() -> None:
    assert read("/v1/completions", orjson.dumps({"prompt": [1] * 10**6}), Limits()).size == 4 * 10**6
    prose = "Twelve words of prose, more or less, and then a full stop. " * 2**16
    assert read("/v1/completions", orjson.dumps({"prompt": prose}), Limits()).size == 59 * 2**16


def test_what_the_texts_of_a_batch_share_is_hashed_once_however_it_is_spelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = dialects.sglang_generate
    seeds, sources = [], []
    seed, source = module.seed, module.media_source
    monkeypatch.setattr(module, "seed", lambda *words: seeds.append(words) or seed(*words))
    monkeypatch.setattr(module, "media_source", lambda *said: sources.append(said) or source(*said))
    for image in ("x" * 1000, {"url": "x" * 1000}, {"odd": ["x"] * 100}):
        shared = {"model": "m", "lora_path": "a", "cache_salt": "s", "extra_key": "k", "image_data": image}
        chains = read("/generate", orjson.dumps({"text": ["t"] * 100, **shared}), Limits()).chains
        alone = read("/generate", orjson.dumps({"text": "t", **shared}), Limits()).chains
        assert chains == alone * 100
    assert (len(seeds), len(sources)) == (6, 6)


def test_the_first_text_of_all_pairs_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, written = dialects.rerank.pairs_prompt.__globals__, []
    write = module["_write_text"]
    monkeypatch.setitem(module, "_write_text", lambda *said: written.append(said[1]) or write(*said))
    prompt = read("/rerank", orjson.dumps({"query": "q" * 3000, "documents": ["a", "b", "c"]}), Limits())
    assert written == ["q" * 3000, "a", "b", "c"]
    pairs = [{"text_1": "q" * 3000, "text_2": second} for second in "abc"]
    assert prompt.chains == [read("/score", orjson.dumps(pair), Limits()).chains[0] for pair in pairs]


def test_the_hashes_of_a_first_text_are_bounded_over_all_pairs() -> None:
    """100 KiB are 100 hashes: 2,000 pairs have 200,000 of them, 2,001 have more."""
    query = "q" * 102_400
    assert read("/rerank", orjson.dumps({"query": query, "documents": ["a"] * 2_000}), Limits())
    body = {"model": "m", "query": query, "documents": ["a"] * 2_001}
    assert refused("/rerank", body) == "too_many_parts"
