import pytest

from tests.unit.reading import CHAT, chain_of, chat, prompt_of, refused, shared, user

PATH = "/v1/responses"


def body(items: object, **fields: object) -> dict[str, object]:
    return {"model": "m", "input": items, **fields}


def test_a_string_is_a_user_message() -> None:
    prompt = prompt_of(PATH, body("hello", max_output_tokens=8, stream=True))
    assert (prompt.dialect, prompt.kind, prompt.max_output, prompt.stream) == (
        "openai_responses",
        "generate",
        8,
        True,
    )
    assert prompt.chains == prompt_of(CHAT, chat(user("hello"))).chains


def test_instructions_and_items_are_the_messages_of_a_chat() -> None:
    items = [
        user("a"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        user([{"type": "input_text", "text": "c"}]),
    ]
    expected = chat(
        {"role": "system", "content": "be kind"}, user("a"), {"role": "assistant", "content": "b"}, user("c")
    )
    assert chain_of(PATH, body(items, instructions="be kind")) == chain_of(CHAT, expected)


def test_a_function_call_and_its_output_enter_the_chain() -> None:
    def items(arguments: str, output: object) -> dict[str, object]:
        call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": arguments}
        return body([user("go"), call, {"type": "function_call_output", "call_id": "c", "output": output}])

    base = chain_of(PATH, items("{}", "1"))
    assert len(base.hashes) == 3
    assert shared(base, chain_of(PATH, items("{ }", "1"))) == 1
    assert shared(base, chain_of(PATH, items("{}", "2"))) == 2
    assert shared(base, chain_of(PATH, items("{}", [{"type": "input_text", "text": "1"}]))) == 3


def test_pictures_count_4000_bytes() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 9000}
    assert chain_of(PATH, body([user([part])])).ends == [4016]
    assert chain_of(PATH, body([user([{"type": "input_file", "file_id": "f"}])])).ends == [4016]
    shot = {"type": "image_generation_call", "id": "i", "result": "A" * 9000}
    assert chain_of(PATH, body([shot])).ends == [4016]


def test_ids_and_states_of_other_items_are_not_seen() -> None:
    one = {"type": "reasoning", "id": "rs_1", "status": "completed", "summary": [{"text": "t"}]}
    other = {**one, "id": "rs_2", "status": "incomplete"}
    assert chain_of(PATH, body([one])) == chain_of(PATH, body([other]))
    assert chain_of(PATH, body([one])) != chain_of(PATH, body([{**one, "summary": []}]))


@pytest.mark.parametrize(
    "field",
    [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"reasoning": {"effort": "low"}}],
)
def test_history_on_the_server_parts_the_chain_from_its_start(field: dict[str, object]) -> None:
    assert shared(chain_of(PATH, body("hi")), chain_of(PATH, body("hi", **field))) == 0


@pytest.mark.parametrize(
    "items", [None, [], 1, {}, ["text"], [None], [{}], [{"role": 1}], [{"type": "message"}], [user(1)]]
)
def test_input_of_another_shape_is_refused(items: object) -> None:
    assert refused(PATH, body(items)) == "wrong_shape"


def test_an_item_type_that_is_no_word_does_not_raise() -> None:
    assert prompt_of(PATH, body([{"type": ["message"], "role": "user"}]))


def test_too_many_items_are_refused() -> None:
    assert refused(PATH, body([user("a")] * 5), max_parts=4) == "too_many_parts"
