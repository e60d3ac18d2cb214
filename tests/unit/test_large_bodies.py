"""Large bodies: messages taken apart where they lie, and exchanges that go on once somebody has read their body."""

import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.dialects import Limits
from extproc.core.envelope import opened
from extproc.core.exchange import Exchange
from extproc.core.prompt import Chain, Prompt
from extproc.core.reading import NOT_READ, Found, Unread, not_read, read, read_open
from extproc.core.replies import wait_for
from extproc.core.scattered import Pieces
from extproc.core.states import BODY, DECIDED, OVER, STEERED, UNREAD, UNREADABLE
from extproc.core.steering import Rules, Steering
from extproc.io.reading import form
from extproc.io.sessions import ExchangeSession
from extproc.io.transports.h2.grpc import Assembly
from extproc.pb import ext_proc_pb2 as pb
from tests.examples import LETTERS
from tests.unit.h2_world import message as framed
from tests.unit.messages import Mode, answer, chat, request_body, request_headers, set_headers
from tests.unit.test_exchange import DESTINATION, steering

#: 300 bytes and more of text.
LONG = chat("all work and no play " * 20)
RULES = Rules(beside=200)


def pieces(data: bytes, cuts: list[int], freed: Callable[[], None] = lambda: None) -> Pieces:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return Pieces([data[a:b] for a, b in pairwise(places)], freed)


# -- pieces and messages -----------------------------------------------------------------------------------


@given(
    st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 60), st.integers(0, 60)
)
def test_pieces_are_the_bytes_they_were_cut_from(data: bytes, cuts: list[int], at: int, size: int) -> None:
    made = pieces(data, cuts)
    assert (made.whole(), len(made)) == (data, len(data))
    assert all(len(view) for view in made.views())
    assert made.cut(at, size) == data[at : at + size] or at >= len(data)
    if at + size <= len(data):
        part = made.part(at, size)
        assert (part.whole(), part.size) == (data[at : at + size], size)


def test_memory_is_freed_once_whoever_says_so_and_views_stay_good() -> None:
    freed: list[int] = []
    made = pieces(b"abcdef", [3], lambda: freed.append(1))
    part = made.part(1, 4)
    views = part.views()
    part.free()
    made.free()
    part.free()
    assert freed == [1]
    assert b"".join(views) == b"bcde"
    assert made.whole() == b""


@given(st.binary(max_size=300), st.booleans(), st.lists(st.integers(0, 500), max_size=5))
def test_a_message_is_taken_apart_as_protobuf_does_wherever_it_was_cut(
    body: bytes, end: bool, cuts: list[int]
) -> None:
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=end))
    message.metadata_context.filter_metadata["a"].fields["b"].string_value = "c"
    message.protocol_config.request_body_mode = Mode.BUFFERED
    made = opened(pieces(message.SerializeToString(), cuts))
    if not body:
        assert made is None, "a field that is empty is not on the wire"
        return
    assert made is not None
    rest, found = made
    assert found.whole() == body
    message.request_body.body = b""
    assert rest == message


BODIED = request_body(LONG)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (BODIED + BODIED, "two bodies, which protobuf would merge"),
        (request_headers() + BODIED, "two kinds, of which the last counts"),
        (BODIED[:-1], "cut short"),
        (b"\x22\x05\x0a\x7fab", "a length beyond the end"),
        (request_headers(), "no body"),
        (b"\x0b" + BODIED, "a group, which nobody sends any more"),
        (b"\xff" * 40, "no tag"),
        (BODIED + b"\x50\x01" * 1000, "more fields than anybody sends"),
        (BODIED + b"\x4a\x84\x80\x40" + bytes(2**20 + 4), "more than a mebibyte beside the body"),
        (b"", "nothing"),
    ],
)
def test_a_message_of_another_form_is_left_to_protobuf(raw: bytes, why: str) -> None:
    assert opened(pieces(raw, [7])) is None, why


