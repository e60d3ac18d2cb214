"""Prompts computed on one replica and answered by another: when, by whom, and what is charged.

Replicas compute 1,000 prompt tokens a second and none holds anything, unless said otherwise; a byte is a quarter of
a token. The pool is idle, so w is 0, and a prompt of 2,000 tokens takes 2 s: alone it costs 2 s, and 2 s more for the
next answer that it would hold up. Apart it costs 2 s and the transfer.
"""

from random import Random
from typing import Any

import orjson
import pytest

from extproc.config import parse
from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.handover import Handover, HandoverRules
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.errors import ConfigError
from tests.unit.messages import answer, chat, request_body, request_headers, set_headers

P, D1, D2 = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
ROLES = {P: "prefill", D1: "decode", D2: "decode"}


def made(roles: dict[str, str] | None = None, **rules: Any) -> Steering:
    pool = Pool("chat", traits=Traits(prefill_speed=1000.0))
    listed = ROLES if roles is None else roles
    for address in listed:
        pool.join(address, 0.0)
    pool.handover = Handover(HandoverRules(**{"transfer": 2000.0, **rules}), listed)
    return Steering([pool], Rules(fallbacks=1), Random(1))


def prompt(tokens: int, start: int = 0, kind: Any = "generate") -> Prompt:
    chain = Chain([start + 1, start + 2], [tokens * 2, tokens * 4])
    return Prompt(dialect="d", kind=kind, chains=[chain], size=tokens * 4)


def decide(steering: Steering, tokens: int, now: float = 0.0, start: int = 0) -> Any:
    return steering.decide(prompt(tokens, start), steering.pools[0], steering.new_key(), now)


def counts(steering: Steering) -> dict[str, int]:
    handover = steering.pools[0].handover
    assert handover is not None
    return {how: count for how, count in handover.counts.items() if count}


def by(address):
    """Told that the replica at `address` answers."""
    ending = Ending()
    ending.served = address
    return ending


def test_a_long_prompt_is_computed_apart_where_that_is_cheaper():
    steering = made()  # apart: 2 s and a transfer of 1 s; alone: 4 s
    decision = decide(steering, 2000)
    assert decision.prefill.replica.address == P
    assert decision.replica.address in (D1, D2)
    assert decision.reason == "prefill_apart"
    assert {replica.address for replica in decision.order} == {D1, D2}, "who only computes answers nobody"
    assert counts(steering) == {"apart": 1}


def test_a_slow_transfer_keeps_it_where_it_is_answered():
    steering = made(transfer=1000.0)  # apart: 2 s and 2 s, no less than alone
    decision = decide(steering, 2000)
    assert decision.prefill is None
    assert decision.replica.address in (D1, D2)
    assert counts(steering) == {"dearer": 1}


def test_few_uncached_tokens_are_computed_where_they_are_answered():
    steering = made(least=2001)
    assert decide(steering, 2000).prefill is None
    assert counts(steering) == {"short": 1}


def test_a_replica_with_prompts_to_compute_is_left_alone():
    """Charged the same for what is computed, the second waits 2 s and 0.5 s for its transfer apart; alone it holds
    up one answer or two for 2 s, at half of that."""
    steering = made(transfer=4000.0, stall=0.5)
    first, second = decide(steering, 2000), decide(steering, 2000, start=10)
    assert first.prefill is not None
    assert second.prefill is None
    assert counts(steering) == {"apart": 1, "dearer": 1}


def test_the_prompt_is_charged_where_it_is_computed_and_the_answer_where_it_is_made():
    steering = made()
    decision = decide(steering, 2000)
    pool, now = steering.pools[0], 0.0
    waits = {r.address: r.books.backlog(now, r.prefill_speed) for r in pool.replicas}
    assert waits[P] == pytest.approx(2.0)
    assert waits[D1] == waits[D2] == 0.0
    assert [r.books.requests for r in (decision.prefill.replica, decision.replica)] == [1, 1]
    held = pool.index.match([1, 2])
    assert {r.address for r in pool.replicas if held.get(r.slot)} == {P, decision.replica.address}


