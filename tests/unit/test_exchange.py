"""One ext_proc stream: every path through the state machine, on real messages."""

import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.states import DECIDED, OVER
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io.records import request_of
from extproc.pb import ext_proc_pb2 as pb
from tests.examples import examples
from tests.unit.messages import (
    Mode,
    answer,
    chat,
    metadata_destination,
    mutation,
    request_body,
    request_headers,
    set_headers,
)

DESTINATION = "x-gateway-destination-endpoint"


def steering(replicas: int = 3, rules: Rules | None = None, **pools: tuple[str, ...]) -> Steering:
    made = []
    for name, models in (pools or {"default": ()}).items():
        pool = Pool(name, models=models, traits=Traits(), now=0.0)
        for i in range(replicas):
            pool.join(f"10.0.{len(made)}.{i + 1}:8000", 0.0)
        made.append(pool)
    return Steering(made, rules or Rules(), random.Random(1))


def steered(
    mind: Steering, body: object, *, now: float = 1.0, **headers: str
) -> tuple[Exchange, pb.ProcessingResponse]:
    exchange = Exchange(mind)
    exchange.receive(request_headers(**headers), now)
    return exchange, answer(exchange.receive(request_body(body), now)[0])


def test_headers_are_answered_at_once_and_the_body_decides() -> None:
    exchange = Exchange(steering())
    first = answer(exchange.receive(request_headers(), 1.0)[0])
    assert first.WhichOneof("response") == "request_headers"
    assert not mutation(first).set_headers
    assert exchange.decision is None
    second = answer(exchange.receive(request_body(chat()), 1.0)[0])
    assert second.WhichOneof("response") == "request_body"
    assert exchange.outcome == "steered"
    assert exchange.decision is not None


def test_header_and_metadata_name_the_same_three_picks() -> None:
    _, reply = steered(steering(), chat())
    picks = set_headers(reply)[DESTINATION].split(",")
    assert sorted(picks) == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    assert metadata_destination(reply) == set_headers(reply)[DESTINATION]
    assert all(
        o.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        for o in mutation(reply).set_headers
    )


def test_no_body_is_decided_at_the_headers() -> None:
    exchange = Exchange(steering())
    reply = answer(exchange.receive(request_headers("/v1/models", end=True, method="GET"), 1.0)[0])
    assert reply.WhichOneof("response") == "request_headers"
    assert metadata_destination(reply) == set_headers(reply)[DESTINATION]
    assert exchange.outcome == "no_body"
    assert DESTINATION in mutation(reply).remove_headers


def test_an_empty_body_message_decides_too() -> None:
    exchange, reply = steered(steering(), b"")
    assert (exchange.outcome, exchange.why) == ("unreadable", "not_json")
    assert set_headers(reply)[DESTINATION]


def test_a_body_that_ends_by_trailers_is_decided_all_the_same() -> None:
    exchange = Exchange(steering())
    exchange.receive(request_headers(), 1.0)
    reply = answer(exchange.receive(request_body(chat(), end=False), 1.0)[0])
    assert set_headers(reply)[DESTINATION]


def test_a_second_end_of_stream_is_ignored() -> None:
    mind = steering()
    exchange, _ = steered(mind, chat())
    again = exchange.receive(request_body(chat()), 1.0)
    assert again == (None, False)
    assert len(mind.ledger) == 1


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.STREAMED])
def test_a_body_that_comes_too_late_or_never_is_steered_by_load_alone(mode: int) -> None:
    exchange = Exchange(steering())
    reply = answer(exchange.receive(request_headers(mode=mode), 1.0)[0])
    assert metadata_destination(reply) == set_headers(reply)[DESTINATION]
    assert exchange.outcome == "other_mode"


def test_each_piece_of_a_streamed_body_is_answered_though_nothing_is_read() -> None:
    exchange = Exchange(steering())
    exchange.receive(request_headers(mode=Mode.STREAMED), 1.0)
    for end in (False, True):
        reply = answer(exchange.receive(request_body(chat(), end=end), 1.0)[0])
        assert reply == pb.ProcessingResponse(request_body=pb.BodyResponse())


@pytest.mark.parametrize(
    ("body", "outcome"), [(json.dumps(chat()).encode(), "steered"), (b"{", "unreadable")]
)
def test_a_part_of_a_body_is_never_refused_for_what_it_lacks(body: bytes, outcome: str) -> None:
    exchange = Exchange(steering(rules=Rules(unreadable_passes=False)))
    exchange.receive(request_headers(mode=Mode.BUFFERED_PARTIAL), 1.0)
    reply = answer(exchange.receive(request_body(body, end=False), 1.0)[0])
    assert (bool(set_headers(reply)[DESTINATION]), exchange.outcome) == (True, outcome)


