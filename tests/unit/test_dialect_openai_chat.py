import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.dialects import Limits, read
from tests.examples import LETTERS
from tests.unit.reading import CHAT, chain_of, chat, check, prompt_of, refused, shared, user

SYSTEM = {"role": "system", "content": "You are a help."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def test_a_chat_is_read_whole() -> None:
    prompt = prompt_of(CHAT, chat(SYSTEM, user("Hello?"), max_tokens=9, n=3, stream=True))
    assert (prompt.dialect, prompt.kind, prompt.model, prompt.adapter) == ("openai_chat", "generate", "m", "")
    assert (prompt.max_output, prompt.n, prompt.stream, prompt.token_ids) == (9, 3, True, False)
    # 16 for each message; "You are a help." has 15 bytes, "Hello?" 6.
    assert prompt.chains[0].ends == [31, 53]
    assert prompt.size == 53


def test_a_chat_longer_by_a_turn_shares_its_whole_earlier_chain() -> None:
    first = [SYSTEM, user("x" * 3000)]
    earlier = chain_of(CHAT, chat(*first, tools=[TOOL]))
    later = chain_of(CHAT, chat(*first, {"role": "assistant", "content": "A"}, user("b"), tools=[TOOL]))
    assert later.hashes[: len(earlier.hashes)] == earlier.hashes
    assert later.ends[: len(earlier.ends)] == earlier.ends
    assert len(later.hashes) == len(earlier.hashes) + 2


def test_two_conversations_share_their_system_prompt_and_no_more() -> None:
    one, other = chain_of(CHAT, chat(SYSTEM, user("a"))), chain_of(CHAT, chat(SYSTEM, user("b")))
    assert shared(one, other) == 1


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_empty_content(content: object) -> None:
    assert chain_of(CHAT, chat(user(content))) == chain_of(CHAT, chat({"role": "user"}))


@pytest.mark.parametrize(
    "content",
    [
        ["hi"],
        [{"type": "text", "text": "hi"}],
        [{"text": "hi"}],
        [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
    ],
)
def test_one_text_is_the_same_as_string_and_as_part(content: object) -> None:
    assert chain_of(CHAT, chat(user(content))) == chain_of(CHAT, chat(user("hi")))


def test_where_a_byte_stands_matters() -> None:
    bodies = [
        chat(user("ab"), user("c")),
        chat(user("a"), user("bc")),
        chat(user("abc")),
        chat(user(["ab", "c"])),
        chat(user(["a", "bc"])),
        chat(user(["abc", ""])),
        chat(user(["", "abc"])),
        chat(user("ab"), {"role": "assistant", "content": "c"}),
        chat({"role": "assistant", "content": "ab"}, user("c")),
        chat({"role": "userab", "content": "c"}),
        chat(user("ab", name="c")),
        chat(user("a", name="bc")),
        chat(user("ab", tool_call_id="c")),
        chat(user("ab", reasoning_content="c")),
    ]
    ends = {chain_of(CHAT, body).hashes[-1] for body in bodies}
    assert len(ends) == len(bodies)


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "odd"]), st.text(LETTERS, max_size=4)), min_size=1
    )
)
def test_a_chat_is_its_messages_in_order(messages: list[tuple[str, str]]) -> None:
    body = chat(*({"role": role, "content": text} for role, text in messages))
    chain = chain_of(CHAT, body)
    assert len(chain.hashes) == len(messages)
    if len(messages) > 1:
        body["messages"].reverse()
        assert (chain_of(CHAT, body) == chain) == (messages == messages[::-1])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": "http://a/b.png"},
        {"image_url": "http://a/b.png"},
        {"type": "image_url", "image_url": None, "uuid": "known"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://a/b.mp4"}},
        {"type": "audio_url", "audio_url": {"url": "http://a/b.mp3"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}},
        {"type": "never_heard_of", "anything": [1, {"a": 2**63}]},
    ],
)
def test_media_count_4000_bytes_in_any_spelling(part: dict[str, object]) -> None:
    chain = chain_of(CHAT, chat(user([{"type": "text", "text": "see"}, part])))
    assert chain.ends == [16 + 3 + 4000]
    assert chain.hashes != chain_of(CHAT, chat(user(["see"]))).hashes


