"""Where each try of a request goes: the list that Envoy is told is as long as there are tries."""

from random import Random
from typing import Any

import pytest

from extproc.building import build_steering
from extproc.config import parse
from extproc.core.breaker import CLOSED
from extproc.core.decide import decide
from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.tries import destination, failed, passed_over
from tests.unit.messages import answer, chat, metadata_destination, request_body, request_headers, set_headers

A, B, C, D = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"


def told(pool: Pool, most: int, *, picks: int = 3, only: Any = ()) -> list[str]:
    decision = decide(pool, None, Ledger(), Random(1), key=1, now=1.0, picks=picks, only=only)
    return destination(decision, most).split(",")


def pool(*addresses: str) -> Pool:
    made = Pool("p", policy="round_robin")
    for address in addresses:
        made.join(address, 0.0)
    return made


def replica(made: Pool, address: str) -> Replica:
    found = made.get(address)
    assert found is not None
    return found


def test_a_lone_pick_is_named_once_for_each_try() -> None:
    assert told(pool(A), 3) == [A, A, A]


def test_two_picks_are_named_in_turn() -> None:
    first, second, *rest = told(pool(A, B), 5, picks=2)
    assert {first, second} == {A, B}
    assert rest == [first, second, first]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_list_that_is_long_enough_stays_as_the_policy_made_it(most: int) -> None:
    assert sorted(told(pool(A, B, C, D), most)) == sorted(set(told(pool(A, B, C, D), most)))
    assert len(told(pool(A, B, C, D), most)) == 3


def test_a_drained_replica_is_never_named_however_many_tries_there_are() -> None:
    made = pool(A, B)
    replica(made, B).drain("operator", 0.5)
    assert told(made, 6) == [A] * 6


def test_a_sleeping_replica_is_never_named() -> None:
    made = pool(A, B)
    made.observe(B, Sample(at=0.5, asleep=True))
    assert told(made, 3) == [A] * 3


def test_one_in_trouble_is_tried_before_the_same_replica_again() -> None:
    made = pool(A, B, C)
    replica(made, B).failed("connect", 0.5)  # a refused connection takes it out at once
    replica(made, C).drain("operator", 0.5)
    assert replica(made, B).barred == "backoff"
    assert replica(made, B).breaker.state == CLOSED
    assert told(made, 3) == [A, B, A]


def test_what_a_request_is_limited_to_limits_its_further_tries_too() -> None:
    made = pool(A, B)
    replica(made, B).failed("connect", 0.5)
    assert told(made, 3, only=[{A}]) == [A, A, A]


def test_no_candidate_is_no_destination() -> None:
    made = pool(A)
    replica(made, A).drain("operator", 0.5)
    assert told(made, 3) == [""]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", [A, A, A]),  # envoy.retries is 2
        ("envoy: {retries: 0}", [A]),
        ("envoy: {retries: 4}", [A] * 5),
        ("requests: {fallbacks: 0}", [A]),  # where one address is read, a list is none
    ],
)
def test_the_list_is_as_long_as_envoy_tries(settings: str, expected: list[str]) -> None:
    text = f"pools: [{{replicas: ['{A}', '{B}']}}]\n{settings}"
    steering = build_steering(parse(text, "test.yaml"), 0.0)
    replica(steering.pools[0], B).drain("operator", 0.0)
    exchange = Exchange(steering)
    exchange.receive(request_headers(), 0.0)
    reply = answer(exchange.receive(request_body(chat()), 0.0)[0])
    assert set_headers(reply)["x-gateway-destination-endpoint"] == ",".join(expected)
    assert metadata_destination(reply) == ",".join(expected)


@pytest.mark.parametrize(
    ("served", "attempts", "who"),
    [
        (A, 1, []),
        (B, 2, [A]),
        (C, 3, [A, B]),
        (D, 4, [A, B, C]),  # all of the list failed, and Envoy chose by itself
        (D, 6, [A, B, C]),
        (B, 1, []),  # Envoy skipped one that it does not know
        (C, 2, []),
        (A, 2, []),  # Envoy's own choice, somewhere
        (B, 3, []),
        (D, 3, []),
        (A, 4, [A]),  # A is known to Envoy, so it was tried in its turn; of B and C that is not proven
        ("", 2, []),
        ("", 4, []),
    ],
)
def test_who_failed_a_try_is_named_where_the_list_and_what_envoy_tells_agree(
    served: str, attempts: int, who: list[str]
) -> None:
    made = pool(A, B, C, D)
    decision = decide(made, None, Ledger(), Random(1), key=1, now=1.0, picks=3)
    decision.order = [replica(made, address) for address in (A, B, C)]
    assert [failing.address for failing in failed(decision, 3, served, attempts)] == who


def test_a_lone_pick_that_is_tried_three_times_failed_twice() -> None:
    decision = decide(pool(A), None, Ledger(), Random(1), key=1, now=1.0, picks=3)
    assert [failing.address for failing in failed(decision, 3, A, 3)] == [A, A]


def passing_over(made: Pool, picked: float, served: str, order: tuple[str, ...]) -> None:
    """A request whose only try went to `served`, though the list was `order`."""
    decision = decide(made, None, Ledger(), Random(1), key=1, now=picked, picks=3)
    decision.order = [replica(made, address) for address in order]
    for who in passed_over(decision, 3, served):
        who.passed_over = picked


def blamed(made: Pool, at: float, order: tuple[str, ...], served: str, attempts: int) -> list[str]:
    decision = decide(made, None, Ledger(), Random(1), key=1, now=at, picks=3)
    decision.order = [replica(made, address) for address in order]
    return [failing.address for failing in failed(decision, len(order), served, attempts)]


def test_a_lone_pick_that_envoy_passes_over_is_not_blamed_for_its_own_choice() -> None:
    made = pool(A, B, C)
    assert blamed(made, 1.0, (A,), C, 2) == [A], "nothing speaks against Envoy's having tried it"
    passing_over(made, 1.0, B, (A, A, A))
    assert blamed(made, 2.0, (A,), C, 2) == []
    assert blamed(made, 2.0, (B,), C, 2) == [B]


def test_who_comes_after_one_that_is_passed_over_is_blamed_in_its_place() -> None:
    made = pool(A, B, C)
    passing_over(made, 1.0, B, (A, B, C))
    assert blamed(made, 2.0, (A, B, C), C, 2) == [B]
    assert blamed(made, 2.0, (A, B, A), B, 2) == [B], "it failed, and Envoy's own choice was the same"
    assert blamed(made, 2.0, (B, A, C), C, 2) == [B]
    assert blamed(made, 2.0, (B, A, C), A, 2) == []


@pytest.mark.parametrize(
    ("answered", "at", "who"), [(1.5, 2.0, [A]), (0.5, 2.0, []), (0.5, 60.9, []), (0.5, 61.0, [A])]
)
def test_it_is_taken_for_known_when_it_answered_since_or_after_a_minute(
    answered: float, at: float, who: list[str]
) -> None:
    made = pool(A, B, C)
    passing_over(made, 1.0, B, (A, B, C))
    replica(made, A).breaker.went_well(200, answered, 1.9)
    assert blamed(made, at, (A, B, C), B, 2) == who
