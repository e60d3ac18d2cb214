"""Rent or buy: a prefix is computed a second time when following it has cost as much as that would."""

import math
from random import Random

import pytest

from extproc.core.fleet import Replica
from extproc.core.policies.base import Ask
from extproc.core.policies.charged_cost import ChargedCost
from extproc.core.policies.copies import Copies
from extproc.core.prompt import Chain, Prompt
from extproc.core.traits import Traits

SPEED = 1000.0
KEY, OTHER = 7, 8


def ask(cached: list[float], loads: list[float], *, now: float = 0.0, fill: float = 0.0) -> Ask:
    """1000 tokens in ten pieces for replicas with so many seconds of prompt work ahead, in an idle pool."""
    replicas = []
    for slot, load in enumerate(loads):
        replica = Replica(f"r{slot}", slot, Traits(prefill_speed=SPEED), now)
        if load:
            replica.books.send(slot, load * SPEED, 0, now, SPEED, told=True)
        replicas.append(replica)
    chain = Chain([100 + i for i in range(10)], [400 * (i + 1) for i in range(10)])
    prompt = Prompt(dialect="t", kind="generate", chains=[chain], size=4000, token_ids=True)
    return Ask(replicas, cached, 1000.0, 0.0, 0.0, now, prompt, 0.0, 0.25, lambda _: fill)


def picks(policy: ChargedCost, asked: Ask, times: int) -> list[tuple[int, str]]:
    rng = Random(1)
    answers = [policy.choose(asked, 1, rng) for _ in range(times)]
    return [(answer.order[0], answer.reason) for answer in answers]


def test_rent_adds_up_until_it_reaches_the_price_and_then_starts_anew() -> None:
    copies = Copies()
    assert [copies.pays(KEY, 1.0, 2.5, 0.0) for _ in range(6)] == [False, False, True, False, False, True]


def test_rent_fades_to_a_third_over_a_minute() -> None:
    copies = Copies()
    assert not copies.pays(KEY, 1.0, 1.3, 0.0)
    assert not copies.pays(KEY, 0.9, 1.3, 60.0)  # 1 / e + 0.9 = 1.27
    assert copies.pays(KEY, 0.04, 1.3, 60.0)


def test_prefixes_remembered_are_bounded_and_the_oldest_goes_first() -> None:
    copies = Copies(most=2)
    for key in (1, 2, 3):
        copies.pays(key, 1.0, 9.0, 0.0)
    assert len(copies) == 2
    assert not copies.pays(1, 8.5, 9.0, 0.0)  # its 1.0 was forgotten
    assert copies.pays(3, 8.5, 9.0, 0.0)


def test_a_hot_prefix_is_copied_when_following_it_has_cost_as_much_as_a_copy() -> None:
    # 800 of 1000 tokens are on r0, which has 0.3 s ahead: 0.3 + 0.2 against 1.0 s. The copy costs 0.8 s, the rent is
    # 0.3 s each time: the third request pays 0.9 and makes it.
    got = picks(ChargedCost(), ask([800.0, 0.0], [0.3, 0.0]), 6)
    assert got == [(0, "least_cost"), (0, "least_cost"), (1, "copied")] * 2


def test_where_the_cache_is_full_a_copy_costs_what_it_throws_out_as_well() -> None:
    got = picks(ChargedCost(), ask([800.0, 0.0], [0.3, 0.0], fill=1.0), 6)  # 1.6 s: after six times 0.3
    assert [choice for choice, _ in got] == [0, 0, 0, 0, 0, 1]


def test_nothing_is_copied_while_the_holder_is_not_the_busier_one() -> None:
    assert {choice for choice, _ in picks(ChargedCost(), ask([800.0, 0.0], [0.1, 0.2]), 100)} == {0}


def test_nothing_is_copied_to_a_replica_that_has_it() -> None:
    got = picks(ChargedCost(near=0.0), ask([800.0, 800.0], [0.1, 0.2]), 100)
    assert {reason for _, reason in got} == {"least_cost"}


def test_copying_can_be_switched_off() -> None:
    got = picks(ChargedCost(copy=0.0), ask([800.0, 0.0], [0.3, 0.0]), 100)
    assert got == [(0, "least_cost")] * 100


def test_a_copy_goes_to_the_replica_that_lacks_least_for_its_load() -> None:
    # r1 lacks 400 tokens and r2 800; both are idle. Price of r1: 0.4 s.
    got = picks(ChargedCost(), ask([800.0, 400.0, 0.0], [0.3, 0.0, 0.0]), 2)
    assert got == [(0, "least_cost"), (1, "copied")]


def test_sessions_that_share_a_beginning_pay_for_it_together() -> None:
    policy = ChargedCost()
    first, second = ask([800.0, 0.0], [0.3, 0.0]), ask([800.0, 0.0], [0.3, 0.0])
    assert second.prompt is not None
    second.prompt.chains[0].hashes[1:] = [200 + i for i in range(9)]
    assert picks(policy, first, 2) == [(0, "least_cost")] * 2
    assert picks(policy, second, 1) == [(1, "copied")]


@pytest.mark.parametrize("value", [-1.0, math.nan, 1001.0])
def test_the_factor_is_bounded(value: float) -> None:
    with pytest.raises(ValueError, match="copy must be within"):
        ChargedCost(copy=value)


def test_a_copy_on_a_replica_with_nothing_to_compute_has_the_price_that_is_charged_there() -> None:
    # rho 0.5 charges 4 times, on r1 1.5 times. With 0.9 s ahead r0 costs 0.9 + 4 * 0.2 = 1.7 s, and r1, which holds
    # 100 tokens, 1.5 * 0.9 = 1.35 s. With 0.4 s ahead r0 is best (1.2 s): what r1 lacks has a price of
    # 1.35 - 0.8 = 0.55 s there, the rent is 0.4 s each time, so the second request pays it.
    def asked(ahead: float) -> Ask:
        made = ask([800.0, 100.0], [ahead, 0.0])
        made.rho = 0.5
        return made

    policy = ChargedCost(dry=0.5, decode=0.0)
    assert picks(policy, asked(0.9), 1) == [(1, "least_cost")]
    assert picks(policy, asked(0.4), 3) == [(0, "least_cost"), (1, "copied"), (0, "least_cost")]