@given(st.binary(max_size=80), st.lists(st.integers(0, 80), max_size=4))
def test_garbage_is_taken_apart_only_as_protobuf_would(raw: bytes, cuts: list[int]) -> None:
    made = opened(pieces(raw, cuts))
    if made is not None:
        rest, body = made
        rest.request_body.body = body.whole()
        assert rest == pb.ProcessingRequest.FromString(raw)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 20))
@example([b"\0" * 9, b"\0" * 16], 18)
def test_large_messages_come_in_pieces_and_small_ones_whole_in_their_order(
    messages: list[bytes], step: int
) -> None:
    freed: list[int] = []
    assembly = Assembly(most=100, large=15, freed=freed.append)
    raw, got = b"".join(map(framed, messages)), []
    for at in range(0, len(raw), step):
        made, refused = assembly.feed(raw, at, min(at + step, len(raw)))
        assert refused is None
        got += made
    assert [each.whole() if isinstance(each, Pieces) else each for each in got] == messages
    assert assembly.held == 0
    cut = [len(m) > 15 and isinstance(each, Pieces) for m, each in zip(messages, got, strict=True)]
    for message, each, is_cut in zip(messages, got, cut, strict=True):
        # One that comes in the same read as the end of its prefix is there already, whatever its size.
        assert is_cut or len(message) <= 15 or len(message) < step
        assert isinstance(each, Pieces) == is_cut
        if isinstance(each, Pieces):
            each.free()
    assert freed == [len(message) for message, is_cut in zip(messages, cut, strict=True) if is_cut]


# -- what goes to the reading process and comes back -------------------------------------------------------


def found_again(found: Found) -> Found:
    data = form.answered(found)
    assert form.size_of(data[: form.ANSWER.size]) == len(data)
    return form.found_in(bytearray(data))[0]


@given(
    st.builds(
        Prompt,
        dialect=st.just("openai_chat"),
        kind=st.just("generate"),
        model=st.text(LETTERS, max_size=5),
        size=st.integers(0, 2**40),
        max_output=st.none() | st.integers(0, 2**31),
        stream=st.booleans(),
        chains=st.lists(
            st.lists(st.tuples(st.integers(0, 2**60 - 1), st.integers(1, 2**40)), min_size=1, max_size=4).map(
                lambda pairs: Chain([a for a, _ in pairs], [b for _, b in pairs])
            ),
            max_size=3,
        ),
    ),
    st.sampled_from(["", "not_json"]),
)
def test_what_was_found_comes_back_as_it_was(prompt: Prompt, why: str) -> None:
    assert found_again((prompt, why)) == (prompt, why)


def test_a_model_of_letters_that_are_none_comes_back_too() -> None:
    prompt = Prompt(dialect="opaque", kind="generate", model="\ud800")
    assert found_again((prompt, "")) == (prompt, "")


def test_the_rules_of_reading_arrive() -> None:
    limits = Limits(max_depth=7, max_parts=20, max_members=3, aliases={"a": "b"}, roots=True)
    assert form.rules_in(form.rules(99, limits, {"a"})[form.RULES.size :]) == (99, limits, frozenset({"a"}))


# -- exchanges ---------------------------------------------------------------------------------------------


def begun(
    mind: Steering, body: Any = LONG, mode: int = Mode.BUFFERED, **headers: str
) -> tuple[Exchange, Any]:
    mind.patience = wait_for(5.0)
    exchange = Exchange(mind)
    exchange.receive(request_headers(mode=mode, **headers), 1.0)
    return exchange, exchange.receive_large(pieces(request_body(body), [100]), 2.0)


def told(exchange: Exchange) -> Found:
    unread = exchange.unread
    assert unread is not None
    return read(unread.path, unread.coding, unread.body.whole(), 10_000, Limits())


def test_a_large_body_makes_envoy_wait_until_it_was_read_and_is_then_decided_like_any_other() -> None:
    mind = steering(rules=RULES)
    exchange, reply = begun(mind)
    assert exchange.state == UNREAD
    assert answer(reply[0]).override_message_timeout.seconds == 5
    assert len(mind.ledger) == 0
    done = exchange.take_in(told(exchange), 3.0)
    assert set_headers(answer(done[0]))[DESTINATION].startswith("10.0.0.1:8000")
    assert (exchange.state, exchange.outcome, exchange.unread) == (DECIDED, STEERED, None)
    at_once = Exchange(steering())
    at_once.receive(request_headers(), 1.0)
    at_once.receive(request_body(LONG), 2.0)
    assert exchange.decision is not None
    assert at_once.decision is not None
    assert exchange.decision.prompt == at_once.decision.prompt, "read beside, it says the same"