def test_a_part_of_a_body_is_never_written_anew() -> None:
    exchange = Exchange(steering(rules=Rules(include_usage=True)))
    exchange.receive(request_headers(mode=Mode.BUFFERED_PARTIAL), 1.0)
    reply = answer(exchange.receive(request_body(chat(stream=True), end=False), 1.0)[0])
    assert not reply.request_body.response.HasField("body_mutation")


def test_streams_whose_usage_could_not_be_read_are_not_asked_for_it() -> None:
    body = json.dumps({"model": "m", "prompt": "word " * 50, "stream": True}).encode()
    for unread, asked in ((frozenset({"openai_completions"}), False), (frozenset[str](), True)):
        exchange = Exchange(steering(rules=Rules(include_usage=True, unread=unread)))
        exchange.receive(request_headers("/v1/completions"), 1.0)
        reply = answer(exchange.receive(request_body(body), 1.0)[0])
        assert (b"include_usage" in reply.request_body.response.body_mutation.body) == asked


def test_a_mode_nobody_knows_is_not_steered_and_the_stream_ends_cleanly() -> None:
    exchange = Exchange(steering())
    reply = exchange.receive(request_headers(mode=Mode.GRPC), 1.0)
    assert (reply, exchange.outcome) == ((None, True), "other_mode")


def test_an_envoy_that_does_not_tell_its_mode_is_taken_for_buffered() -> None:
    exchange = Exchange(steering())
    assert exchange.receive(request_headers(mode=None), 1.0)[0] is not None


def test_every_client_copy_of_an_owned_header_is_removed() -> None:
    exchange = Exchange(steering())
    data = request_headers(
        x_gateway_destination_endpoint="127.0.0.1:9901",
        x_kvsteer_trick="1",
        x_gateway_other="2",
        x_mirror_cluster="m",
    )
    removed = set(mutation(answer(exchange.receive(data, 1.0)[0])).remove_headers)
    assert {DESTINATION, "x-kvsteer-trick", "x-gateway-other", "x-mirror-cluster"} <= removed
    assert "content-type" not in removed


def test_the_replica_learns_the_expected_hit_and_the_request_id() -> None:
    mind = steering(replicas=1)
    text = "system prompt " * 400  # 5,600 bytes
    _, reply = steered(mind, chat(text), x_request_id="abc-1")
    assert set_headers(reply)["x-kvsteer-expected-hit"] == "0"
    assert set_headers(reply)["x-kvsteer-request-id"] == "abc-1"
    second, reply = steered(mind, chat(text), x_request_id="abc-2")
    assert second.decision is not None
    assert int(set_headers(reply)["x-kvsteer-expected-hit"]) == second.decision.tokens - 1


@pytest.mark.parametrize("bad", ["a b", "x\r\ny: z", "", "é", "a" * 500, "-"])
def test_a_request_id_that_is_no_plain_token_is_never_echoed(bad: str) -> None:
    _, reply = steered(steering(), chat(), x_request_id=bad)
    told = set_headers(reply)["x-kvsteer-request-id"]
    assert told.startswith("kvsteer-")


def test_the_same_conversation_goes_where_it_is_warm() -> None:
    mind = steering(replicas=8)
    first, _ = steered(mind, chat("x" * 9000))
    first.end(1.5)
    assert first.decision is not None
    for turn in range(5):
        later = {
            "model": "m",
            "messages": [
                {"role": "user", "content": "x" * 9000},
                {"role": "assistant", "content": f"{turn}"},
            ],
        }
        exchange, _ = steered(mind, later, now=100.0 + turn)
        assert exchange.decision is not None
        assert exchange.decision.replica is first.decision.replica
        exchange.end(100.5 + turn)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x00\xff", "not_json"),
        (b"[]", "wrong_shape"),
        (b"[" * 10_000 + b"]" * 10_000, "too_deep"),
        ({"model": "m", "messages": 5}, "wrong_shape"),
    ],
)
def test_what_cant_be_read_goes_by_load_alone_or_is_refused_by_setting(body: object, why: str) -> None:
    exchange, reply = steered(steering(), body)
    assert (exchange.outcome, exchange.why) == ("unreadable", why)
    assert set_headers(reply)[DESTINATION]
    exchange, reply = steered(steering(rules=Rules(unreadable_passes=False)), body)
    assert exchange.outcome == "bad_request"
    assert reply.immediate_response.status.code == 400
    assert json.loads(reply.immediate_response.body)["error"]["code"] == "invalid_body"


