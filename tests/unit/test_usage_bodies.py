"""Usage out of response bodies: real engines' answers, every API's streams, encodings, bounds and faults."""

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
import zstandard

from extproc.core.usage import bodies
from extproc.core.usage.bodies import BodyUsage
from extproc.core.usage.record import Usage
from extproc.core.usage.unpacking import Unpacking
from extproc.errors import TooLarge

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "usage"
SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"


def _read(body: bytes, kind: str = SSE, size: int = 10**9, **more: Any) -> BodyUsage:
    reader = BodyUsage(kind, **more)
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size])
    reader.feed(b"", end=True)
    return reader


def _sse(*events: Any, done: bool = True) -> bytes:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def _chunk(content: str = "a", index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": content}, "finish_reason": finish}], **more}


def _counts(tokens_in: int, out: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"usage": {"prompt_tokens": tokens_in, "completion_tokens": out, **details}}


def _last(tokens_in: int, out: int, cached: int | None = None) -> dict[str, Any]:
    return {"choices": [], **_counts(tokens_in, out, cached)}


# ---- what engines really answer: vLLM 0.32, SGLang 0.5.23, llama.cpp, Dynamo's mocker 1.6.1

ANSWERS = {
    "vllm_chat_n2.json": Usage(420, 32, 416, 2),
    "vllm_chat_tools.json": Usage(15, 4, None, 1),
    "vllm_completion_prompt_list_n2.json": Usage(5, 16, 0, 4),
    "vllm_generate.json": Usage(3, 4, None, 1),
    "vllm_messages.json": Usage(15, 8, 0, 1),
    "vllm_responses.json": Usage(11, 8, 0, 1),
    "vllm_chat_usage.sse": Usage(420, 16, 416, 1),
    "vllm_chat_continuous.sse": Usage(420, 16, 416, 1),
    "vllm_chat_no_usage.sse": None,
    "vllm_engine_killed.sse": None,
    "sglang_chat_warm.json": Usage(1865, 8, 1856, 1),
    "sglang_completion_ids.json": Usage(3, 2, 0, 1),
    "sglang_completion_prompt_list_n2.json": Usage(4, 8, 0, 4),
    "sglang_generate.json": Usage(3, 2, 0, 1),
    "sglang_chat_usage.sse": Usage(1865, 8, 1856, 1),
    "llamacpp_chat_warm.json": Usage(1865, 8, 1864, 1),
    "llamacpp_completion.json": Usage(3, 4, 2),  # of a cache of two and one computed
    "llamacpp_completion_prompt_list.json": None,  # it counts one prompt of two
    "llamacpp_chat_usage.sse": Usage(1865, 8, 1864, 1),
    "llamacpp_chat_no_usage.sse": Usage(1865, 8, 1864, 1),  # its timings tell it
    "dynamo_mocker_chat.json": Usage(1948, 16, 1920, 1),
    "dynamo_mocker_chat_usage.sse": Usage(1948, 16, 1920, 1),
}


def test_every_answer_at_hand_has_its_numbers_here() -> None:
    assert {path.name for path in FIXTURES.iterdir()} == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_answers_of_real_engines(name: str) -> None:
    body = (FIXTURES / name).read_bytes()
    for size in (1, 7, 100, 10**9):
        reader = _read(body, SSE if name.endswith(".sse") else JSON, size)
        assert reader.usage == ANSWERS[name], size
        assert reader.complete is (name != "vllm_engine_killed.sse"), size
        assert reader.first_token, size
        assert (reader.why, reader.unreadable, reader.oversized) == ("", 0, 0), size


@pytest.mark.parametrize(
    ("name", "nth"),
    [("vllm_chat_usage.sse", 2), ("sglang_chat_usage.sse", 2), ("dynamo_mocker_chat_usage.sse", 1)],
)
def test_the_first_token_is_noticed_with_its_event(name: str, nth: int) -> None:
    """vLLM and SGLang send an event with the role first; the mocker does not."""
    reader, seen = BodyUsage(SSE), []
    for event in (FIXTURES / name).read_bytes().split(b"\n\n"):
        reader.feed(event + b"\n\n")
        seen.append(reader.first_token)
    assert seen.index(True) + 1 == nth


def test_an_answer_left_in_the_middle_tells_what_was_told_by_then() -> None:
    events = (FIXTURES / "vllm_chat_continuous.sse").read_bytes().split(b"\n\n")
    reader = BodyUsage(SSE)
    reader.feed(b"\n\n".join(events[:6]) + b"\n\n" + events[6][:200])
    assert reader.usage == Usage(420, 5)
    assert not reader.complete


# ---- streams of every API


def test_usage_on_every_chunk_is_cumulative_and_the_last_counts() -> None:
    chunks = [_chunk(**_counts(9, n)) for n in range(1, 4)]
    assert _read(_sse(*chunks)).usage == Usage(9, 3)


def test_usage_null_in_earlier_chunks_changes_nothing() -> None:
    body = _sse(_chunk(usage=None), _chunk(usage=None, finish="stop"), _last(9, 2, 4))
    assert _read(body).usage == Usage(9, 2, 4, 1)


def test_done_within_generated_text_ends_nothing() -> None:
    body = _sse(_chunk("data: [DONE]\n\n"), _chunk("[DONE]"), done=False)
    assert not _read(body).complete
    reader = _read(body + _sse(_last(9, 2)))
    assert (reader.usage, reader.complete) == (Usage(9, 2), True)


def test_usage_within_generated_text_is_text() -> None:
    text = json.dumps(_last(1, 1)) + "\n\ndata: " + json.dumps(_last(1, 1)) + "\n\n"
    assert _read(_sse(_chunk(text))).usage is None
    assert _read(json.dumps({"choices": [{"text": text}]}).encode(), JSON).usage is None


def test_a_last_event_without_its_empty_line_counts_when_it_is_whole() -> None:
    body = _sse(_chunk(), _last(9, 2), done=False)
    assert _read(body[:-2]).usage == Usage(9, 2)
    assert _read(body[:-1]).usage == Usage(9, 2)
    assert _read(body[:-3]).usage is None
    assert _read(body[:-3]).unreadable == 1


def test_with_several_choices_only_the_usage_of_the_request_counts() -> None:
    """With continuous usage vLLM tells in each chunk what its choice cost, and all of it at the end."""
    chunks = [_chunk(index=i, finish=f, **_counts(9, n)) for i, n, f in [(0, 1, None), (1, 1, "stop")]]
    assert _read(_sse(*chunks)).usage is None
    assert _read(_sse(*chunks, _chunk(finish="stop"), _last(9, 3))).usage == Usage(9, 3, None, 2)


def test_a_second_choice_in_a_chunk_without_usage_makes_a_chunks_usage_doubtful() -> None:
    assert _read(_sse(_chunk(), _chunk(index=1), _chunk(finish="stop", **_counts(9, 2)))).usage is None
    assert _read(_sse(_chunk(), _chunk(finish="stop", **_counts(9, 2)))).usage == Usage(9, 2, None, 1)


def test_more_choices_than_are_told_apart_make_it_unknown() -> None:
    chunks = [_chunk(index=i, **_counts(9, 1)) for i in range(400)]
    assert _read(_sse(*chunks)).usage is None
    assert _read(_sse(*chunks, _last(9, 400))).usage == Usage(9, 400)


def _anthropic(start: dict[str, Any], delta: dict[str, Any] | None) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": start}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_stop", "index": 0},
    ]
    if delta is not None:
        events += [
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta},
            {"type": "message_stop"},
        ]
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


