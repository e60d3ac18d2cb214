"""Streams asked for their usage: the option is put in, and every other byte stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import dialects, include_usage
from extproc.core.dialects import Limits
from extproc.core.exchange import Exchange
from extproc.core.reading import with_spots
from extproc.core.steering import Rules
from tests.examples import LETTERS
from tests.unit.messages import answer, chat, mutation, request_body, request_headers
from tests.unit.test_exchange import steering

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ADDED = b'"stream_options":{"include_usage":true},'


def added(body: bytes, path: str = CHAT) -> bytes | None:
    return include_usage.added(dialects.read(path, body, Limits()), body)


def added_as_told(body: bytes) -> bytes | None:
    """By the places of the body's members, as the reader of large bodies tells them."""
    prompt = dialects.read(CHAT, body, Limits())
    with_spots((prompt, ""), body)
    return include_usage.added(prompt, body)


def test_the_option_comes_first_and_the_rest_stays_as_it_was_written() -> None:
    body = (
        b' {"stream" :true,"x": 1.50,"m\\u0061x":1e3, "messages":[{"role":"user","content":"\\u00fc {\\""}]} '
    )
    assert added(body) == b" {" + ADDED + body[2:]
    assert (
        added(b'{"stream":true,"prompt":"hi"}', COMPLETIONS) == b"{" + ADDED + b'"stream":true,"prompt":"hi"}'
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"stream_options" : null', b'"stream_options" : {"include_usage":true}'),
        (b'"stream_options":{}', b'"stream_options":{"include_usage":true}'),
        (b'"stream_options": {\n}', b'"stream_options": {"include_usage":true\n}'),
        (
            b'"stream_options":{ "continuous_usage_stats":false}',
            b'"stream_options":{"include_usage":true, "continuous_usage_stats":false}',
        ),
    ],
)
def test_an_option_without_it_is_filled_in(before: bytes, after: bytes) -> None:
    frame = b'{"stream":true,%s,"messages":[{"role":"user","content":"hi"}]}'
    assert added(frame % before) == frame % after
    assert added_as_told(frame % before) == frame % after


@pytest.mark.parametrize(
    "options",
    [
        b'{"include_usage":true}',
        b'{"include_usage":false}',
        b'{"include_usage":null}',
        b'{"include_usage":"yes"}',
        b"[]",
        b'"x"',
        b"7",
    ],
)
def test_what_the_client_said_itself_stays(options: bytes) -> None:
    frame = b'{"stream":true,"stream_options":%s,"messages":[{"role":"user","content":"hi"}]}'
    assert added(frame % options) is None
    assert added_as_told(frame % options) is None


def test_only_streams_of_the_two_apis_that_have_it_are_asked() -> None:
    for path, body in (
        (CHAT, chat()),
        (CHAT, chat(stream=False)),
        (CHAT, chat(stream="true")),
        ("/v1/responses", {"model": "m", "input": "hi", "stream": True}),
        ("/v1/messages", {**chat(), "max_tokens": 5, "stream": True}),
        ("/v1/embeddings", {"model": "m", "input": "hi", "stream": True}),
    ):
        assert added(json.dumps(body).encode(), path) is None


def test_the_same_name_deeper_or_within_a_text_is_left_alone() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"stream_options": {}}}}
    text = 'say "stream_options": {} and "stream_options":null'
    body = json.dumps({"stream": True, "stream_options": {}, **chat(text), "tools": [tool]}).encode()
    made = added(body)
    assert made is not None
    wanted = json.loads(body)
    wanted["stream_options"] = {"include_usage": True}
    assert json.loads(made) == wanted
    assert len(made) == len(body) + len(b'"include_usage":true')


def test_a_name_that_is_written_in_escapes_is_found() -> None:
    body = b'{"stream":true,"stream\\u005foptions":{},"messages":[{"role":"user","content":"hi"}]}'
    assert added(body) == added_as_told(body) == body.replace(b":{}", b':{"include_usage":true}')


def test_options_are_found_among_any_number_of_the_same_name_deeper() -> None:
    deeper = b'"user":[' + b",".join([b'{"stream_options":{}}'] * 9) + b"]"
    body = (
        b'{"stream":true,"stream_options":null,' + deeper + b',"messages":[{"role":"user","content":"hi"}]}'
    )
    assert added(body) == added_as_told(body) == body.replace(b"null", b'{"include_usage":true}')


def test_half_of_a_surrogate_pair_is_no_hindrance_but_in_the_options() -> None:
    body = b'{"stream":true,"messages":[{"role":"user","content":"\\ud800"}]}'
    assert added(body) == added_as_told(body) == b"{" + ADDED + body[1:]
    assert added(body.replace(b'"stream":', b'"stream_options":{"x":"\\ud800"},"stream":')) is None


def test_options_of_more_than_sixteen_kibibytes_are_left_alone() -> None:
    body = json.dumps({"stream": True, **chat(), "stream_options": {"x": "y" * 20_000}}).encode()
    assert added(body) is None
    assert added_as_told(body) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(LETTERS, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["stream_options", "include_usage", "a"]) | st.text(LETTERS, max_size=5),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["stream_options", "user", "tools", "x"]), VALUES), st.booleans())
def test_what_is_made_means_the_same_plus_the_option(fields: dict[str, Any], spaced: bool) -> None:
    separators = (" , ", " : ") if spaced else (",", ":")
    body = json.dumps({**fields, **chat(stream=True)}, separators=separators).encode()
    prompt = dialects.read(CHAT, json.dumps(chat(stream=True)).encode(), Limits())
    made = include_usage.added(prompt, body)
    with_spots((prompt, ""), body)
    assert include_usage.added(prompt, body) == made
    if made is None:
        return
    options = fields.get("stream_options") or {}
    wanted = {**json.loads(body), "stream_options": {**options, "include_usage": True}}
    assert json.loads(made) == wanted
    assert "include_usage" not in options


def test_the_answer_carries_the_new_body_and_its_length_beside_the_decision() -> None:
    exchange = Exchange(steering(rules=Rules(include_usage=True)))
    exchange.receive(request_headers(), 1.0)
    body = json.dumps(chat("word " * 5000, stream=True)).encode()
    reply = answer(exchange.receive(request_body(body), 1.0)[0])
    new = reply.request_body.response.body_mutation.body
    assert new == b"{" + ADDED + body[1:]
    told = {option.header.key: option.header.raw_value for option in mutation(reply).set_headers}
    assert told["content-length"] == str(len(new)).encode()
    assert told["x-gateway-destination-endpoint"]


@pytest.mark.parametrize("rules", [Rules(), Rules(include_usage=True)])
@pytest.mark.parametrize("encoding", ["gzip", ""])
def test_compressed_bodies_and_those_without_the_setting_stay(rules: Rules, encoding: str) -> None:
    import gzip

    exchange = Exchange(steering(rules=rules))
    exchange.receive(request_headers(content_encoding=encoding) if encoding else request_headers(), 1.0)
    body = json.dumps(chat(stream=True)).encode()
    reply = answer(exchange.receive(request_body(gzip.compress(body) if encoding else body), 1.0)[0])
    assert exchange.outcome == "steered"
    changed = reply.request_body.response.HasField("body_mutation")
    assert changed == (rules.include_usage and not encoding)
