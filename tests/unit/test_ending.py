"""How an exchange ended: read out of ext_proc's response messages, learned from, released once."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.ending import COMPLETE, UNKNOWN, UPSTREAM, Ending
from extproc.core.exchange import Exchange
from extproc.core.outcome import Ended
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.usage.record import Usage
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import answer, chat, request_body, request_headers

FILTER = "envoy.filters.http.ext_proc"
NAMESPACE = "envoy.ai.token_usage"
TYPE = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"


def trailers(
    *,
    served: str = "",
    status: float | None = 200,
    attempts: float = 1,
    usage: tuple[int, int, int] | None = None,
) -> pb.ProcessingRequest:
    """What Envoy sends at the clean end of a response; `usage` is input, output and cached tokens."""
    message = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    fields = message.attributes[FILTER].fields
    if served:
        fields["upstream.address"].string_value = served
    if status is not None:
        fields["response.code"].number_value = status
    fields["upstream.request_attempt_count"].number_value = attempts
    if usage is not None:
        record = pb.TokenUsage(extraction_status=pb.TokenUsage.COMPLETE)
        record.input_tokens.value, record.output_tokens.value = usage[:2]
        record.input_token_details.cached_tokens.value = usage[2]
        packed = message.metadata_context.typed_filter_metadata[NAMESPACE]
        packed.type_url, packed.value = TYPE, record.SerializeToString()
    return message


def mind(replicas: int = 2, costs: dict[str, float] | None = None) -> Steering:
    pool = Pool("p", traits=Traits(costs=costs or {}), distrust=0.5, now=0.0)
    for number in range(replicas):
        pool.join(f"10.0.0.{number + 1}:8000", 0.0)
    return Steering([pool], Rules(), random.Random(1))


def run(steering: Steering, body: object, *told: pb.ProcessingRequest, now: float = 1.0) -> Exchange:
    """A whole exchange; `told` are messages of its response."""
    exchange = Exchange(steering)
    exchange.receive(request_headers(), now)
    exchange.receive(request_body(body), now)
    for message in told:
        exchange.receive(message.SerializeToString(), now)
    finish(steering, exchange, now)
    return exchange


def finish(steering: Steering, exchange: Exchange, now: float) -> None:
    """The stream is over, and nothing more will be told."""
    exchange.end(now)
    assert exchange.decision is not None
    steering.learn(exchange.decision, exchange.ending, now)


def replica(exchange: Exchange) -> str:
    assert exchange.decision is not None
    assert exchange.decision.replica is not None
    return exchange.decision.replica.address


def test_the_message_at_the_end_tells_status_replica_attempts_and_usage() -> None:
    ending = Ending()
    ending.trailers(trailers(served="10.0.0.1:8000", status=200, attempts=2, usage=(100, 7, 64)))
    assert (ending.by, ending.status, ending.served, ending.attempts) == (COMPLETE, 200, "10.0.0.1:8000", 2)
    assert ending.usage == Usage(100, 7, 64)


def test_it_is_answered_at_once_and_changes_no_decision() -> None:
    exchange = Exchange(mind())
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat()), 1.0)
    before = replica(exchange)
    reply = exchange.receive(trailers(usage=(100, 7, 64)).SerializeToString(), 2.0)
    assert answer(reply[0]).WhichOneof("response") == "response_trailers"
    assert not reply[1]
    assert replica(exchange) == before


def test_an_error_has_no_usage_whatever_its_body_looks_like() -> None:
    ending = Ending()
    ending.trailers(trailers(status=429, usage=(100, 7, 64)))
    assert (ending.status, ending.usage) == (429, None)


def test_headers_tell_status_and_replica() -> None:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    message.response_headers.headers.headers.add(key=":status", raw_value=b"503")
    message.attributes[FILTER].fields["upstream.address"].string_value = "[fd00:0::2]:8000"
    ending = Ending()
    ending.headers(message)
    assert (ending.by, ending.status, ending.served) == (UNKNOWN, 503, "[fd00::2]:8000")


@pytest.mark.parametrize("status", [float("nan"), float("inf"), -1, 0, 99, 600, 1e300])
def test_a_status_that_is_none_stays_unknown(status: float) -> None:
    ending = Ending()
    ending.trailers(trailers(status=status))
    assert ending.status is None


@pytest.mark.parametrize(
    "served", ["", "nobody", "10.0.0.1", "http://10.0.0.1:80", "10.0.0.1:99999", "x" * 5000]
)
def test_an_address_that_is_none_stays_unknown(served: str) -> None:
    ending = Ending()
    ending.trailers(trailers(served=served))
    assert ending.served == ""


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_hostile_metadata_never_raises_and_gives_no_usage(type_url: bytes, value: bytes) -> None:
    message = trailers()
    packed = message.metadata_context.typed_filter_metadata[NAMESPACE]
    packed.type_url, packed.value = type_url.decode("latin-1"), value
    exchange = run(mind(), chat(), message)
    assert exchange.ending is not None
    assert exchange.ending.usage is None


def test_the_charge_is_released_once_and_messages_after_the_end_teach_nothing() -> None:
    steering = mind()
    exchange = run(steering, chat(), trailers(usage=(100, 7, 0)))
    exchange.end(3.0)
    assert steering.ledger.tokens == 0
    assert len(steering.ledger) == 0


def test_tokens_per_byte_follow_what_engines_counted() -> None:
    """Prompts of 4,000 bytes or so that made a token of every 2 bytes: a half, where the start is a quarter."""
    steering = mind()
    pool = steering.pools[0]
    for number in range(40):
        body = chat(f"{number} " + "word " * 800)
        exchange = Exchange(steering)
        exchange.receive(request_headers(), 1.0)
        exchange.receive(request_body(body), 1.0)
        assert exchange.decision is not None
        assert exchange.decision.prompt is not None
        tokens = exchange.decision.prompt.size // 2
        exchange.receive(trailers(usage=(tokens, 7, 0)).SerializeToString(), 1.0)
        finish(steering, exchange, 1.0)
    prompt = exchange.decision.prompt
    assert pool.tokens_per_byte(prompt) == pytest.approx(0.5, rel=0.05)


def test_a_retried_request_is_believed_to_be_cached_where_it_was_served() -> None:
    steering = mind()
    pool = steering.pools[0]
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat("word " * 400)), 1.0)
    chosen = replica(exchange)
    served = next(r.address for r in pool.replicas if r.address != chosen)
    exchange.receive(trailers(served=served, attempts=2, usage=(500, 7, 0)).SerializeToString(), 1.0)
    finish(steering, exchange, 1.0)
    assert exchange.decision is not None
    assert exchange.decision.prompt is not None
    slots = {r.address: r.slot for r in pool.replicas}
    assert set(pool.index.match(exchange.decision.prompt.chains[0].hashes)) == {slots[served]}
    assert pool.retried == 1


def test_without_feedback_a_retried_request_is_believed_where_it_was_served_alone() -> None:
    pool = Pool("p", traits=Traits(), now=0.0)
    steering = Steering([pool], Rules(), random.Random(1))
    for number in (1, 2):
        pool.join(f"10.0.0.{number}:8000", 0.0)
    assert pool.feedback is None
    told: list[tuple[int, int]] = []
    pool.on_forgot = lambda slot, hashes: told.append((slot, len(hashes)))
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 1.0)
    exchange.receive(request_body(chat("word " * 400)), 1.0)
    chosen = replica(exchange)
    exchange.end(1.0)
    assert exchange.decision is not None
    assert exchange.decision.prompt is not None
    hashes = exchange.decision.prompt.chains[0].hashes
    slots = {r.address: r.slot for r in pool.replicas}
    served = next(address for address in slots if address != chosen)
    ending = Ending()
    ending.by, ending.status, ending.served, ending.attempts = COMPLETE, 200, served, 2
    steering.learn(exchange.decision, ending, 2.0)
    assert set(pool.index.match(hashes)) == {slots[served]}
    assert (pool.retried, told) == (1, [(slots[chosen], len(hashes))])


def test_without_feedback_what_was_refused_is_not_believed_cached() -> None:
    steering = Steering([Pool("p", traits=Traits(), now=0.0)], Rules(), random.Random(1))
    pool = steering.pools[0]
    pool.join("10.0.0.1:8000", 0.0)
    for status, held in ((200, True), (503, False)):
        exchange = Exchange(steering)
        exchange.receive(request_headers(), 1.0)
        exchange.receive(request_body(chat(f"{status} word " * 400)), 1.0)
        exchange.end(1.0)
        assert exchange.decision is not None
        assert exchange.decision.prompt is not None
        ending = Ending()
        ending.by, ending.status, ending.served = COMPLETE, status, "10.0.0.1:8000"
        steering.learn(exchange.decision, ending, 2.0)
        assert bool(pool.index.match(exchange.decision.prompt.chains[0].hashes)) == held


def test_answers_lengths_are_learned_but_not_of_errors() -> None:
    steering = mind()
    pool = steering.pools[0]
    usual = pool.output.predict("m", "openai_chat", 100)
    for _ in range(30):
        run(steering, chat(), trailers(status=500, usage=(100, 4000, 0)))
    assert pool.output.predict("m", "openai_chat", 100) == usual


# ---- first tokens ----


def observing(mark: object = None, **namespaces: dict[str, str]) -> bytes:
    """The first message of an observer's stream."""
    message = pb.ProcessingRequest(observability_mode=True, response_body=pb.HttpBody(body=b"data: {}"))
    for name, values in namespaces.items():
        message.metadata_context.filter_metadata[name].update(values)
    if mark is not None:
        message.metadata_context.filter_metadata["kvsteer"].update({"exchange": mark})
    return message.SerializeToString()