def test_an_unknown_path_is_never_refused() -> None:
    mind = steering(rules=Rules(unreadable_passes=False))
    exchange = Exchange(mind)
    exchange.receive(request_headers("/v1/audio/transcriptions"), 1.0)
    reply = answer(exchange.receive(request_body(b"RIFF...."), 1.0)[0])
    assert (exchange.outcome, exchange.why) == ("unreadable", "no_dialect")
    assert set_headers(reply)[DESTINATION]


def test_a_body_over_the_limit_is_413_also_when_it_only_expands_to_that() -> None:
    mind = steering(rules=Rules(body=2000, expanded_body=5000))
    exchange, reply = steered(mind, chat("x" * 3000))
    assert (exchange.outcome, reply.immediate_response.status.code) == ("too_large", 413)
    packed = gzip.compress(json.dumps(chat("x" * 100_000)).encode())
    exchange, reply = steered(mind, packed, content_encoding="gzip")
    assert (exchange.outcome, reply.immediate_response.status.code) == ("too_large", 413)


def test_a_compressed_body_is_read() -> None:
    exchange, _ = steered(steering(), gzip.compress(json.dumps(chat()).encode()), content_encoding="gzip")
    assert exchange.outcome == "steered"


def test_an_undeclared_model_is_404_or_goes_to_the_first_pool() -> None:
    exchange, reply = steered(steering(a=("one",), b=("two",)), chat(model="three"))
    assert (exchange.outcome, reply.immediate_response.status.code) == ("unknown_model", 404)
    assert json.loads(reply.immediate_response.body)["error"]["code"] == "model_not_found"
    exchange, reply = steered(
        steering(rules=Rules(unknown_model_passes=True), a=("one",), b=("two",)), chat(model="three")
    )
    assert set_headers(reply)["x-gateway-pool"] == "a"


@pytest.mark.parametrize("name", ["y" * 4097, "y" * 100_000])
def test_a_name_that_is_too_long_to_be_any_model_s_is_404_too(name: str) -> None:
    exchange, reply = steered(steering(a=("one",), b=("y" * 4096,)), chat(model=name))
    assert (exchange.outcome, reply.immediate_response.status.code) == ("unknown_model", 404)
    exchange, reply = steered(steering(a=(), b=("two",)), chat(model=name))
    assert (exchange.outcome, set_headers(reply)["x-gateway-pool"]) == ("unreadable", "a"), (
        "it takes every model"
    )


def test_a_body_that_can_t_be_read_further_goes_where_its_model_is_listed_or_is_404() -> None:
    unread = {"messages": "not a list"}
    exchange, reply = steered(steering(a=("one",), b=("two",)), {"model": "two", **unread})
    assert (exchange.outcome, set_headers(reply)["x-gateway-pool"]) == ("unreadable", "b")
    exchange, reply = steered(steering(a=("one",), b=("two",)), {"model": "three", **unread})
    assert (exchange.outcome, reply.immediate_response.status.code) == ("unknown_model", 404)
    exchange, reply = steered(steering(a=("one",), b=("two",)), unread)
    assert (exchange.outcome, set_headers(reply)["x-gateway-pool"]) == ("unreadable", "a"), (
        "it names no model"
    )


def test_several_pools_are_told_apart_by_a_header_and_a_new_route() -> None:
    exchange, reply = steered(steering(a=("one",), b=("two",)), chat(model="two"))
    assert set_headers(reply)["x-gateway-pool"] == "b"
    assert reply.request_body.response.clear_route_cache
    assert exchange.decision is not None
    assert exchange.decision.pool.name == "b"
    assert set_headers(reply)[DESTINATION].startswith("10.0.1.")


def test_no_candidate_is_503_with_retry_after() -> None:
    mind = steering(replicas=1)
    only = mind.pools[0].get("10.0.0.1:8000")
    assert only is not None
    only.drain("operator", 0.5)
    exchange, reply = steered(mind, chat())
    assert (exchange.outcome, reply.immediate_response.status.code) == ("no_candidate", 503)
    assert exchange.ending is not None
    assert (exchange.ending.by, exchange.ending.status) == ("gateway", 503), (
        "the gateway knows what it answered"
    )
    assert exchange.decision is not None
    asked = request_of(exchange.decision)
    assert asked["prompt_tokens"] > 0
    assert (asked["output_tokens_expected"], asked["tokens_charged"]) == (256, 0), "nobody was charged"
    names = {o.header.key: o.header.raw_value for o in reply.immediate_response.headers.set_headers}
    assert names["retry-after"] == b"1"
    assert names["content-type"] == b"application/json"
    assert len(mind.ledger) == 0