ANTHROPIC: list[tuple[str, dict[str, Any], dict[str, Any] | None, Usage | None]] = [
    (
        "the prompt first, the output last",
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 400,
            "cache_creation_input_tokens": 16,
            "output_tokens": 1,
        },
        {"output_tokens": 8},
        Usage(420, 8, 400, 1),
    ),
    (
        "vLLM: the cache is known at the end only, and its part leaves input_tokens",
        {"input_tokens": 420, "output_tokens": 0},
        {
            "input_tokens": 4,
            "cache_read_input_tokens": 416,
            "cache_creation_input_tokens": 0,
            "output_tokens": 8,
        },
        Usage(420, 8, 416, 1),
    ),
    (
        "SGLang: nothing known at first, written as 0",
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 15, "output_tokens": 8},
        Usage(15, 8, None, 1),
    ),
    (
        "nothing known at all, written as 0",
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 0, "output_tokens": 0},
        None,
    ),
    (
        "an end that forgets the cache does not correct the prompt",
        {"input_tokens": 4, "cache_read_input_tokens": 416, "output_tokens": 1},
        {"input_tokens": 4, "output_tokens": 8},
        Usage(420, 8, 416, 1),
    ),
    (
        "left early: the output at the start is a guess",
        {"input_tokens": 15, "output_tokens": 1},
        None,
        Usage(15),
    ),
]


