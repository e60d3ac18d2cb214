import pytest

from tests.unit.reading import CHAT, chain_of, chat, prompt_of, refused, shared, user

PATH = "/v1/messages"


def body(*messages: object, **fields: object) -> dict[str, object]:
    return {"model": "m", "messages": list(messages), "max_tokens": 8, **fields}


def test_messages_are_read_like_a_chat_with_the_system_first() -> None:
    prompt = prompt_of(PATH, body(user("hi"), system="be kind", stream=True))
    assert (prompt.dialect, prompt.kind, prompt.max_output, prompt.stream) == (
        "anthropic_messages",
        "generate",
        8,
        True,
    )
    assert prompt.chains == prompt_of(CHAT, chat({"role": "system", "content": "be kind"}, user("hi"))).chains


def test_a_system_of_one_block_is_the_same_as_its_string() -> None:
    blocks = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
    assert chain_of(PATH, body(user("hi"), system=blocks)) == chain_of(
        PATH, body(user("hi"), system="be kind")
    )


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system_is_no_message(system: object) -> None:
    assert chain_of(PATH, body(user("hi"), system=system)) == chain_of(PATH, body(user("hi")))


def test_a_line_that_changes_with_every_request_stays_outside() -> None:
    def system(line: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": line}, {"type": "text", "text": "be kind"}]

    one = chain_of(PATH, body(user("hi"), system=system("x-anthropic-billing-header: cch=1;")))
    assert one == chain_of(PATH, body(user("hi"), system=system("x-anthropic-billing-header: cch=2;")))
    assert one != chain_of(PATH, body(user("hi"), system=system("something else")))


def test_cache_marks_that_move_to_the_newest_turn_change_nothing() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "f", "input_schema": {"type": "object"}}
    use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    odd = {"type": "odd", "value": 1}
    blocks = [{"type": "text", "text": "a"}, use, result, image, odd]
    marked = [{**block, **mark} for block in blocks]
    plain = chain_of(PATH, body(user(blocks), tools=[tool]))
    assert plain == chain_of(PATH, body(user(marked), tools=[{**tool, **mark}]))


def test_tool_use_and_its_result_enter_the_chain() -> None:
    def conversation(value: int, result: object) -> dict[str, object]:
        return body(
            user("go"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": value}}],
            },
            user([{"type": "tool_result", "tool_use_id": "t", "content": result}]),
        )

    base = chain_of(PATH, conversation(1, "42"))
    assert len(base.hashes) == 3
    assert shared(base, chain_of(PATH, conversation(2, "42"))) == 1
    assert shared(base, chain_of(PATH, conversation(1, "43"))) == 2
    assert shared(base, chain_of(PATH, conversation(1, [{"type": "text", "text": "42"}]))) == 3


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": "A" * 9000},
        {"type": "url", "url": "http://a/b.png"},
        {"type": "file", "file_id": "file_1"},
    ],
)
def test_images_and_files_count_4000_bytes(source: dict[str, str]) -> None:
    assert chain_of(PATH, body(user([{"type": "image", "source": source}]))).ends == [4016]
    document = {"type": "document", "source": source, "title": "t"}
    # 16 of the message, 10 of ["t",null], 4000 of the file
    assert chain_of(PATH, body(user([document]))).ends == [4026]


def test_a_picture_in_a_tool_result_counts_as_a_picture() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 9000}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    assert chain_of(PATH, body(user([result]))).ends == [16 + 1 + 4000]


def test_a_document_of_text_counts_its_text() -> None:
    for source in ({"type": "text", "data": "x" * 100}, {"type": "content", "content": "x" * 100}):
        document = {"type": "document", "source": source}
        assert chain_of(PATH, body(user([document]))).ends == [16 + 11 + 100]  # [null,null]


def test_thinking_is_told_apart_by_its_text() -> None:
    def chain(thought: str, signature: str) -> object:
        block = {"type": "thinking", "thinking": thought, "signature": signature}
        return chain_of(PATH, body({"role": "assistant", "content": [block]}))

    assert chain("a", "1") == chain("a", "2")
    assert chain("a", "1") != chain("b", "1")


@pytest.mark.parametrize("system", [1, {}, [1], [{"type": "text"}], True])
def test_a_system_of_another_shape_is_refused(system: object) -> None:
    assert refused(PATH, body(user("a"), system=system)) == "wrong_shape"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image"},
        {"type": "image", "source": None},
        {"type": "document"},
        {"type": "document", "source": "x"},
        {"type": "tool_result", "content": 1},
    ],
)
def test_blocks_of_another_shape_are_refused(block: dict[str, object]) -> None:
    assert refused(PATH, body(user([block]))) == "wrong_shape"