@pytest.mark.parametrize("status", [500, 429, None])
def test_replicas_that_may_be_ill_serve_when_nobody_else_is_left(status: int | None) -> None:
    mind = steering(replicas=2)
    for replica in mind.pools[0].replicas:
        for number in range(3):
            replica.answered(str(number), status, 60.0 if status == 429 else None, 0.5)
        assert replica.excluded(0.5)
    exchange, reply = steered(mind, chat())
    assert set_headers(reply)[DESTINATION]
    assert exchange.decision is not None
    assert exchange.decision.trouble == "last_resort"


def test_lost_metrics_do_not_take_traffic_down() -> None:
    mind = steering(replicas=2)
    for replica in mind.pools[0].replicas:
        mind.pools[0].failed(replica.address, "connect", 0.5)
    _, reply = steered(mind, chat())
    assert set_headers(reply)[DESTINATION]


def test_a_full_cache_that_was_told_long_ago_is_not_held_against_a_replica() -> None:
    mind = steering(replicas=1)
    pool = mind.pools[0]
    pool.observe("10.0.0.1:8000", Sample(at=1.0, kv_used=1.0))
    assert steered(mind, chat(), now=2.0)[0].outcome == "no_candidate"
    pool.tick(100.0)
    exchange, _ = steered(mind, chat(), now=100.0)
    assert exchange.decision is not None
    assert exchange.decision.trouble == "all_stale"


def test_owned_headers_of_any_size_are_removed_without_a_broken_answer() -> None:
    name = "x-gateway-" + "a" * 20_000
    exchange = Exchange(steering())
    data = request_headers("/v1/models", end=True, method="GET", **{name: "1"})
    assert name in mutation(answer(exchange.receive(data, 1.0)[0])).remove_headers


def test_an_upload_that_is_no_prompt_costs_no_prompt_work() -> None:
    mind = steering(replicas=1)
    exchange = Exchange(mind)
    exchange.receive(request_headers("/v1/audio/transcriptions"), 1.0)
    exchange.receive(request_body(b"\x00" * 1_000_000), 1.0)
    assert mind.pools[0].replicas[0].books.pending == 0
    assert mind.pools[0].busy.rho(1, 1.0) == 0


def test_stale_replicas_serve_when_all_are_and_that_is_said() -> None:
    exchange, _ = steered(steering(), chat(), now=1000.0)
    assert exchange.decision is not None
    assert exchange.decision.trouble == "all_stale"


def test_the_end_releases_the_charge_once_whatever_the_state() -> None:
    mind = steering()
    exchange, _ = steered(mind, chat())
    assert mind.ledger.tokens > 0
    exchange.end(200.0)
    exchange.end(200.0)
    assert (mind.ledger.tokens, exchange.state) == (0, OVER)


@pytest.mark.parametrize(
    "kind", ["response_headers", "response_body", "response_trailers", "request_trailers"]
)
def test_what_envoy_may_send_besides_is_answered_go_on(kind: str) -> None:
    exchange, _ = steered(steering(), chat())
    message = pb.ProcessingRequest()
    getattr(message, kind).SetInParent()
    reply = answer(exchange.receive(message.SerializeToString(), 1.0)[0])
    assert reply.WhichOneof("response") == kind
    assert exchange.state == DECIDED


@examples(75)
@given(
    st.lists(
        st.one_of(st.binary(max_size=200), st.sampled_from([request_headers(), request_body(chat())])),
        max_size=6,
    )
)
def test_no_bytes_raise_and_the_ledger_is_empty_after_the_end(messages: list[bytes]) -> None:
    mind = steering()
    exchange = Exchange(mind)
    for data in messages:
        if exchange.receive(data, 1.0)[1]:
            break
    exchange.end(200.0)
    assert mind.ledger.tokens == 0


@examples(50)
@given(st.binary(max_size=400))
def test_no_body_raises(body: bytes) -> None:
    exchange, _ = steered(steering(), body)
    assert exchange.outcome in {"unreadable", "steered"}