def test_media_differ_by_what_they_show_and_by_kind() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "http://a/1"}},
        {"type": "image_url", "image_url": {"url": "http://a/2"}},
        {"type": "video_url", "video_url": {"url": "http://a/1"}},
        {"type": "image_url", "image_url": {"url": "http://a/1"}, "uuid": "1"},
        {"type": "input_audio", "input_audio": {"data": "http://a/1"}},
        {"type": "text", "text": "http://a/1"},
    ]
    assert len({chain_of(CHAT, chat(user([part]))).hashes[-1] for part in parts}) == len(parts)


def test_an_image_is_the_same_as_url_string_and_object() -> None:
    as_string = chain_of(CHAT, chat(user([{"type": "image_url", "image_url": "http://a"}])))
    as_object = chain_of(CHAT, chat(user([{"type": "image_url", "image_url": {"url": "http://a", "x": 1}}])))
    assert as_string == as_object


def test_a_5_mb_image_counts_like_any_other_and_leaves_one_hash() -> None:
    picture = base64.b64encode(random.Random(1).randbytes(3_750_000)).decode()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture}}
    chain = chain_of(CHAT, chat(SYSTEM, user(["look", part, "what is it?"])))
    # The system message; then "look" (4 bytes) with the image; then the 11 bytes of the question.
    assert chain.ends == [31, 31 + 16 + 4 + 4000, 31 + 16 + 4 + 4000 + 11]


@pytest.mark.parametrize("character", ["😀", "漢", "é", "\\u0000", "\\ud83d\\ude00"])
def test_any_character_may_stand_on_a_chunk_border(character: str) -> None:
    for before in range(1020, 1026):
        text = "x" * before + character + "y" * 2000
        body = '{"model":"m","messages":[{"role":"user","content":"' + text + '"}]}'
        prompt = read(CHAT, body.encode(), Limits())
        check(prompt)
        assert prompt.chains[0].ends[:2] == [16 + 1024, 16 + 2048], before


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [TOOL]},
        {"tools": [{**TOOL, "type": "other"}]},
        {"functions": [TOOL]},
        {"documents": [{"text": "d"}]},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"reasoning_effort": "high"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"add_special_tokens": True},
    ],
)
def test_what_the_template_renders_first_parts_the_chain_from_its_start(change: dict[str, object]) -> None:
    base = chain_of(CHAT, chat(SYSTEM, user("a")))
    changed = chain_of(CHAT, chat(SYSTEM, user("a"), **change))
    assert not set(base.hashes) & set(changed.hashes)


@pytest.mark.parametrize(
    "name", ["tools", "functions", "documents", "chat_template_kwargs", "reasoning_effort"]
)
def test_null_is_as_good_as_absent(name: str) -> None:
    assert chain_of(CHAT, chat(user("a"), **{name: None})) == chain_of(CHAT, chat(user("a")))


def test_tools_leave_a_hash_at_their_end_and_count_their_json() -> None:
    chain = chain_of(CHAT, chat(user("a"), tools=[{"a": 1}, {"b": 2}]))
    assert chain.ends == [14, 14 + 17]  # {"a":1}{"b":2}, then the message


def test_documents_and_tools_in_another_order_are_other_prompts() -> None:
    one = chain_of(CHAT, chat(user("a"), tools=[{"a": 1, "b": 2}]))
    for tools in ([{"b": 2, "a": 1}], [{"a": 1}, {"b": 2}]):
        assert shared(one, chain_of(CHAT, chat(user("a"), tools=tools))) == 0


