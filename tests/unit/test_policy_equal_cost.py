"""equal_cost: queue + prefill + decode + KV penalty + slow penalty, in seconds."""

import math
import random
from collections import Counter

import pytest

from extproc.core.policies import Ask, make_policy
from extproc.core.policies.equal_cost import EqualCost
from extproc.core.traits import Traits
from tests.unit.policy_asks import ask, fleet, send


def test_an_idle_replica_costs_its_prefill_and_its_decode() -> None:
    choice = EqualCost().choose(ask(fleet(None, None), cached=[0.0, 800.0]), 2, random.Random(1))
    # 1,000 or 200 tokens at 1,000/s; 100 output tokens at 1,000/s
    assert choice.scores == pytest.approx([1.0 + 0.1, 0.2 + 0.1])
    assert choice.order == [1, 0]
    assert choice.reason == "least_time"


def test_every_part_is_told_and_the_parts_add_up() -> None:
    replicas = fleet(None, None, None)
    send(replicas[0], requests=1, work=500)
    send(replicas[1], requests=11)
    send(replicas[2], requests=1, tokens=90_000)
    choice = EqualCost().choose(ask(replicas), 3, random.Random(1))
    # queue: 0.5 s ahead; (11 + 1 - 10) others of 100 tokens at 1,000/s
    assert choice.parts["queue"] == pytest.approx([0.5, 0.2, 0.0])
    assert choice.parts["prefill"] == pytest.approx([1.0, 1.0, 1.0])
    # decode: 2 share, 10 share (no more run at once), 2 share
    assert choice.parts["decode"] == pytest.approx([0.2, 1.0, 0.2])
    # kv: (0.9 - 0.8) / 0.2
    assert choice.parts["kv"] == pytest.approx([0.0, 0.0, 0.5])
    assert choice.parts["slow"] == [0.0, 0.0, 0.0]
    assert choice.scores == pytest.approx([1.7, 2.2, 1.7])
    assert choice.order[2] == 1


def test_a_replica_slower_than_the_fleet_pays_for_its_decode_too() -> None:
    replicas = fleet(None, None, None)
    replicas[1].prefill_speed = 500.0  # as learned; the median is 1,000
    choice = EqualCost(slow=3.0).choose(ask(replicas), 3, random.Random(1))
    assert choice.parts["prefill"] == pytest.approx([1.0, 2.0, 1.0])
    assert choice.parts["slow"] == pytest.approx([0.0, 3.0 * (1000 / 500 - 1) * 0.1, 0.0])
    assert choice.order[2] == 1


def test_output_tokens_weigh_by_how_many_share_the_decode_speed() -> None:
    replicas = fleet(None, None)
    send(replicas[0], requests=4)
    long = EqualCost().choose(ask(replicas, cached=[1000.0, 0.0], output=500.0), 1, random.Random(1))
    assert long.scores == pytest.approx([500 * 5 / 1000, 1.0 + 500 / 1000])
    assert long.order == [1]
    short = EqualCost().choose(ask(replicas, cached=[1000.0, 0.0], output=100.0), 1, random.Random(1))
    assert short.scores == pytest.approx([100 * 5 / 1000, 1.0 + 100 / 1000])
    assert short.order == [0]


def test_tokens_further_in_cost_more() -> None:
    question = Ask(fleet(None, None), [0.0, 500.0], 1000.0, 0.0, 0.0, 0.0, None, 0.5 / 1000.0)
    choice = EqualCost().choose(question, 1, random.Random(1))
    # 1000 * (1 + 1000 / 2000), and 500 * (1 + 1500 / 2000), at 1,000/s
    assert choice.scores == pytest.approx([1.5, 0.875])


def test_the_kv_penalty_begins_above_80_percent_and_is_whole_at_100() -> None:
    traits = Traits(prefill_speed=1000.0, decode_speed=1000.0, max_running=10, kv_tokens=1000)
    replicas = fleet(*[None] * 3, traits=traits)
    for replica, tokens in zip(replicas, (800, 900, 1000), strict=True):
        send(replica, tokens=tokens)
    choice = EqualCost(kv=4.0).choose(ask(replicas), 1, random.Random(1))
    assert choice.parts["kv"] == pytest.approx([0.0, 2.0, 4.0])


def test_near_ties_are_broken_at_random() -> None:
    replicas, rng = fleet(*[None] * 4), random.Random(3)
    question = ask(replicas, cached=[0.0, 1.5, 1.9, 500.0])
    assert EqualCost().choose(question, 1, rng).order == [3]
    question = ask(replicas, cached=[0.0, 1.5, 1.9, 2.1])  # 2.1 ms apart from the first, near is 2 ms
    picked = Counter(EqualCost().choose(question, 1, rng).order[0] for _ in range(300))
    assert set(picked) == {1, 2, 3}


@pytest.mark.parametrize("settings", [{"kv": -1.0}, {"slow": 1001.0}, {"near": math.nan}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"equal_cost: {next(iter(settings))} must be within"):
        make_policy("equal_cost", settings)


def test_what_is_seen_of_its_output_already_is_not_charged_twice() -> None:
    replicas = fleet(None, None, None)
    replicas[1].prefill_speed, replicas[1].decode_speed = (
        400.0,
        500.0,
    )  # 2.5 and 2 times slower than the median
    choice = EqualCost().choose(ask(replicas), 3, random.Random(1))
    assert choice.parts["decode"] == pytest.approx([0.1, 0.2, 0.1])
    assert choice.parts["slow"] == pytest.approx([0.0, (2.5 / 2 - 1) * 0.2, 0.0])


def test_the_bias_of_a_replica_multiplies_its_time() -> None:
    replicas = fleet(None, None)
    for replica, cost in zip(replicas, (1.5, 0.7), strict=True):
        replica.cost = replica.bias = cost
    choice = EqualCost().choose(ask(replicas), 2, random.Random(1))
    assert choice.scores == pytest.approx([1.1 * 1.5, 1.1 * 0.7])
    assert choice.order == [1, 0]