@pytest.mark.parametrize("size", [200, 201])
def test_the_bound_is_the_largest_body_that_is_read_at_once(size: int) -> None:
    body = json.dumps(chat("x")).encode().ljust(size)
    exchange, _ = begun(steering(rules=RULES), body)
    assert (exchange.state == UNREAD) == (size > 200)


def test_a_body_that_nobody_read_goes_by_load_alone_even_where_unreadable_ones_are_refused() -> None:
    mind = steering(rules=Rules(beside=200, unreadable_passes=False))
    exchange, _ = begun(mind)
    assert exchange.unread is not None
    reply = exchange.take_in(not_read(exchange.unread.size), 3.0)
    assert set_headers(answer(reply[0]))[DESTINATION].startswith("10.0.0.1:8000")
    assert (exchange.outcome, exchange.why) == (UNREADABLE, NOT_READ)
    assert exchange.decision is not None
    assert exchange.decision.prompt is not None
    assert exchange.decision.prompt.size == len(json.dumps(LONG)), "its size is known"


def test_a_body_can_be_read_here_when_nobody_else_does() -> None:
    exchange, _ = begun(steering(rules=RULES))
    exchange.take_in(None, 3.0)
    assert exchange.outcome == STEERED


def test_a_compressed_body_that_expands_beyond_its_limit_is_413_read_beside_or_not() -> None:
    mind = steering(rules=Rules(beside=20, expanded_body=300))
    exchange, _ = begun(mind, gzip.compress(json.dumps(LONG).encode()), content_encoding="gzip")
    unread = exchange.unread
    assert unread is not None
    reply = exchange.take_in(read(unread.path, "gzip", unread.body.whole(), 300, Limits()), 3.0)
    assert (exchange.outcome, answer(reply[0]).immediate_response.status.code) == ("too_large", 413)


def test_a_body_above_its_limit_is_refused_unread() -> None:
    exchange, reply = begun(steering(rules=Rules(beside=100, body=200)))
    assert (exchange.outcome, answer(reply[0]).immediate_response.status.code) == ("too_large", 413)


def test_a_stream_that_should_tell_its_usage_is_asked_after_its_body_was_read_beside() -> None:
    mind = steering(rules=Rules(beside=200, include_usage=True))
    exchange, _ = begun(mind, {**LONG, "stream": True})
    assert exchange.unread is not None
    exchange.unread.handed_over()  # it is kept, as it will be changed
    reply = answer(exchange.take_in(told(exchange), 3.0)[0])
    changed = json.loads(reply.request_body.response.body_mutation.body)
    assert changed["stream_options"] == {"include_usage": True}


def test_in_full_duplex_nothing_is_said_before_the_body_was_read_and_each_byte_goes_back_once() -> None:
    body = json.dumps(LONG).encode()
    exchange = Exchange(steering(rules=RULES))
    exchange.receive(request_headers(mode=Mode.FULL_DUPLEX_STREAMED), 1.0)
    assert exchange.receive(request_body(body[:150], end=False), 1.0) == (None, False)
    assert exchange.receive(request_body(body[150:]), 1.0) == (None, False)
    assert exchange.state == UNREAD
    found = told(exchange)
    assert exchange.unread is not None
    exchange.unread.handed_over()
    parts = exchange.take_in(found, 3.0)[0]
    assert isinstance(parts, tuple)
    sent = [pb.ProcessingResponse.FromString(part) for part in parts[1:]]
    assert b"".join(each.request_body.response.body_mutation.streamed_response.body for each in sent) == body


def test_a_client_that_leaves_frees_its_body_at_once() -> None:
    freed: list[int] = []
    exchange = Exchange(steering(rules=RULES))
    exchange.receive(request_headers(), 1.0)
    exchange.receive_large(pieces(request_body(LONG), [50], lambda: freed.append(1)), 2.0)
    assert not freed
    exchange.end(3.0)
    assert (freed, exchange.state) == ([1], OVER)


