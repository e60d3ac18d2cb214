"""Counts that are believed, and the shapes in which engines write them."""

from typing import Any

import pytest

from extproc.core.usage import shapes
from extproc.core.usage.record import MOST_TOKENS, Usage, checked, count, total


@pytest.mark.parametrize(
    "value", [True, False, -1, 1.5, "7", [7], {}, 10**9 + 1, 10**30, float("inf"), float("nan")]
)
def test_nonsense_is_no_count(value: Any) -> None:
    assert count(value) is None
    assert checked(value, 5, None) == Usage(None, 5, None, None, odd=1)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (7, 7), (7.0, 7), (MOST_TOKENS, MOST_TOKENS)])
def test_whole_numbers_within_bounds_are_counts(value: Any, expected: int) -> None:
    assert count(value) == expected


def test_what_is_not_told_is_unknown_and_not_odd() -> None:
    assert checked(None, None, None) == Usage()
    assert not Usage().known
    assert not Usage(choices=1).known
    assert Usage(cached=0).known


def test_more_cached_than_sent_is_odd_and_unknown() -> None:
    assert checked(10, 2, 11) == Usage(10, 2, None, None, odd=1)
    assert checked(10, 2, 10) == Usage(10, 2, 10)


def test_an_output_of_nothing_is_zero_but_a_prompt_of_nothing_is_unknown() -> None:
    assert checked(5, 0, 0) == Usage(5, 0, 0)
    assert checked(0, 0, 0) == Usage()


def test_a_sum_takes_absent_as_nothing_and_nonsense_as_unknown() -> None:
    assert total((4, None, 416)) == 420
    assert total((4, "x", 416)) is None
    assert total((None, None)) is None
    assert total((MOST_TOKENS, 1)) is None


SHAPES: list[tuple[str, Any, Usage]] = [
    (
        "OpenAI",
        {"prompt_tokens": 420, "completion_tokens": 16, "prompt_tokens_details": {"cached_tokens": 416}},
        Usage(420, 16, 416),
    ),
    (
        "no details",
        {"prompt_tokens": 15, "completion_tokens": 4, "prompt_tokens_details": None},
        Usage(15, 4),
    ),
    ("embeddings", {"prompt_tokens": 8, "total_tokens": 8}, Usage(8)),
    (
        "Responses",
        {"input_tokens": 11, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 2}},
        Usage(11, 8, 2),
    ),
    (
        "Anthropic: what was read from the cache and written to it is not in input_tokens",
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 400,
            "cache_creation_input_tokens": 16,
            "output_tokens": 8,
        },
        Usage(420, 8, 400),
    ),
    (
        "Anthropic without a word on the cache",
        {"input_tokens": 15, "output_tokens": 8},
        Usage(15, 8),
    ),
    (
        "Anthropic, all of the prompt cached",
        {"input_tokens": 0, "cache_read_input_tokens": 64, "output_tokens": 1},
        Usage(64, 1, 64),
    ),
    (
        "Anthropic with an odd part: the sum is unknown",
        {"input_tokens": -4, "cache_read_input_tokens": 400, "output_tokens": 8},
        Usage(None, 8, 400, None, odd=1),
    ),
    (
        "a proxy with both spellings: prompt_tokens is the whole prompt",
        {"prompt_tokens": 420, "completion_tokens": 8, "cache_read_input_tokens": 400, "input_tokens": 20},
        Usage(420, 8),
    ),
    ("details of a wrong type", {"prompt_tokens": 3, "prompt_tokens_details": [1]}, Usage(3)),
]


@pytest.mark.parametrize(("usage", "expected"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_usage_objects(usage: Any, expected: Usage) -> None:
    assert shapes.of_usage(usage) == expected


BODIES: list[tuple[str, Any, Usage | None]] = [
    ("an error has none", {"error": {"message": "no"}, "usage": {"prompt_tokens": 5}}, None),
    ("error null is no error", {"error": None, "usage": {"prompt_tokens": 5}}, Usage(5)),
    ("no usage", {"choices": []}, None),
    ("usage null", {"usage": None}, None),
    (
        "TGI without details",
        {"generated_text": "a"},
        None,
    ),
    (
        "TGI",
        {"generated_text": "a", "details": {"finish_reason": "length", "generated_tokens": 20}},
        Usage(None, 20, None, 1),
    ),
    (
        "TGI's best_of: what the others cost too",
        {"details": {"generated_tokens": 20, "best_of_sequences": [{"generated_tokens": 9}]}},
        Usage(None, 29),
    ),
    (
        "SGLang's meta_info",
        {
            "meta_info": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "cached_tokens": 8,
                "finish_reason": {"type": "stop"},
            }
        },
        Usage(9, 2, 8, 1),
    ),
    (
        "llama.cpp's timings",
        {"timings": {"cache_n": 1864, "prompt_n": 1, "predicted_n": 8}},
        Usage(1865, 8, 1864),
    ),
    ("timings without the cache", {"timings": {"prompt_n": 1, "predicted_n": 8}}, Usage(None, 8)),
    (
        "llama.cpp with two answers counts one",
        {"choices": [{}, {}], "timings": {}, "usage": {"prompt_tokens": 2, "completion_tokens": 4}},
        None,
    ),
]


@pytest.mark.parametrize(("body", "expected"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES])
def test_bodies(body: Any, expected: Usage | None) -> None:
    assert shapes.of_body(body) == expected


def test_of_several_answers_the_output_adds_up_and_the_prompt_is_unknown() -> None:
    answer = {"meta_info": {"prompt_tokens": 9, "completion_tokens": 2, "finish_reason": {"type": "stop"}}}
    assert shapes.of_bodies([answer]) == Usage(9, 2, None, 1)
    assert shapes.of_bodies([answer, answer]) == Usage(None, 4, None, 2)
    assert shapes.of_bodies([answer, {}]) == Usage()
    assert shapes.of_bodies([answer, 7]) == Usage()
    assert shapes.of_bodies([]) is None


CONTENT: list[tuple[Any, bool]] = [
    ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
    ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, False),
    ({"choices": [{"delta": {"content": "a"}}]}, True),
    ({"choices": [{"delta": {"reasoning_content": "a"}}]}, True),
    ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
    ({"choices": [{"text": ""}]}, False),
    ({"choices": [{"text": "a"}]}, True),
    ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, True),
    ({"choices": [], "usage": {"prompt_tokens": 3}}, False),
    ({"choices": "x"}, False),
    ({"choices": [7]}, False),
    ({"type": "ping"}, False),
    ({"type": "message_start", "message": {"content": []}}, False),
    ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, False),
    ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}, True),
    ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, True),
    ({"type": "response.created", "response": {"output": []}}, False),
    ({"type": "response.output_text.delta", "delta": "a"}, True),
    ({"text": "", "output_ids": [5], "meta_info": {}}, True),
    ({"text": "", "output_ids": [], "meta_info": {}}, False),
    ({"index": 1, "token": {"id": 5, "text": ""}, "generated_text": None}, True),
    ({"index": 0, "content": "a", "tokens": []}, True),
]


@pytest.mark.parametrize(("event", "expected"), CONTENT)
def test_which_events_show_that_a_prompt_is_done(event: Any, expected: bool) -> None:
    assert shapes.has_content(event) is expected


def test_of_a_prompt_that_is_not_believed_no_cached_part_is_either() -> None:
    assert checked(-5, 20, 0) == Usage(None, 20, None, odd=1)
