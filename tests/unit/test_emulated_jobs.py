"""Request bodies to jobs: tokens, cache identity, lengths, and vLLM's errors for what can't be served."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import brotli
import orjson
import pytest
import zstandard

from extproc.errors import ConfigError
from extproc.sim.emulated.bodies import read_json
from extproc.sim.emulated.jobs import Job, Reader
from extproc.sim.emulated.problems import Problem
from extproc.sim.emulated.settings import EngineSettings

SHAPES = json.loads((Path(__file__).parents[1] / "fixtures" / "emulated_vllm032_shapes.json").read_text())
READER = Reader(EngineSettings(model="tiny", adapters=("lora-a",), max_model_len=4096, block_size=16))


def chat(*contents: Any, **more: Any) -> Job:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return READER.chat({"messages": messages, **more})


def problem(read: Any, body: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(Problem) as caught:
        read(body)
    error: dict[str, Any] = orjson.loads(caught.value.body())["error"]
    assert error["code"] == caught.value.status
    return error


def shared(one: Job, two: Job) -> int:
    """Leading blocks that two prompts have in common."""
    pairs = zip(one.streams[0].hashes, two.streams[0].hashes, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(one.streams[0].hashes))


def test_a_chat_is_rendered_with_its_roles():
    # <|user|>\n + 10 + \n + <|assistant|>\n = 9 + 10 + 1 + 14 bytes = 34: 9 tokens of 4 bytes.
    assert chat("Say hello.").prompt_tokens == 9


def test_a_chat_extended_by_a_turn_keeps_its_blocks():
    system = "You are careful. " * 50
    first = chat(system)
    second = chat(system, "An answer.", "And then?")
    # 9 + 850 + 1 bytes are common, and the assistant's 14: 13 blocks of 64 bytes.
    assert shared(first, second) == 13 == (9 + 850 + 1 + 14) // 64


def test_salt_and_adapter_share_nothing_and_whitespace_of_json_does_not_matter():
    text = "x" * 1000
    plain = chat(text)
    assert shared(plain, chat(text, cache_salt="s")) == 0
    assert shared(plain, chat(text, model="lora-a")) == 0
    assert shared(plain, chat(text, model="tiny")) == 16  # 9 + 1000 + 1 + 14 bytes


def test_parts_and_text_are_the_same_prompt():
    text = "x" * 1000
    assert shared(chat(text), chat([{"type": "text", "text": text}])) == 16
    assert shared(chat(text), chat(["x" * 400, "x" * 600])) == 16


def test_an_image_counts_its_tokens_whatever_its_bytes():
    def image(data: str) -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}]

    one, two = chat(image("A" * 10)), chat(image("B" * 100_000))
    assert one.prompt_tokens == two.prompt_tokens == 576 + 6  # 24 bytes around it
    assert shared(one, two) == 0
    assert shared(one, chat(image("A" * 10))) == 36


def test_tools_are_part_of_the_prompt():
    text = "x" * 1000
    assert shared(chat(text), chat(text, tools=[{"type": "function"}])) == 0


def test_null_content_and_tool_calls_are_read():
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}
    assert READER.chat(body).prompt_tokens > chat("").prompt_tokens


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("abcdefgh", 2), (["abcd", "abcdefgh"], 3), ([5, 6, 7], 3), ([[325, 610], [325, 611, 5]], 5)],
)
def test_completion_prompts_come_in_four_forms(prompt, tokens):
    assert READER.completion({"prompt": prompt}).prompt_tokens == tokens


def test_token_ids_of_a_text_hit_the_same_blocks():
    text = "All work and no play makes a dull engine. " * 10
    ids = READER.tokenize({"prompt": text})
    assert len(ids) == 105
    by_text, by_ids = READER.completion({"prompt": text}), READER.completion({"prompt": ids})
    assert shared(by_text, by_ids) == 6


def test_several_answers_count_the_prompt_once():
    job = READER.completion({"prompt": ["abcd", "abcdefgh"], "n": 3, "max_tokens": 5})
    assert (len(job.streams), job.prompt_tokens, sum(job.outputs)) == (6, 3, 30)
    texts = {stream.text(0, 50) for stream in job.streams}
    assert len(texts) == 6


def test_the_limit_ends_an_answer_by_length_and_none_by_stop():
    limited, free = chat("hi", max_tokens=7), chat("hi")
    assert (limited.outputs, limited.reasons) == ([7], ["length"])
    assert (free.outputs, free.reasons) == ([64], ["stop"])
    assert chat("hi", max_tokens=7, max_completion_tokens=9).outputs == [9]


def test_a_stop_string_cuts_the_text_before_it():
    whole = chat("hi", max_tokens=50)
    text = whole.streams[0].text(0, 50)
    stop = text[21:26]
    job = chat("hi", max_tokens=50, stop=["never there", stop])
    assert (job.reasons, job.stop_strings, job.shown) == (["stop"], [stop], [text.find(stop)])
    assert job.outputs == [-(-(text.find(stop) + 5) // 4)]


def test_natural_ends_vary_by_prompt_and_repeat():
    reader = Reader(EngineSettings(natural_output_tokens=100))
    bodies = [{"prompt": f"question {i}", "max_tokens": 120} for i in range(50)]
    lengths = [reader.completion(body).outputs[0] for body in bodies]
    assert lengths == [reader.completion(body).outputs[0] for body in bodies]
    assert len(set(lengths)) > 20
    assert min(lengths) >= 50
    assert max(lengths) <= 120
    assert reader.completion({**bodies[0], "ignore_eos": True}).outputs == [120]


def test_embeddings_and_pairs_generate_nothing():
    assert READER.embedding({"input": ["abcd", "abcd"]}).outputs == [0, 0]
    job = READER.pairs({"query": "q", "documents": ["abc", {"text": "abcdefg"}]}, "query", "documents")
    # "q\nabc" and "q\nabcdefg": 5 and 9 bytes.
    assert [stream.prompt_tokens for stream in job.streams] == [2, 3]
    assert job.outputs == [0, 0]


def test_errors_are_vllms_own():
    real = SHAPES["errors"]
    long = "x" * (4097 * 4)
    cases = {
        "unknown_model": (READER.chat, {"model": "nope", "messages": []}),
        "missing_messages": (READER.chat, {"model": "tiny"}),
        "too_long": (READER.completion, {"prompt": long}),
        "max_tokens_over": (READER.completion, {"prompt": "x", "max_tokens": 5000}),
        "bad_temperature": (READER.completion, {"prompt": "x", "temperature": -1.0}),
    }
    for name, (read, body) in cases.items():
        error, expected = problem(read, body), real[name]["error"]
        assert {**error, "message": ""} == {**expected, "message": ""}, name
        if name != "missing_messages":  # its message quotes the input, which ours does not
            assert error["message"] == expected["message"]


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (READER.chat, {"messages": "hi"}),
        (READER.chat, {"messages": ["hi"]}),
        (READER.chat, {"messages": [{"content": "hi"}]}),
        (READER.chat, {"messages": [{"role": "user", "content": 5}]}),
        (READER.chat, {"messages": [{"role": "user", "content": [5]}]}),
        (READER.completion, {}),
        (READER.completion, {"prompt": ""}),
        (READER.completion, {"prompt": []}),
        (READER.completion, {"prompt": [1.5]}),
        (READER.completion, {"prompt": [2**40]}),
        (READER.completion, {"prompt": [True]}),
        (READER.completion, {"prompt": "x", "max_tokens": 0}),
        (READER.completion, {"prompt": "x", "max_tokens": "8"}),
        (READER.completion, {"prompt": "x", "n": 0}),
        (READER.completion, {"prompt": "x", "n": 10**9}),
        (READER.completion, {"prompt": "x", "stop": 5}),
        (READER.completion, {"prompt": "x" * 16_000, "max_tokens": 200}),
        (READER.embedding, {"input": None}),
        (READER.tokenize, {"prompt": 5}),
    ],
)
def test_what_can_not_be_served_is_a_400(read, body):
    assert problem(read, body)["code"] == 400


def test_two_texts_against_three_are_refused():
    with pytest.raises(Problem, match="1:1, 1:N or N:N"):
        READER.pairs({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1", "text_2")


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
def test_compressed_bodies_are_read_and_bounded(coding, pack):
    body = b'{"prompt": "' + b"x" * 5000 + b'"}'
    assert len(read_json(pack(body), "application/json", coding, 6000)["prompt"]) == 5000
    with pytest.raises(Problem) as caught:
        read_json(pack(body), "application/json", coding, 5000)
    assert caught.value.status == 413
    with pytest.raises(Problem):
        read_json(b"\xffnot packed", "application/json", coding, 6000)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"[" * 10_000, "application/json"),
        (b"{}", "text/plain"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(body, kind):
    with pytest.raises(Problem) as caught:
        read_json(body, kind, "", 10**6)
    assert caught.value.status == 400


def test_settings_out_of_range_name_the_field():
    with pytest.raises(ConfigError, match=r"block_size: 0 is too small; give at least 1"):
        EngineSettings(block_size=0)
    with pytest.raises(ConfigError, match=r"port: 70000 is too large"):
        EngineSettings(port=70_000)
    with pytest.raises(ConfigError, match=r"kv_tokens: 20 is less than two blocks of 16"):
        EngineSettings(kv_tokens=20)


def test_a_request_can_not_be_longer_than_the_kv_cache():
    assert EngineSettings(kv_tokens=160, block_size=16).longest == 144, "one block is never used"