def test_a_message_that_comes_while_the_body_is_read_changes_nothing() -> None:
    exchange, _ = begun(steering(rules=RULES))
    assert exchange.receive(request_body(LONG), 2.5)[0] is None
    assert exchange.state == UNREAD


def test_a_large_message_that_is_no_body_is_dealt_with_as_protobuf_reads_it() -> None:
    exchange = Exchange(steering(rules=RULES))
    freed: list[int] = []
    exchange.receive_large(pieces(request_headers(x_long="y" * 500), [9], lambda: freed.append(1)), 1.0)
    assert (exchange.state, freed) == (BODY, [1])


# -- small bodies that expand ------------------------------------------------------------------------------

EXPANDS = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress, "deflate": zlib.compress}


def sent(mode: int, body: bytes, coding: str, rules: Rules = RULES) -> tuple[Exchange, Any]:
    """An exchange whose body came in one message."""
    mind = steering(rules=rules)
    mind.patience = wait_for(5.0)
    exchange = Exchange(mind)
    exchange.receive(request_headers(mode=mode, content_encoding=coding), 1.0)
    return exchange, exchange.receive(request_body(body), 2.0)


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED])
@pytest.mark.parametrize("coding", EXPANDS)
def test_a_small_body_that_expands_beyond_the_bound_is_read_beside_and_says_the_same(
    coding: str, mode: int
) -> None:
    body = EXPANDS[coding](json.dumps(LONG).encode())
    assert len(body) < 200 < len(json.dumps(LONG))
    exchange, reply = sent(mode, body, coding)
    assert exchange.state == UNREAD
    if mode == Mode.BUFFERED:
        assert answer(reply[0]).override_message_timeout.seconds == 5
    else:
        assert reply[0] is None
    exchange.take_in(told(exchange), 3.0)
    assert exchange.outcome == STEERED
    plain = Exchange(steering())
    plain.receive(request_headers(), 1.0)
    plain.receive(request_body(json.dumps(LONG).encode()), 2.0)
    assert exchange.decision is not None
    assert plain.decision is not None
    assert exchange.decision.prompt == plain.decision.prompt


@pytest.mark.parametrize("coding", EXPANDS)
def test_one_that_expands_to_the_bound_at_most_is_read_at_once(coding: str) -> None:
    text = json.dumps(chat("x")).encode().ljust(200)
    assert sent(Mode.BUFFERED, EXPANDS[coding](text), coding)[0].outcome == STEERED
    assert sent(Mode.BUFFERED, EXPANDS[coding](text + b" "), coding)[0].state == UNREAD


def test_one_that_expands_beyond_all_bounds_is_413_by_whoever_reads_it() -> None:
    rules = Rules(beside=200, expanded_body=300)
    bomb = gzip.compress(bytes(400))
    for found in (read("/v1/chat/completions", "gzip", bomb, 300, Limits()), None):
        exchange, _ = sent(Mode.BUFFERED, bomb, "gzip", rules)
        assert exchange.state == UNREAD, "the reading process has the time for it"
        reply = exchange.take_in(found, 3.0)
        assert (exchange.outcome, answer(reply[0]).immediate_response.status.code) == ("too_large", 413)


def test_where_nothing_is_read_beside_it_is_read_at_once_however_far_it_expands() -> None:
    rules = Rules(beside=1000, body=1000)
    exchange, _ = sent(Mode.BUFFERED, gzip.compress(json.dumps(chat("x" * 50_000)).encode()), "gzip", rules)
    assert exchange.outcome == STEERED