def test_the_first_token_ends_the_prompts_charge_and_the_end_ends_the_rest():
    steering = made()
    decision = decide(steering, 2000)
    steering.served(decision, by(decision.replica.address), 1.0)  # its response began
    assert [r.books.requests for r in (decision.prefill.replica, decision.replica)] == [0, 1]
    steering.learn(decision, None, 2.0)
    steering.ledger.release(decision.key, 2.0)
    assert [r.books.requests for r in steering.pools[0].replicas] == [0, 0, 0]
    handover = steering.pools[0].handover
    assert handover is not None
    assert handover.legs == {}


def test_another_replica_that_answers_finds_the_prompt_computed():
    steering = made()
    decision = decide(steering, 2000)
    other = decision.order[1]
    steering.served(decision, by(other.address), 0.5)
    assert (decision.replica.books.requests, other.books.requests) == (0, 1)
    assert other.books.backlog(0.5, other.prefill_speed) == 0.0


def test_without_anyone_well_to_compute_it_the_one_that_answers_does():
    steering = made()
    replica = steering.pools[0].get(P)
    assert replica is not None
    replica.drain("operator", 0.0)
    assert decide(steering, 2000).prefill is None
    assert counts(steering) == {"nobody": 1}


def test_without_anyone_to_answer_there_is_no_candidate():
    steering = made({P: "prefill"})
    decision = decide(steering, 2000)
    assert (decision.replica, decision.reason) == (None, "no_candidate")


def test_replicas_that_do_both_compute_for_each_other_but_not_for_themselves():
    steering = made({D1: "both", D2: "both"})
    decision = decide(steering, 2000)
    assert {decision.prefill.replica.address, decision.replica.address} == {D1, D2}


def test_prompts_of_other_kinds_are_never_sent_apart():
    steering = made()
    decision = steering.decide(prompt(2000, kind="embed"), steering.pools[0], 7, 0.0)
    assert decision.prefill is None
    assert counts(steering) == {}


def test_what_is_only_considered_is_neither_charged_nor_counted():
    steering = made()
    decision = steering.consider(prompt(2000), steering.pools[0], Random(1), 0.0)
    assert decision.prefill is not None
    assert counts(steering) == {}
    assert len(steering.ledger) == 0


@pytest.mark.parametrize(
    ("label", "role"),
    [
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("prefill-decode", "both"),
        ("encode", ""),
        (None, "decode"),
    ],
)
def test_roles_are_read_of_what_discovery_knows(label: str | None, role: str) -> None:
    handover = Handover(HandoverRules(label="role"), {D2: "prefill"})
    handover.found([(D1, {"role": label} if label else {}), (D2, {"role": "decode"})])
    assert handover.role(D1) == role
    assert handover.role(D2) == "prefill", "the configuration's word holds"
    assert (D1 in handover.answering) == (role in ("decode", "both"))


@pytest.mark.parametrize(
    ("rules", "headers"),
    [
        ({}, {"x-prefiller-host-port": P}),
        ({"as_url": True, "header": "x-kvsteer-p"}, {"x-kvsteer-p": f"http://{P}"}),
        ({"decode_header": "x-kvsteer-d"}, {"x-prefiller-host-port": P, "x-kvsteer-d": D1}),
    ],
)
def test_the_engines_are_told_in_headers(rules: dict[str, Any], headers: dict[str, str]) -> None:
    exchange = Exchange(made({P: "prefill", D1: "decode"}, **rules))
    exchange.receive(request_headers(), 0.0)
    reply = answer(exchange.receive(request_body(chat("word " * 1600)), 0.0)[0])
    told = set_headers(reply)
    assert told["x-gateway-destination-endpoint"] == D1
    assert headers.items() <= told.items()
    exchange.end(1.0)
    assert exchange.decision is not None
    assert exchange.decision.pool.replicas[0].books.requests == 0, (
        "the prompt's charge ends with the exchange"
    )


def test_a_pool_without_roles_tells_nothing():
    pool = Pool("chat")
    pool.join(D1, 0.0)
    exchange = Exchange(Steering([pool], Rules(), Random(1)))
    exchange.receive(request_headers(), 0.0)
    reply = answer(exchange.receive(request_body(chat("word " * 1600)), 0.0)[0])
    assert "x-prefiller-host-port" not in set_headers(reply)


