"""Classes of letters, and which prompts teach tokens per byte."""

import pytest

from extproc.core.script import script_of, script_of_chat
from tests.unit.reading import CHAT, chat, prompt_of, user

IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("plain words", "ascii"),
        ("Die Würde des Menschen ist unantastbar.", "ascii"),
        ("mostly words, then 世界世界", "mixed"),
        ("Съешь же ещё этих мягких французских булок, да выпей чаю.", "two_byte"),
        ("人人生而自由，在尊嚴和權利上一律平等。", "wide"),
        ("सभी मनुष्यों को गौरव और अधिकारों के मामले में", "wide"),
        ("\ud800" * 9, "wide"),
        ("", ""),
        (None, ""),
        (5, ""),
    ],
)
def test_a_text_is_of_a_class_by_its_bytes_a_character(text: object, script: str) -> None:
    assert script_of(text) == script


def test_a_chat_is_of_the_class_of_the_longer_of_its_first_and_last_text() -> None:
    long, short = "人人生而自由" * 9, "go on"
    assert script_of_chat([user(long), user(short)]) == "wide"
    assert script_of_chat([user(short), user(long)]) == "wide"
    assert script_of_chat([user([{"type": "image"}, {"type": "text", "text": long}])]) == "wide"
    assert script_of_chat(long) == "wide"


@pytest.mark.parametrize(
    "said", [None, [], [None], [{}], [{"content": [5]}], [user([{"text": 5}])], {"a": 1}]
)
def test_what_has_no_text_has_no_class(said: object) -> None:
    assert script_of_chat(said) == ""


def test_a_prompt_says_its_class_and_how_many_pictures_are_in_it() -> None:
    plain = prompt_of(CHAT, chat(user("hello")))
    assert (plain.script, plain.media, plain.is_text) == ("ascii", 0, True)
    seen = prompt_of(CHAT, chat(user([IMAGE, {"type": "text", "text": "see"}, IMAGE])))
    assert (seen.script, seen.media, seen.is_text) == ("ascii", 2, False)


@pytest.mark.parametrize(
    ("path", "body", "script", "is_text"),
    [
        ("/v1/completions", {"prompt": "да"}, "two_byte", True),
        ("/v1/completions", {"prompt": [1, 2]}, "", False),
        ("/v1/embeddings", {"input": ["hello", "b"]}, "ascii", True),
        ("/v1/embeddings", {"messages": [user([IMAGE])]}, "", False),
        ("/v1/responses", {"input": "人人"}, "wide", True),
        ("/v1/responses", {"input": [user([{"type": "input_text", "text": "hi"}])]}, "ascii", True),
        ("/v1/messages", {"messages": [user("hi")], "system": "be kind"}, "ascii", True),
        ("/generate", {"text": "hi", "image_data": "x"}, "ascii", False),
        ("/generate", {"inputs": "hi ![](http://a/b.png)"}, "ascii", False),
        ("/generate", {"inputs": "hi"}, "ascii", True),
    ],
)
def test_every_dialect_tells_both(path: str, body: dict[str, object], script: str, is_text: bool) -> None:
    prompt = prompt_of(path, {"model": "m", **body})
    assert (prompt.script, prompt.is_text) == (script, is_text)