@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED])
def test_a_compressed_body_under_another_name_goes_on_as_the_reading_process_opened_it(
    mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps({**LONG, "model": "other"}).encode()
    limits = Limits(aliases={"other": "m"})
    exchange, _ = sent(mode, gzip.compress(text), "gzip", Rules(beside=200, limits=limits))
    unread = exchange.unread
    assert unread is not None
    found, opened = read_open(unread.path, "gzip", unread.body.whole(), 10_000, limits)
    assert opened == text
    unread.opened(memoryview(opened))
    monkeypatch.setattr("extproc.core.encoding.decode", lambda *_: pytest.fail("it is decoded again"))
    parts = exchange.take_in(found, 3.0)[0]
    sent_on = [pb.ProcessingResponse.FromString(p) for p in (parts if isinstance(parts, tuple) else (parts,))]
    bodies = [each.request_body.response.body_mutation for each in sent_on if each.HasField("request_body")]
    body = b"".join(each.streamed_response.body or each.body for each in bodies)
    assert json.loads(body) == LONG


def test_the_body_comes_back_behind_what_was_found() -> None:
    found = read("/v1/chat/completions", "", json.dumps(LONG).encode(), 10_000, Limits())
    data = form.answered(found, b"abc") + b"abc"
    assert form.size_of(data) == len(data)
    made, body = form.found_in(data)
    assert (made, bytes(body)) == (found, b"abc")


# -- sessions ----------------------------------------------------------------------------------------------


class Watching:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.settled_as: list[str] = []
        self.failures = self.ends = 0

    def settled(self, exchange: Exchange, seconds: float) -> None:
        self.settled_as.append(exchange.outcome)

    def failed(self, exchange: Exchange, error: Exception) -> None:
        self.failures += 1

    def ended(self, exchange: Exchange) -> None:
        self.ends += 1


class Reads:
    """A reader that reads when it is told to, or not at all."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.asked: list[tuple[Unread, Callable[[Found], None]]] = []
        self.dropped: list[Unread] = []

    def take(self, unread: Unread, done: Callable[[Found], None]) -> bool:
        self.asked.append((unread, done))
        return self.takes

    def drop(self, unread: Unread) -> None:
        self.dropped.append(unread)


def session(reader: Reads | None) -> tuple[ExchangeSession, Watching]:
    watching = Watching()
    mind = steering(rules=RULES)
    mind.patience = wait_for(5.0)
    made = ExchangeSession(mind, watching, lambda: 1.0, reader)
    made.receive(request_headers())
    return made, watching


def test_a_session_answers_once_its_body_was_read() -> None:
    reader = Reads()
    made, watching = session(reader)
    first, close, settled = made.receive_large(pieces(request_body(LONG), [40]))
    assert (close, settled, made.held) == (False, False, True)
    assert answer(first).override_message_timeout.seconds == 5
    pushed: list[Any] = []
    made.answer_by(lambda data, close: pushed.append((data, close)))
    ((unread, done),) = reader.asked
    done(read(unread.path, "", unread.body.whole(), 10_000, Limits()))
    ((data, close),) = pushed
    assert set_headers(answer(data))[DESTINATION].startswith("10.0.0.1:8000")
    assert (close, made.held, watching.settled_as) == (False, False, [STEERED])


@pytest.mark.parametrize("reader", [None, Reads(takes=False)])
def test_a_session_whose_reader_is_gone_reads_by_itself(reader: Reads | None) -> None:
    made, watching = session(reader)
    data, close, settled = made.receive_large(pieces(request_body(LONG), [40]))
    assert set_headers(answer(data))[DESTINATION].startswith("10.0.0.1:8000")
    assert (close, settled, made.held, watching.settled_as) == (False, True, False, [STEERED])


def test_a_session_that_ends_calls_its_reader_off() -> None:
    reader = Reads()
    made, watching = session(reader)
    made.receive_large(pieces(request_body(LONG), [40]))
    made.end()
    assert reader.dropped == [reader.asked[0][0]]
    assert watching.ends == 1


def test_a_fault_in_going_on_lets_the_request_go_on_unsteered() -> None:
    reader = Reads()
    made, watching = session(reader)
    made.receive_large(pieces(request_body(LONG), [40]))
    pushed: list[Any] = []
    made.answer_by(lambda data, close: pushed.append((data, close)))
    reader.asked[0][1](("nonsense",))  # type: ignore[arg-type]
    assert (pushed[-1], watching.failures) == ((None, True), 1)
