"""The model's name in answers: the one that the client asked by, every other byte as it came, wherever it is cut."""

import json
import time
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.building import build_steering
from extproc.config import parse
from extproc.core.answer_name import AnswerName
from extproc.core.exchange import Exchange
from extproc.errors import ConfigError
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import Mode, answer, chat, mutation, request_body, request_headers
from tests.unit.test_rename import slow_end, slow_places

NAME = 'as"ked é'
NEW = orjson.dumps(NAME)


def passed(data: bytes, cuts: list[int], *, events: bool) -> bytes:
    """What goes on of an answer that comes in these pieces."""
    naming = AnswerName(NAME, events=events)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return b"".join([naming.feed(data[a:b]) for a, b in pairwise(places)])


def wanted(document: bytes) -> bytes:
    """By the places that a reader of single bytes finds: the first model that is a text."""
    found = []
    spots = slow_places(document, ["model", "response", "message"])
    found += spots["model"]
    for start, end in spots["response"] + spots["message"]:
        if document[start : start + 1] == b"{":
            inner = slow_places(document[start:end], ["model"])["model"]
            found += [(start + first, start + last) for first, last in inner]
    texts = sorted((a, b) for a, b in found if document[a : a + 1] == b'"')
    if not texts:
        return document
    start, end = texts[0]
    assert slow_end(document, start) == end
    return document[:start] + NEW + document[end:]


_LEAVES = st.none() | st.integers() | st.text(st.sampled_from('model":\\{}[], é'), max_size=8)
_INNER = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "a", "message"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    [b'"model"', b'"mod\\u0065l"', b'"response"', b'"message"', b'"models"', b'"\\"model"', b'"id"', b'"x"']
)
_CUTS = st.lists(st.integers(0, 300), max_size=12)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(_KEYS, _INNER), max_size=5))
    space, escaped = draw(st.sampled_from([b"", b" ", b" "])), draw(st.booleans())
    written = [
        key + space + b":" + space + json.dumps(value, ensure_ascii=escaped).encode()
        for key, value in members
    ]
    return b"{" + space + (space + b"," + space).join(written) + space + b"}"


@settings(deadline=None)
@given(documents(), _CUTS)
def test_a_json_body_has_its_first_model_replaced_wherever_it_is_cut(
    document: bytes, cuts: list[int]
) -> None:
    assert passed(document, cuts, events=False) == wanted(document)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["data: ", "data:", "event: ", ": ", "id:", "dat"]), documents()),
        max_size=6,
    ),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n", b"\r"]),
    _CUTS,
)
def test_each_line_of_data_has_its_first_model_replaced_wherever_it_is_cut(
    lines: list[tuple[str, bytes]], ends: bytes, cuts: list[int]
) -> None:
    came = b"".join(head.encode() + document + ends for head, document in lines) + b"data: [DONE]" + ends
    goes = b"".join(
        head.encode() + (wanted(document) if head.startswith("data:") else document) + ends
        for head, document in lines
    )
    assert passed(came, cuts, events=True) == goes + b"data: [DONE]" + ends


@given(st.binary(max_size=60), _CUTS, st.booleans())
@example(b'{"model":"', [3], False)
@example(b"data:data:\n\ndata", [1, 2], True)
@example(b'data: {"model":1}\n', [], True)
def test_what_is_no_json_goes_on_and_nothing_is_raised(data: bytes, cuts: list[int], events: bool) -> None:
    goes = passed(data, cuts, events=events)
    assert goes == data or b'"model":' in data.replace(b" ", b"")


CHUNK = {
    "id": "c-1",
    "object": "chat.completion.chunk",
    "created": 7,
    "model": "engine's",
    "choices": [{"delta": {}}],
}


def test_a_stream_whose_events_begin_alike_is_renamed_in_each() -> None:
    events = [{**CHUNK, "choices": [{"delta": {"content": f'"model":"{n}"'}}]} for n in range(50)]
    events[20]["model"] = "another"
    came = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    goes = b"".join(
        b"data: %s\n\n"
        % json.dumps({**event, "model": 0}).encode().replace(b'"model": 0', b'"model": ' + NEW)
        for event in events
    )
    for size in (1, 7, 100, 226, 10_000):
        assert passed(came, list(range(0, len(came), size)), events=True) == goes, size


def test_a_piece_in_which_nothing_changes_is_the_very_same() -> None:
    naming = AnswerName("m", events=True)
    for piece in (b"data: [DONE]\n\n", b": ping\n\n", b'data: {"type":"ping"}\n\n'):
        assert naming.feed(piece) is piece


def test_other_apis_tell_their_model_one_level_down() -> None:
    created = b'data: {"type":"response.created","response":{"id":"r","model":"x","output":[]}}\n\n'
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","model":"x"}}\n\n'
    )
    for came in (created, start):
        assert passed(came, [], events=True) == came.replace(b'"x"', NEW)


def test_a_document_of_many_brackets_goes_on_as_it_is_in_bounded_time() -> None:
    body = b'{"a":[' + b"{}," * 700_000 + b'{}],"model":"x"}'
    took = []
    for _ in range(3):
        began = time.process_time()
        assert passed(body, list(range(0, len(body), 65_536)), events=False) == body
        took.append(time.process_time() - began)
    assert min(took) < 2.0  # 20,000 looks take some ten milliseconds; all of them were above a second
    text = b'{"a":"' + b"\\u00e9" * 200_000 + b'","model":"x"}'
    assert passed(text, list(range(0, len(text), 65_536)), events=False) == text.replace(b'"x"', NEW)