def test_a_pair_is_undone_once_whatever_ends_it():
    steering = made()
    decision = decide(steering, 2000)
    handover = steering.pools[0].handover
    assert handover is not None
    handover.done(decision.key, steering.ledger, 1.0)
    handover.done(decision.key, steering.ledger, 1.0)
    handover.done(99, Ledger(), 1.0)
    assert len(steering.ledger) == 1


YAML = """
pools:
  - name: chat
    prefill: {enabled: %s, header: %s}
    late_binding: %s
    replicas: [{address: "10.0.0.1:1", role: %s}, {address: "10.0.0.2:1", role: %s}]
"""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("false", "x-prefiller-host-port", "off", "prefill", "decode"), "prefill.enabled is false"),
        (("true", "x-prefiller-host-port", "on", "prefill", "decode"), "turn one off"),
        (("true", "x-prefiller-host-port", "off", "prefill", "prefill"), "no replica that answers"),
        (("true", "x-prefiller-host-port", "off", "decode", "decode"), "no replica that computes prompts"),
        (("true", "x-request-id", "off", "prefill", "decode"), "Envoy does not strip it"),
    ],
)
def test_settings_that_do_not_fit_say_how_to_mend_them(values: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(YAML % values, "kvsteer.yaml")


def test_settings_reach_the_pool():
    from extproc.building import build_steering

    settings = parse(YAML % ("true", "x-kvsteer-prefill", "off", "prefill", "decode"), "kvsteer.yaml")
    handover = build_steering(settings, 0.0).pools[0].handover
    assert handover is not None
    assert (handover.role("10.0.0.1:1"), handover.role("10.0.0.2:1")) == ("prefill", "decode")
    assert handover.rules.header == "x-kvsteer-prefill"


class Heard:
    """Who tells other gateways, noting what there is to tell."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def placed(self, decision: Any, replica: Any) -> None:
        self.told.append((f"placed at {replica.address}", decision.key))

    def first_token(self, key: int) -> None:
        self.told.append(("first token", key))

    def ended(self, key: int) -> None:
        self.told.append(("ended", key))


def test_other_gateways_hear_of_both_charges_and_of_their_ends():
    steering = made({P: "prefill", D1: "decode"})
    heard = steering.ledger.listener = Heard()
    decision = decide(steering, 2000)
    key, leg = decision.key, decision.prefill.key
    assert key != leg
    steering.served(decision, by(D1), 1.0)
    steering.ledger.release(key, 2.0)
    assert heard.told == [(f"placed at {P}", leg), (f"placed at {D1}", key), ("ended", leg), ("ended", key)]


def test_with_feedback_a_pair_teaches_nothing_of_caches():
    """Engines count what came over as cached, which nobody predicted."""
    from extproc.core.ending import Ending
    from extproc.core.usage.record import Usage

    pool = Pool("chat", traits=Traits(prefill_speed=1000.0), distrust=0.8)
    for address in (P, D1):
        pool.join(address, 0.0)
    pool.handover = Handover(HandoverRules(transfer=2000.0), {P: "prefill", D1: "decode"})
    steering = Steering([pool], Rules(), Random(1))
    decision = decide(steering, 2000)
    ending = Ending()
    ending.usage = Usage(input=2000, cached=1999, output=8)
    steering.learn(decision, ending, 3.0)
    pool.tick(4.0)
    assert pool.feedback is not None
    assert not pool.feedback.scales
    assert {r.address for r in pool.replicas if pool.index.match([1, 2]).get(r.slot)} == {P, D1}


def test_what_explains_a_decision_names_who_computes_its_prompt():
    from extproc.io.explaining import explain

    steering = made({P: "prefill", D1: "decode"})
    body = orjson.dumps(chat("word " * 1600))
    told = explain(steering, body, "/v1/chat/completions", 0.0)
    assert (told["choice"], told["prefill"], told["reason"]) == (D1, P, "prefill_apart")
    short = explain(steering, orjson.dumps(chat("word")), "/v1/chat/completions", 0.0)
    assert "prefill" not in short