def observed(steering: Steering) -> tuple[Exchange, str]:
    """A streamed exchange on its way, and the mark that Envoy keeps of it."""
    steering.identity = ("gw-0", 77)
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 1.0)
    reply = answer(exchange.receive(request_body(chat("word " * 800, stream=True)), 1.0)[0])
    inner = reply.dynamic_metadata.fields
    assert inner["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
    return exchange, inner["kvsteer"].struct_value.fields["exchange"].string_value


def test_an_observers_stream_is_closed_at_once_and_its_first_token_ends_the_prompts_work() -> None:
    steering = mind(1)
    exchange, mark = observed(steering)
    books = steering.pools[0].replicas[0].books
    assert books.pending > 0
    assert books.falls_to(0.0, 1.0) < math.inf, "it is the first, so the clock may tell how far it is"
    other = Exchange(steering)
    other.receive(request_headers(), 1.0)
    other.receive(request_body(chat("other words " * 800)), 1.0)
    assert books.falls_to(0.0, 1.0) == math.inf, "the second can't begin before the first's first token"
    other.end(1.2)
    reply = Exchange(steering).receive(observing(mark), 1.5)
    assert reply == (None, True)
    assert books.pending == 0
    assert exchange.ending is not None
    assert exchange.ending.first_token == 1.5
    exchange.end(2.0)
    assert not steering.watched
    assert steering.ledger.tokens == 0


def test_only_the_first_piece_counts_and_what_comes_after_the_end_is_passed_over() -> None:
    steering = mind(1)
    exchange, mark = observed(steering)
    for now in (1.5, 1.7):
        Exchange(steering).receive(observing(mark), now)
    exchange.end(2.0)
    Exchange(steering).receive(observing(mark), 2.5)
    assert exchange.ending is not None
    assert exchange.ending.first_token == 1.5


@pytest.mark.parametrize(
    "mark",
    [None, "", "1", "1/77", "x/77/gw-0", "1/x/gw-0", "-1/77/gw-0", "9" * 30 + "/77/gw-0", "999/77/gw-0", 5],
)
def test_a_mark_that_is_none_of_ours_changes_nothing(mark: object) -> None:
    steering = mind(1)
    exchange, _ = observed(steering)
    relayed = []
    steering.relay = lambda gateway, key: relayed.append((gateway, key))
    assert Exchange(steering).receive(observing(mark), 1.5) == (None, True)
    assert exchange.ending is None
    assert not relayed


def test_another_gateways_first_token_is_relayed() -> None:
    steering = mind(1)
    observed(steering)
    relayed = []
    steering.relay = lambda gateway, key: relayed.append((gateway, key))
    Exchange(steering).receive(observing("12/78/gw/1"), 1.5)
    assert relayed == [(("gw/1", 78), 12)]


def test_an_answer_that_is_not_streamed_has_no_mark_since_its_first_piece_is_its_last() -> None:
    steering = mind(1)
    steering.identity = ("gw-0", 77)
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 1.0)
    reply = answer(exchange.receive(request_body(chat()), 1.0)[0])
    assert "kvsteer" not in reply.dynamic_metadata.fields


def test_the_status_is_what_the_client_got_where_the_access_log_says_it() -> None:
    ending = Ending()
    ending.status, ending.served = 200, "10.0.0.1:8000"  # by the response's headers
    ending.logged(Ended("10.0.0.1:8000", "id", None, None, False, code=502))
    assert (ending.status, ending.by) == (502, UPSTREAM)
    left = Ending()
    left.status = 200
    left.logged(Ended("10.0.0.1:8000", "id", None, None, True))  # the client got none from Envoy
    assert left.status == 200