# -- through the exchange ----------------------------------------------------------------------------------

CONFIGURED = """
pools: [{replicas: ["10.0.0.1:8000"], models: [llama], served_as: {llama: llama-3.3}, answer_model: %s}]
aliases: {gpt-4: llama}
feedback: {source: body}
"""


def begun(
    mode: Mode.BodySendMode, how: str = "asked", **headers: str
) -> tuple[Exchange, pb.ProcessingResponse]:
    """An exchange whose answer begins, and what Envoy is told of its headers."""
    first = pb.ProcessingRequest.FromString(request_headers())
    first.protocol_config.MergeFrom(pb.ProtocolConfiguration(response_body_mode=mode))
    exchange = Exchange(build_steering(parse(CONFIGURED % how, "test"), 0.0))
    exchange.receive(first.SerializeToString(), 0.0)
    exchange.receive(request_body(chat(model="gpt-4")), 0.0)
    told = {":status": "200", "content-type": "application/json", "content-length": "60", **headers}
    message = pb.ProcessingRequest()
    for key, value in told.items():
        message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    return exchange, answer(exchange.receive(message.SerializeToString(), 0.0)[0])


def piece(exchange: Exchange, data: bytes, *, end: bool) -> pb.BodyMutation | None:
    """What goes on in a piece's place; None for itself."""
    message = pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))
    common = answer(exchange.receive(message.SerializeToString(), 0.0)[0]).response_body.response
    return common.body_mutation if common.HasField("body_mutation") else None


@pytest.mark.parametrize("mode", [Mode.STREAMED, Mode.BUFFERED])
def test_the_client_is_told_the_name_that_it_asked_by(mode: Mode.BodySendMode) -> None:
    exchange, reply = begun(mode)
    assert list(mutation(reply).remove_headers) == ["content-length"]
    changed = piece(exchange, b'{"id":"c","model":"llama-', end=False)
    assert changed is not None
    assert changed.body == b'{"id":"c","model":"gpt-4"'
    changed = piece(exchange, b"3", end=False)
    assert changed is not None
    assert changed.clear_body
    changed = piece(exchange, b'.3","n":1}', end=True)
    assert changed is not None
    assert changed.body == b',"n":1}'


def test_in_full_duplex_the_changed_piece_is_sent_back() -> None:
    exchange, _ = begun(Mode.FULL_DUPLEX_STREAMED)
    changed = piece(exchange, b'{"model":"llama-3.3"}', end=True)
    assert changed is not None
    assert changed.streamed_response.body == b'{"model":"gpt-4"}'
    assert changed.streamed_response.end_of_stream


MULTI = [
    # one document over several lines, other fields between; a nested name stays
    b'data: {"id":1,\ndata: "model":"l1",\nid: "model"\ndata: "x":{"model":"l2"}}\n\n',
    b'event: e\ndata: {\ndata:  "choices": [ \ndata: {"model": "l2"}\ndata: ],\ndata:  "model": "l1"\ndata: }\n\n',
    b'data: {"response":{\ndata:"a":{},\ndata:\ndata: "model"\ndata: :\ndata: "l1"}}\n\n',
    b'data: {"model":"l1","a":\ndata: {"model":"l2"}}\n\n',
]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_events_document_may_go_over_several_lines(size: int, end: bytes) -> None:
    stream = b"".join(MULTI * 3).replace(b"\n", end)
    renamed = passed(stream, list(range(0, len(stream), size)), events=True)
    assert renamed == stream.replace(b'"l1"', NEW)


def test_a_name_that_no_quote_ends_in_its_line_ends_with_it() -> None:
    broken, whole = b'data: {"model":"l1\ndata: l2","model":"l2"}\n\n', b'data: {"model":"l1"}\n\n'
    expected = broken.replace(b'"l1', NEW) + whole.replace(b'"l1"', NEW)
    assert passed(broken + whole, [], events=True) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("before", "events"), [(b"", False), (b"data: ", True), (b"event: a\ndata:", True)])
def test_a_byte_order_mark_hides_no_name(size: int, before: bytes, events: bool) -> None:
    mark, document = b"\xef\xbb\xbf", b'{"model":"l1"}\n\n'
    for body in (mark + before + document, before + mark + document):
        assert passed(body, list(range(0, len(body), size)), events=events) == body.replace(b'"l1"', NEW)


@pytest.mark.parametrize(
    ("how", "headers"),
    [
        ("engine", {}),
        ("asked", {"content-encoding": "gzip"}),
        ("asked", {"content-type": "text/plain"}),
        ("asked", {":status": "404"}),
    ],
)
def test_other_answers_stay_as_they_are(how: str, headers: dict[str, Any]) -> None:
    exchange, reply = begun(Mode.STREAMED, how, **headers)
    assert not mutation(reply).remove_headers
    assert piece(exchange, b'{"model":"llama-3.3"}', end=True) is None


def test_it_needs_answers_that_come_by() -> None:
    text = "pools: [{replicas: ['10.0.0.1:8000'], answer_model: asked}]"
    with pytest.raises(ConfigError, match=r"set feedback\.source to body"):
        parse(text, "test")
