"""Messages that are known are not parsed again, and what is read is the same as if all were parsed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.core import dialects, known_messages
from extproc.core.dialects import Limits
from extproc.core.dialects.content import ROLES
from extproc.core.known_messages import KnownMessages
from extproc.core.prompt import Prompt
from extproc.errors import Unreadable

PATH = "/v1/chat/completions"
LIMITS = Limits()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats of any length are looked at, in stretches of 100 bytes and more."""
    monkeypatch.setattr(dialects, "_LONG", 0)
    monkeypatch.setattr(known_messages, "LEAST", 100)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownMessages:
    """Nothing is known yet."""
    made = KnownMessages(ROLES)
    monkeypatch.setattr(dialects, "_KNOWN", made)
    return made


def said(number: int, role: str = "user") -> dict[str, Any]:
    """A message of 100 bytes of text and more."""
    return {"role": role, "content": f"{number}: " + "word " * 20}


def chat(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **more}).encode()


def read(body: bytes, limits: Limits = LIMITS) -> Prompt | str:
    """What is read, or why nothing is."""
    try:
        return dialects.read(PATH, body, limits)
    except Unreadable as error:
        return error.reason


def plainly(body: bytes, limits: Limits = LIMITS) -> Prompt | str:
    """The same where nothing is ever known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialects, "_LONG", 2**40)
        return read(body, limits)


def taught(*bodies: bytes) -> None:
    for body in bodies * 2:
        read(body)


def skipped(known: KnownMessages, body: bytes) -> int:
    """How many messages of a body are not parsed."""
    found = known.find(body)
    return sum(stretch.count for stretch in found.stretches) if found is not None else 0


def test_what_comes_for_the_third_time_is_not_parsed(known: KnownMessages) -> None:
    body = chat(said(1, "system"), said(2), said(3, "assistant"))
    counts = []
    for _ in range(3):
        counts.append(skipped(KnownMessages(ROLES), body) if not counts else skipped_now(known, body))
        assert read(body) == plainly(body)
    assert counts == [0, 0, 3]


def skipped_now(known: KnownMessages, body: bytes) -> int:
    """As `skipped`, without a note that the body came."""
    noted = known._noted.copy()
    count = skipped(known, body)
    known._noted.clear()
    known._noted.update(noted)
    return count


def test_a_conversation_that_goes_on_is_known_as_far_as_it_came(known: KnownMessages) -> None:
    taught(chat(said(1), said(2)))
    longer = chat(said(1), said(2), said(3), said(4), temperature=0.5)
    assert skipped(known, longer) == 2
    assert read(longer) == plainly(longer)


def test_others_share_the_system_s_prompt_alone(known: KnownMessages) -> None:
    taught(chat(said(1, "system"), said(2)))
    other = chat(said(1, "system"), said(7))
    assert skipped(known, other) == 1
    assert read(other) == plainly(other)


def test_short_messages_are_known_together(known: KnownMessages) -> None:
    short = [{"role": "user", "content": f"number {number}"} for number in range(9)]
    taught(chat(*short))
    assert 3 <= skipped(known, chat(*short)) <= 9
    assert read(chat(*short)) == plainly(chat(*short))


def test_another_model_has_its_own_chain(known: KnownMessages) -> None:
    taught(chat(said(1), said(2)))
    other = json.dumps({"model": "other", "messages": [said(1), said(2), said(3)]}).encode()
    for _ in range(3):
        assert read(other) == plainly(other)
    assert read(other) != plainly(chat(said(1), said(2), said(3)))
    assert known.size == 5  # two messages of one hash in two chains, and the third in one


def test_a_made_up_model_more_than_are_kept_is_read_all_the_same(
    known: KnownMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_messages, "_CHAINS", 2)
    taught(chat(said(1)))
    for name in ("b", "c", "d", "c"):
        body = json.dumps({"model": name, "messages": [said(1)]}).encode()
        assert read(body) == plainly(body)
    assert known.size == 2


def test_an_alias_and_its_model_have_one_chain(known: KnownMessages) -> None:
    limits = Limits(aliases={"alias": "m"})
    taught(chat(said(1), said(2)))
    body = json.dumps({"model": "alias", "messages": [said(1), said(2)]}).encode()
    assert skipped(known, body) == 2
    assert read(body, limits) == plainly(body, limits)


def test_messages_behind_tools_are_known_too(known: KnownMessages) -> None:
    def agent(*messages: Any, tool: str = "a") -> bytes:
        tools = [{"type": "function", "function": {"name": tool, "description": "what it does " * 200}}]
        return chat(*messages, tools=tools, n=2, reasoning_effort="low")

    taught(agent(said(1), said(2)))
    for body in (agent(said(1), said(2), said(3)), agent(said(1), said(2), tool="b"), chat(said(1), said(2))):
        assert skipped_now(known, body) == 2
        assert [read(body) for _ in range(3)] == [plainly(body)] * 3
    assert known.size == 7  # two messages in three chains, and a third in one


PLAIN = chat(said(1), said(2))
BEHIND = PLAIN.index(b'{"role"') + len(json.dumps([said(1), said(2)])) - 2


@pytest.mark.parametrize(
    "body",
    [
        chat(said(1), said(2), {"role": "user"}),
        chat(said(1), said(2), {"role": 5, "content": "a"}),
        chat(said(1), said(2), "no message"),
        chat(said(1), said(2), {"role": "tool", "content": "a", "tool_call_id": "b"}, said(4)),
        chat(said(1), said(2), {"role": "user", "content": [{"type": "text", "text": "я" * 300}]}),
        chat(
            said(1), said(2), {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}
        ),
        chat(said(1), said(2), {"role": "user", "content": "half \ud800"}),
        chat(said(1), said(2), {"role": "user", "content": ""}),
        chat(said(1), said(2), tools=[{"type": "function"}]),
        chat(said(1), said(2), n=3, max_completion_tokens=5),
        chat(said(1), said(2), cache_salt="salt"),
        chat(said(1), said(2), messages_of="x") + b" ",
        chat(said(1), said(2))[:-1] + b', "messages": [{"role": "user", "content": "last"}]}',
        chat(said(1), said(2))[:-1] + b', "messages": []}',
        chat(said(1), said(2))[:-1] + b', "messages": 5}',
        b'{"metadata": ' + PLAIN + b', "model": "m", "messages": [{"role": "user", "content": "a"}]}',
        b'{"metadata": ' + PLAIN + b', "model": "m", "messages": [{}]}',
        b'{"metadata": ' + PLAIN + b"}",
        b"[" + PLAIN + b"]",
        PLAIN[:BEHIND],
        PLAIN[:BEHIND] + b"5" + PLAIN[BEHIND:],
        PLAIN[:BEHIND] + b".5" + PLAIN[BEHIND:],
        PLAIN[:BEHIND] + b" " + PLAIN[BEHIND:],
        PLAIN[:BEHIND] + b',"' + PLAIN[BEHIND:],
        PLAIN[:BEHIND] + b"\xff" + PLAIN[BEHIND:],
        PLAIN.replace(b'"m"', b"null"),
        PLAIN.replace(b'"m"', b"5"),
        PLAIN.replace(b"1: word", b"1; word"),
    ],
)
def test_what_is_odd_about_a_body_is_read_as_ever(known: KnownMessages, body: bytes) -> None:
    taught(PLAIN)
    assert skipped(known, PLAIN) == 2
    expected = plainly(body)
    assert [read(body) for _ in range(4)] == [expected] * 4
    assert read(PLAIN) == plainly(PLAIN)


def test_known_messages_count_as_parts(known: KnownMessages) -> None:
    body, limits = chat(said(1), said(2), said(3)), Limits(max_parts=2)
    taught(body)
    assert skipped(known, body) == 3
    assert read(body, limits) == plainly(body, limits) == "too_many_parts"


def test_the_conversation_s_root_is_told_where_it_is_asked_for(known: KnownMessages) -> None:
    body, limits = chat(said(1, "system"), said(2), said(3)), Limits(roots=True)
    taught(body)
    assert read(body, limits) == plainly(body, limits)


texts = st.text(max_size=30) | st.sampled_from(
    ["a" * 1023, "b" * 1025, "é" * 700, 'say "no"\n' * 40, "語" * 1500, "long " * 1500, "x\ud800" * 40, ""]
)
plain = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from([*ROLES, "other"]), texts
)
odd = st.sampled_from(
    [{"role": "user", "content": None}, {"role": "user", "content": ["a", "b"], "name": "n"}]
)
styles = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(plain | plain | plain | odd, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 8), plain, st.sampled_from(["m", "n"]), styles), max_size=12),
)
def test_any_order_of_chats_with_common_beginnings_is_read_as_ever(
    monkeypatch: pytest.MonkeyPatch,
    messages: list[Any],
    asked: list[tuple[int, Any, str, dict[str, Any]]],
) -> None:
    monkeypatch.setattr(dialects, "_KNOWN", KnownMessages(ROLES))
    for upto, last, model, style in asked:
        value = {"model": model, "messages": [*messages[:upto], last]}
        body = json.dumps(value, **style).encode("utf-8", "surrogatepass")
        expected = plainly(body)
        assert [read(body) for _ in range(3)] == [expected] * 3


def beginnings(known: KnownMessages, numbers: Iterator[int] | range) -> list[int]:
    return [skipped_now(known, chat(said(number))) for number in numbers]


def test_beyond_its_hashes_those_go_that_were_not_asked_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownMessages(ROLES, most_hashes=3)
    monkeypatch.setattr(dialects, "_KNOWN", known)
    taught(chat(said(1)), chat(said(2)), chat(said(3)))
    read(chat(said(1)))
    taught(chat(said(4)))
    assert beginnings(known, range(1, 5)) == [1, 0, 1, 1]
    assert known.size == 3


def test_beyond_its_heads_the_oldest_go_and_the_oldest_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownMessages(ROLES, most_heads=2)
    monkeypatch.setattr(dialects, "_KNOWN", known)
    for number in range(5):
        taught(chat(said(number)))
    assert beginnings(known, range(5)) == [0, 0, 0, 1, 1]
    for number in (10, 11, 12, 10):  # of which the first is not noted any more when it comes again
        read(chat(said(number)))
    assert beginnings(known, range(10, 13)) == [0, 0, 0]


def test_texts_that_only_begin_alike_are_not_learned_for_ever(known: KnownMessages) -> None:
    learned = 0
    for number in range(20):
        before = known.size
        body = chat({"role": "user", "content": "the same " * 20 + str(number)})
        assert read(body) == plainly(body)
        learned += known.size != before
    assert learned == 2  # as none was found again
    assert known.size == 2


def test_a_body_without_messages_near_its_begin_is_not_looked_at(known: KnownMessages) -> None:
    assert known.find(b'{"model": "m"}') is None
    assert known.find(json.dumps({"metadata": "a" * 2000, "messages": [said(1)]}).encode()) is None