def test_tool_calls_and_results_enter_the_chain() -> None:
    def conversation(arguments: str, result: str) -> dict[str, object]:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return chat(
            user("go"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
        )

    base = chain_of(CHAT, conversation("{}", "1"))
    assert len(base.hashes) == 3
    assert shared(base, chain_of(CHAT, conversation("{ }", "1"))) == 1
    assert shared(base, chain_of(CHAT, conversation("{}", "2"))) == 2


def test_nulls_an_sdk_echoes_into_a_message_change_nothing() -> None:
    bare = {"role": "assistant", "content": "hi"}
    echoed = {**bare, "refusal": None, "annotations": None, "audio": None, "function_call": None}
    assert chain_of(CHAT, chat(user("a"), {**echoed, "tool_calls": None})) == chain_of(
        CHAT, chat(user("a"), bare)
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5, "max_completion_tokens": -1}, 5),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 5.0}, 5),
        ({"max_tokens": 5.5}, None),
        ({"max_tokens": 1e308}, 2**31),
        ({"max_tokens": -1e308}, None),
        ({"max_tokens": 2**63}, 2**31),
        ({"max_tokens": [5]}, None),
    ],
)
def test_the_newer_output_limit_wins_and_absurd_ones_are_unsaid(
    fields: dict[str, object], expected: int | None
) -> None:
    assert prompt_of(CHAT, chat(user("a"), **fields)).max_output == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": 4}, 4),
        ({"n": None}, 1),
        ({"n": 0}, 1),
        ({"n": -3}, 1),
        ({"n": True}, 1),
        ({"n": "4"}, 1),
        ({"n": 2, "best_of": 5}, 5),
        ({"n": 1e308}, 16_384),
        ({"n": 2**63}, 16_384),
    ],
)
def test_choices_are_at_least_one_and_bounded(fields: dict[str, object], expected: int) -> None:
    assert prompt_of(CHAT, chat(user("a"), **fields)).n == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), (False, False), (None, False), ("true", False)]
)
def test_only_true_streams(value: object, expected: bool) -> None:
    assert prompt_of(CHAT, chat(user("a"), stream=value)).stream is expected


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "text",
        {"role": "user"},
        [None],
        ["text"],
        [{}],
        [{"content": "a"}],
        [{"role": 1, "content": "a"}],
        [{"role": ["user"], "content": "a"}],
        [user(1)],
        [user({"text": "a"})],
        [user([1])],
        [user([None])],
        [user([["a"]])],
        [user([{"type": 1}])],
        [user([{"type": ["text"], "text": "a"}])],
        [user([{"type": "text"}])],
        [user([{"type": "text", "text": None}])],
        [user([{"type": "image_url"}])],
    ],
)
def test_messages_no_engine_takes_are_a_wrong_shape(messages: object) -> None:
    assert refused(CHAT, {"model": "m", "messages": messages}) == "wrong_shape"


def test_salts_and_tools_of_a_wrong_kind_are_a_wrong_shape() -> None:
    for fields in ({"cache_salt": 1}, {"lora_path": {}}, {"tools": "f"}, {"tools": {"a": 1}}):
        assert refused(CHAT, chat(user("a"), **fields)) == "wrong_shape"


def test_an_adapter_named_apart_is_kept() -> None:
    assert prompt_of(CHAT, chat(user("a"), lora_path="sql")).adapter == "sql"


def test_too_many_messages_parts_and_tools_are_refused() -> None:
    messages = [user("a")] * 3
    assert prompt_of(CHAT, chat(*messages), max_parts=3)
    assert refused(CHAT, chat(*messages), max_parts=2) == "too_many_parts"
    assert refused(CHAT, chat(user(["a"] * 3)), max_parts=3) == "too_many_parts"
    assert refused(CHAT, chat(user("a"), tools=[TOOL, TOOL]), max_parts=2) == "too_many_parts"


def test_what_is_read_may_not_nest_too_deep_what_is_ignored_may() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    assert prompt_of(CHAT, chat(user("a"), metadata=deep))
    assert refused(CHAT, chat(user("a"), tools=[deep])) == "too_deep"
    assert refused(CHAT, chat(user("a", tool_calls=deep))) == "too_deep"
    assert refused(CHAT, chat(user("a"), chat_template_kwargs=deep)) == "too_deep"
    assert prompt_of(CHAT, chat(user("a"), tools=[deep]), max_depth=200)
    assert refused(CHAT, chat(user("a"), tools=[deep]), max_depth=199) == "too_deep"


def test_tool_results_inside_tool_results_end_somewhere() -> None:
    opened, closed = b'[{"type":"tool_result","tool_use_id":"1","content":', b"}]"
    for depth, ends in ((4, "read"), (5, "too_deep"), (400, "too_deep")):
        content = opened * depth + b'"a"' + closed * depth
        body = b'{"messages":[{"role":"user","content":' + content + b"}]}"
        if ends == "read":
            check(read(CHAT, body, Limits()))
        else:
            assert refused(CHAT, body, max_depth=900) == ends
