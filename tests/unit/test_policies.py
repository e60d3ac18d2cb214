"""Every policy by a table whose scores can be worked out by hand."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decide import _is_sound
from extproc.core.fleet import Replica
from extproc.core.policies import POLICIES, Ask, check_policy, make_policy
from extproc.core.policies.base import led_by, lowest
from extproc.core.policies.charged_cost import ChargedCost
from extproc.core.sample import Sample
from extproc.core.traits import Traits


def fleet(count: int) -> list[Replica]:
    traits = Traits(prefill_speed=1000.0, decode_speed=1000.0, max_running=10, kv_tokens=100_000)
    return [Replica(f"10.0.0.{i + 1}:8000", i, traits, 0.0) for i in range(count)]


def ask(
    replicas: list[Replica], cached: list[float] | None = None, tokens: float = 1000, rho: float = 0.0
) -> Ask:
    return Ask(replicas, cached or [0.0] * len(replicas), tokens, 100.0, rho, 0.0)


def send(replica: Replica, tokens: int, key: int = 1) -> None:
    replica.books.send(key, tokens, tokens, 0.0, replica.prefill_speed)
    replica.recount()


def test_charged_cost_weighs_a_warm_cache_against_the_wait_for_it() -> None:
    replicas = fleet(2)
    send(replicas[0], 500)  # 0.5 s ahead, but 800 of 1000 tokens are warm there
    choice = ChargedCost(decode=0.0).choose(ask(replicas, [800.0, 0.0]), 2, random.Random(1))
    assert choice.scores == pytest.approx([0.5 + 0.2, 1.0])
    assert choice.order == [0, 1]
    send(replicas[0], 400, key=2)  # 0.9 s ahead: now the wait costs more than the cache saves
    choice = ChargedCost(decode=0.0).choose(ask(replicas, [800.0, 0.0]), 2, random.Random(1))
    assert choice.scores == pytest.approx([0.9 + 0.2, 1.0])
    assert choice.order == [1, 0]


def test_a_busy_pool_charges_uncached_work_more() -> None:
    replicas = fleet(2)
    send(replicas[0], 900)
    busy = ask(replicas, [800.0, 0.0], rho=0.5)  # w = 3 * 0.5 / 0.5 = 3
    choice = ChargedCost(decode=0.0).choose(busy, 1, random.Random(1))
    assert choice.scores == pytest.approx([0.9 + 4 * 0.2, 4 * 1.0])
    assert choice.order == [0]


def test_a_replica_with_nothing_to_compute_charges_no_more_than_dry() -> None:
    replicas = fleet(2)
    send(replicas[0], 900)
    busy = ask(replicas, [800.0, 0.0], rho=0.5)  # w = 3, on the second at most 0.5
    choice = ChargedCost(decode=0.0, dry=0.5).choose(busy, 1, random.Random(1))
    assert choice.scores == pytest.approx([0.9 + 4 * 0.2, 1.5 * 1.0])
    assert choice.order == [1]


def test_a_replica_whose_first_token_is_missing_is_not_dry_whatever_the_clock_says() -> None:
    replicas = fleet(1)
    replicas[0].books.send(1, 100, 100, 0.0, 1000.0, told=True)
    late = Ask(replicas, [0.0], 1000, 100.0, 0.5, 5.0)  # five seconds later: no work left by the clock
    assert ChargedCost(decode=0.0, dry=0.0).choose(late, 1, random.Random(1)).scores == pytest.approx([4.0])
    replicas[0].books.prompt_done(1, 5.0)
    assert ChargedCost(decode=0.0, dry=0.0).choose(late, 1, random.Random(1)).scores == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("rho", "weight"), [(0.0, 0.0), (0.5, 3.0), (0.8, 12.0), (0.9, 20.0), (1.0, 20.0), (7.0, 20.0)]
)
def test_the_charge_grows_with_load_and_is_capped(rho: float, weight: float) -> None:
    assert ChargedCost().weight(rho) == pytest.approx(weight)


def test_charged_cost_adds_decode_pressure_a_full_batch_and_kv_above_80_percent() -> None:
    replicas = fleet(3)
    replicas[1].observe(Sample(at=0.0, running=12, waiting=0, kv_used=0.1))
    replicas[2].observe(Sample(at=0.0, running=0, waiting=0, kv_used=0.9))
    choice = ChargedCost(decode=0.1, kv=1.0).choose(ask(replicas, tokens=0), 1, random.Random(1))
    # full batch: (12 + 1 - 10) others of 100 tokens at 1000/s; KV: (0.9 - 0.8) / 0.2
    assert choice.scores == pytest.approx([0.0, 0.3, 0.5])


def test_charged_cost_charges_the_context_on_a_replica_and_less_of_it_the_busier_the_pool() -> None:
    replicas = fleet(2)
    replicas[1].context = 0.5  # its sequences hold half as many tokens as its KV cache
    policy = ChargedCost(decode=8.0)
    assert policy.pressures(replicas, 100, 0.0) == [0.0, 4.0]
    assert policy.pressures(replicas, 100, 0.75) == [0.0, 0.25]  # 4 * (1 - 0.75) ** 2
    assert policy.pressures(replicas, 100, 1.5) == [0.0, 0.0]


def test_round_robin_takes_turns() -> None:
    replicas, policy, rng = fleet(3), make_policy("round_robin", {}), random.Random(5)
    turns = [policy.choose(ask(replicas), 3, rng).order for _ in range(6)]
    first = [order[0] for order in turns]
    assert first[:3] == first[3:]
    assert sorted(first[:3]) == [0, 1, 2]
    assert turns[0] == [first[0], (first[0] + 1) % 3, (first[0] + 2) % 3]


def test_least_request_and_least_tokens_see_own_books_at_once() -> None:
    replicas = fleet(3)
    send(replicas[0], 10)
    send(replicas[1], 5000)
    send(replicas[1], 5000, key=2)
    send(replicas[2], 50)
    assert make_policy("least_tokens", {}).choose(ask(replicas), 3, random.Random(1)).order == [0, 2, 1]
    assert make_policy("least_request", {}).choose(ask(replicas), 3, random.Random(1)).order[2] == 1


def test_least_request_sees_what_others_sent() -> None:
    replicas = fleet(2)
    replicas[0].observe(Sample(at=0.0, running=3, waiting=1))
    assert make_policy("least_request", {}).choose(ask(replicas), 1, random.Random(1)).order == [1]


def test_power_of_two_never_takes_the_worst_of_three() -> None:
    replicas, rng = fleet(3), random.Random(1)
    for key in range(5):
        send(replicas[2], 10, key)
    picked = Counter(
        make_policy("power_of_two", {}).choose(ask(replicas), 1, rng).order[0] for _ in range(300)
    )
    assert picked[2] == 0
    assert picked[0] > 50
    assert picked[1] > 50


def test_random_is_even() -> None:
    replicas, rng, policy = fleet(4), random.Random(2), make_policy("random", {})
    picked = Counter(policy.choose(ask(replicas), 1, rng).order[0] for _ in range(4000))
    assert all(850 < picked[i] < 1150 for i in range(4)), picked


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_names_distinct_candidates_and_takes_a_fleet_of_one(name: str) -> None:
    rng = random.Random(3)
    for count in (1, 2, 5):
        for picks in (1, 3, 5):
            choice = make_policy(name, {}).choose(ask(fleet(count)), picks, rng)
            assert len(choice.order) == len(set(choice.order)) == min(picks, count)
            assert all(0 <= i < count for i in choice.order)
            assert _is_sound(choice, count)


@pytest.mark.parametrize("name", ["charged_cost", "least_request", "least_tokens", "power_of_two", "random"])
def test_serial_light_traffic_does_not_pile_on_one_replica(name: str) -> None:
    replicas, rng, policy = fleet(8), random.Random(4), make_policy(name, {})
    picked = Counter(policy.choose(ask(replicas), 3, rng).order[0] for _ in range(800))
    assert max(picked.values()) < 800 * 0.25, picked


def test_ties_and_near_ties_are_broken_at_random_and_the_rest_in_order() -> None:
    rng = random.Random(1)
    firsts = Counter(lowest([1.0, 1.001, 5.0, 2.0], 3, rng, near=0.002)[0] for _ in range(200))
    assert set(firsts) == {0, 1}
    assert lowest([3.0, 1.0, 2.0], 3, rng) == [1, 2, 0]


def test_unknown_policies_and_settings_are_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"there is no policy 'best'; known: .*charged_cost"):
        check_policy("best", {})
    with pytest.raises(
        ValueError, match="'charged_cost' has no setting 'gian'; it has: copy, decode, dry, gain"
    ):
        check_policy("charged_cost", {"gian": 1.0})
    with pytest.raises(ValueError, match="gain must be within"):
        check_policy("charged_cost", {"gain": -1.0})


@given(
    st.lists(st.sampled_from([0.0, 0.001, 1.0, 1.5, 2.0]), min_size=1, max_size=20),
    st.integers(1, 4),
    st.data(),
)
def test_picks_go_up_in_score_then_in_place_whoever_leads(scores: list[float], picks: int, data: Any) -> None:
    first = data.draw(st.integers(0, len(scores) - 1))
    others = sorted((score, i) for i, score in enumerate(scores) if i != first)
    wanted = [first, *(i for _, i in others)][:picks]
    assert led_by(first, scores, picks) == wanted
    chosen = lowest(scores, picks, random.Random(1), near=0.002)
    assert scores[chosen[0]] <= min(scores) + 0.002
    assert chosen == led_by(chosen[0], scores, picks)