@pytest.mark.parametrize(
    ("start", "delta", "expected"), [a[1:] for a in ANTHROPIC], ids=[a[0] for a in ANTHROPIC]
)
def test_anthropics_events(start: Any, delta: Any, expected: Usage | None) -> None:
    reader = _read(_anthropic(start, delta))
    assert reader.usage == expected
    assert reader.first_token
    assert reader.complete is (delta is not None)


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
def test_responses_events_tell_at_the_end_whether_it_went_well_or_not(end: str) -> None:
    usage = {"input_tokens": 11, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 3}}
    body = _sse(
        {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": f"response.{end}", "response": {"status": end, "usage": usage, "error": None}},
        done=False,
    )
    reader = _read(body)
    assert reader.usage == Usage(11, 8, 3, None if end == "failed" else 1)
    assert reader.complete is (end != "failed")


def test_a_responses_end_larger_than_the_limit_still_tells() -> None:
    response = {"status": "completed", "output": [{"text": "x" * 100_000}], "usage": {"input_tokens": 11}}
    reader = _read(_sse({"type": "response.completed", "response": response}), size=1000)
    assert (reader.usage, reader.oversized, reader.complete) == (Usage(11, None, None, 1), 1, True)


def _answer(out: int, index: int | None = None, finish: Any = None) -> dict[str, Any]:
    meta = {"prompt_tokens": 9, "completion_tokens": out, "cached_tokens": 8, "finish_reason": finish}
    return {"text": "a" * out, "meta_info": meta, **({} if index is None else {"index": index})}


def test_sglangs_own_events_are_cumulative() -> None:
    assert _read(_sse(_answer(1), _answer(2), _answer(3, finish={"type": "stop"}))).usage == Usage(9, 3, 8, 1)


def test_sglangs_answers_to_a_list_add_up_by_their_index() -> None:
    body = _sse(_answer(1, 0), _answer(1, 1), _answer(4, 1, {}), _answer(3, 0, {}))
    assert _read(body).usage == Usage(None, 7, None, 2)


def test_sglangs_growing_text_passes_the_limit_and_still_tells() -> None:
    body = _sse(*(_answer(n) for n in (500, 1500, 2500)))
    reader = _read(body, limit=1024)
    assert (reader.usage, reader.oversized) == (Usage(9, 2500, 8), 2)


def test_tgis_own_last_event_tells() -> None:
    body = _sse(
        {"index": 1, "token": {"id": 5, "text": "a"}, "generated_text": None, "details": None},
        {
            "index": 2,
            "token": {"id": 6, "text": "b"},
            "generated_text": "ab",
            "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 7},
        },
        done=False,
    )
    reader = _read(body)
    assert (reader.usage, reader.complete) == (Usage(7, 2, None, 1), True)


def test_llamacpps_own_last_event_tells_by_its_timings() -> None:
    timings = {"cache_n": 2, "prompt_n": 1, "predicted_n": 4}
    end = {"content": "", "stop": True, "tokens_evaluated": 3, "tokens_cached": 6, "timings": timings}
    reader = _read(_sse({"content": "a", "stop": False}, end, done=False))
    assert (reader.usage, reader.complete) == (Usage(3, 4, 2), True)


def test_llamacpps_usage_of_several_choices_is_of_one_and_left_out() -> None:
    body = _sse(_chunk(), _chunk(index=1), {**_last(2, 4), "timings": {"predicted_n": 4}})
    assert _read(body).usage is None


def test_an_error_in_a_stream_leaves_it_incomplete_with_what_was_told() -> None:
    error = {"error": {"message": "gone", "code": 500}}
    reader = _read(_sse(_chunk(**_counts(9, 1)), error))
    assert (reader.usage, reader.complete) == (Usage(9, 1), False)


def test_odd_fields_are_left_out_and_counted() -> None:
    odd = {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 2, "prompt_tokens_details": {}}}
    assert _read(_sse(_chunk(), odd)).usage == Usage(None, 2, odd=1)
    nothing = {"choices": [], "usage": {"prompt_tokens": "9"}}
    assert _read(_sse(_chunk(), nothing, nothing)).usage == Usage(odd=1)


# ---- what is lost is never taken for told


def test_a_garbled_event_makes_earlier_counts_unknown_until_they_are_told_again() -> None:
    reader = _read(_sse(_chunk(**_counts(9, 1)), GARBLED))
    assert (reader.usage, reader.unreadable) == (None, 1)
    assert _read(_sse(_chunk(**_counts(9, 1)), GARBLED, _last(9, 3))).usage == Usage(9, 3)


GARBLED = '{"choices": [], "usage": {"prompt_tokens": 9, "completion'

LOST: list[tuple[str, list[Any], Usage | None]] = [
    ("a usage of the request", [_chunk(), _last(9, 2), GARBLED], None),
    ("a chunk's, told again by a choice that may not be alone", [GARBLED, _chunk(**_counts(9, 2))], None),
    ("how many choices had finished", [_chunk(finish="stop"), GARBLED, _last(9, 2)], Usage(9, 2)),
    ("llama.cpp's timings", [_chunk(timings={"predicted_n": 4}), GARBLED], None),
    ("SGLang's answer", [{"meta_info": {"prompt_tokens": 9}}, GARBLED], None),
    (
        "SGLang's answers, of which one more may be unheard of",
        [GARBLED, *({"index": i, "meta_info": {"completion_tokens": 2}} for i in (0, 1))],
        None,
    ),
    (
        "Anthropic's output, but not its prompt",
        [
            {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
            {"type": "message_delta", "usage": {"output_tokens": 2}},
            GARBLED,
        ],
        Usage(9),
    ),
]


@pytest.mark.parametrize(("events", "expected"), [case[1:] for case in LOST], ids=[case[0] for case in LOST])
def test_what_a_lost_event_may_have_corrected_is_unknown(events: list[Any], expected: Usage | None) -> None:
    assert _read(_sse(*events)).usage == expected


def test_text_that_is_no_json_and_tells_nothing_is_counted_and_no_more() -> None:
    reader = _read(_sse(_chunk(**_counts(9, 1)), "hello"))
    assert (reader.usage, reader.unreadable) == (Usage(9, 1), 1)


def test_a_chunk_too_large_to_keep_makes_the_usage_of_others_unknown() -> None:
    large = _chunk("x" * 3000, **_counts(9, 2))
    reader = _read(_sse(_chunk(**_counts(9, 1)), large), limit=1024)
    assert (reader.usage, reader.oversized) == (None, 1)
    assert _read(_sse(large, _last(9, 2)), limit=1024).usage == Usage(9, 2)


# ---- JSON


def _large(**more: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": 'x"{' * 50_000}}], **more}).encode()


@pytest.mark.parametrize("size", [999, 65536, 10**9])
def test_a_json_body_larger_than_the_limit_is_scanned_for_its_usage(size: int) -> None:
    reader = _read(_large(**_counts(9, 2, 4)), JSON, size)
    assert (reader.usage, reader.oversized, reader.complete) == (Usage(9, 2, 4), 1, True)


def test_a_large_body_of_llamacpp_with_two_answers_gives_nothing_either() -> None:
    body = json.dumps({"choices": [{"text": "x" * 70_000}, {}], **_counts(9, 2), "timings": {}}).encode()
    assert _read(body, JSON).usage is None


@pytest.mark.parametrize(
    ("body", "why", "unreadable"),
    [
        (b'{"usage": {"prompt_tokens": 5}', bodies.GARBLED, 1),
        (b"<html>", bodies.GARBLED, 1),
        (b"7", bodies.GARBLED, 1),
        (b"", "", 0),
        (b"  ", "", 0),
        (_large(**_counts(9, 2))[:-1], bodies.TOO_LARGE, 0),
        (b"[" + _large(**_counts(9, 2)) + b"]", bodies.TOO_LARGE, 0),
    ],
)
def test_json_that_is_none_or_not_whole_gives_nothing(body: bytes, why: str, unreadable: int) -> None:
    reader = _read(body, JSON)
    assert (reader.usage, reader.why, reader.unreadable) == (None, why, unreadable)
    assert not reader.complete
    assert not reader.first_token


def test_an_error_with_status_200_gives_nothing_and_is_not_complete() -> None:
    reader = _read(b'{"error": {"message": "no"}, "usage": {"prompt_tokens": 5}}', JSON)
    assert (reader.usage, reader.complete) == (None, False)


def test_json_is_not_read_before_its_end() -> None:
    reader = BodyUsage(JSON)
    reader.feed(b'{"usage": {"prompt_tokens": 5}}')
    assert reader.usage is None
    reader.feed(b"\n", end=True)
    assert reader.usage == Usage(5)


def test_nothing_counts_after_the_end() -> None:
    reader = BodyUsage(SSE)
    reader.feed(_sse(_last(9, 2)), end=True)
    reader.feed(_sse(_last(1, 1)), end=True)
    assert reader.usage == Usage(9, 2)


# ---- what is not read at all


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_status_gives_nothing(status: int) -> None:
    reader = _read(json.dumps(_last(9, 2)).encode(), JSON, status=status)
    assert (reader.usage, reader.why, reader.held) == (None, bodies.ERROR_STATUS, 0)


def test_an_unknown_status_is_read() -> None:
    assert _read(json.dumps(_last(9, 2)).encode(), JSON, status=None).usage == Usage(9, 2)


@pytest.mark.parametrize("kind", ["", "text/html", "application/x-ndjson", "audio/mpeg"])
def test_other_types_give_nothing(kind: str) -> None:
    reader = _read(json.dumps(_last(9, 2)).encode(), kind)
    assert (reader.usage, reader.why, reader.first_token) == (None, bodies.OTHER_TYPE, False)


def test_a_type_of_json_by_its_suffix_is_json() -> None:
    assert _read(json.dumps(_last(9, 2)).encode(), "Application/Problem+JSON; x=y").usage == Usage(9, 2)


def test_a_limit_too_small_for_a_usage_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is 100 bytes; at least 1024"):
        BodyUsage(SSE, limit=100)


# ---- encodings


def _raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP, identity": gzip.compress,
    "deflate": zlib.compress,
    " deflate ": _raw_deflate,
    "br": brotli.compress,
    "zstd": zstandard.compress,
    "br, gzip": lambda body: gzip.compress(brotli.compress(body)),
    "identity": bytes,
    "": bytes,
}


@pytest.mark.parametrize("encoding", sorted(PACKED))
def test_every_encoding_is_undone(encoding: str) -> None:
    packed = PACKED[encoding]((FIXTURES / "vllm_chat_usage.sse").read_bytes())
    for size in (1, 100, 10**9):
        reader = _read(packed, SSE, size, content_encoding=encoding)
        assert (reader.usage, reader.why) == (Usage(420, 16, 416, 1), ""), size


def test_a_packed_stream_shows_its_first_token_at_once() -> None:
    packer, reader = zlib.compressobj(wbits=31), BodyUsage(SSE, "gzip")
    reader.feed(packer.compress(_sse(_chunk("a"), done=False)) + packer.flush(zlib.Z_SYNC_FLUSH))
    assert reader.first_token


def test_nothing_stays_in_the_decoder_when_its_last_block_is_full() -> None:
    """Runs of one byte are single marks of up to 258 bytes, which zlib holds back where its output ends."""
    for size in range(2 * 32768 - 20, 2 * 32768 + 280, 7):
        unpacking = Unpacking("deflate", 1024)
        assert sum(map(len, unpacking.feed(_raw_deflate(b"x" * size)))) == size


def test_gzip_in_several_members_is_one_body() -> None:
    body = _sse(_chunk(), _last(9, 2))
    packed = gzip.compress(body[:40]) + gzip.compress(body[40:])
    for size in (1, 50, 10**9):
        assert _read(packed, SSE, size, content_encoding="gzip").usage == Usage(9, 2)


@pytest.mark.parametrize(
    ("body", "encoding", "why"),
    [
        (b"no gzip at all", "gzip", bodies.ENCODING),
        (b"x", "gzip", bodies.ENCODING),
        (b"no brotli", "br", bodies.ENCODING),
        (b"anything", "compress", bodies.ENCODING),
        (gzip.compress(b"x") * 20, "gzip", bodies.ENCODING),
        (zlib.compress(b"x") * 2, "deflate", bodies.ENCODING),
        (bytes(70_000), "zstd", bodies.TOO_LARGE),
    ],
)
def test_what_cannot_be_undone_within_bounds_gives_nothing(body: bytes, encoding: str, why: str) -> None:
    reader = _read(body, SSE, 1000, content_encoding=encoding)
    assert (reader.usage, reader.why) == (None, why)


def test_what_expands_beyond_bounds_gives_nothing() -> None:
    for encoding, body in (
        ("gzip", gzip.compress(bytes(70 * 2**20), 1)),
        ("br", brotli.compress(bytes(2 * 2**20), quality=4)),
    ):
        reader = _read(body, SSE, 1000, content_encoding=encoding)
        assert (reader.usage, reader.why) == (None, bodies.TOO_LARGE), encoding


def test_what_was_told_before_the_encoding_broke_is_unknown() -> None:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(_sse(_chunk(**_counts(9, 1)), done=False)) + packer.flush(zlib.Z_SYNC_FLUSH)
    reader = BodyUsage(SSE, "gzip")
    reader.feed(packed)
    assert reader.usage == Usage(9, 1)
    reader.feed(b"\xff" * 20)
    assert (reader.usage, reader.why) == (None, bodies.ENCODING)


def test_gzip_cut_short_gives_json_nothing() -> None:
    packed = gzip.compress(json.dumps(_last(9, 2)).encode())
    assert _read(packed[:-12], JSON, content_encoding="gzip").usage is None


@pytest.mark.parametrize("size", [64 * 1024, 10**9])
def test_a_body_that_expands_without_measure_is_given_up(size: int) -> None:
    """120 MiB out of half a megabyte, in pieces or at once: 4 MiB and 16 times what came are read of it."""
    packed = 120 * gzip.compress(bytes(2**20), 1)
    unpacking, given_out = Unpacking("gzip", bodies.DEFAULT_LIMIT), 0

    pieces = [packed[at : at + size] for at in range(0, len(packed), size)]

    def unpack() -> None:
        nonlocal given_out
        for each in pieces:
            for part in unpacking.feed(each):
                given_out += len(part)

    with pytest.raises(TooLarge):
        unpack()
    assert given_out <= 4 * 2**20 + 16 * len(packed)
    reader = _read(packed, JSON, size, content_encoding="gzip")
    assert (reader.usage, reader.why) == (None, bodies.TOO_LARGE)


def test_a_long_packed_stream_is_read_to_its_end() -> None:
    """5 MB of events of random text, more than is read whatever came: no more than 16 times what came."""
    draw = random.Random(1)
    events = [json.dumps(_chunk(draw.randbytes(1000).hex())) for _ in range(2500)]
    packed = gzip.compress(_sse(*events, _last(9, 2)), 1)
    assert _read(packed, SSE, 64 * 1024, content_encoding="gzip").usage == Usage(9, 2)


def test_no_piece_gives_more_than_8_mib_however_large_it_is() -> None:
    """12 MiB out of a body that came whole, and 1 MB of it random: less than 16 times what came."""
    packed = gzip.compress(bytes(12 * 2**20) + random.Random(1).randbytes(10**6), 1)
    assert _read(packed, JSON, content_encoding="gzip").why == bodies.TOO_LARGE


def test_what_comes_after_the_streams_last_word_is_none_of_it() -> None:
    truth = _sse(_chunk("a", finish="stop"), _last(100, 32, 16))
    for after in (_sse(_last(7, 7, 7)), _sse({"error": {"message": "late"}}), b'data: {"usage":{"x\n\n'):
        reader = _read(truth + after)
        assert (reader.usage, reader.complete) == (Usage(100, 32, 16, 1), True)


def test_what_comes_after_message_stop_is_none_of_it() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 100, "output_tokens": 1}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 32}}
    late = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}}
    reader = _read(_sse(start, delta, {"type": "message_stop"}, late, done=False))
    assert (reader.usage, reader.complete) == (Usage(100, 32, None, 1), True)
