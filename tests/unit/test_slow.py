"""Slow replicas: found against the fleet, weighted down, back by themselves."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.sample import Sample
from extproc.core.slow import Pace, judge


class Replica:
    def __init__(self) -> None:
        self.pace = Pace()
        self.seconds = self.tokens = 0.0

    def work(self, at: float, tokens: float, each: float) -> None:
        self.tokens += tokens
        self.seconds += tokens * each
        self.pace.observe(Sample(at=at, tpot_sum=self.seconds, tpot_count=self.tokens))


def fleet(paces: list[float], seconds: float = 30.0) -> list[Replica]:
    replicas = [Replica() for _ in paces]
    for step in range(int(seconds * 2)):
        for replica, each in zip(replicas, paces, strict=True):
            replica.work(step * 0.5, 20.0, each)
    judge(replicas, 0.25)
    return replicas


def test_a_replica_at_40_percent_speed_gets_40_percent() -> None:
    shares = [r.pace.share for r in fleet([0.01, 0.01, 0.01, 0.025])]
    assert shares == pytest.approx([1.0, 1.0, 1.0, 0.4])


def test_never_below_the_floor() -> None:
    assert fleet([0.01, 0.01, 0.01, 1.0])[3].pace.share == 0.25


def test_small_and_usual_differences_are_nothing() -> None:
    assert [r.pace.share for r in fleet([0.010, 0.011, 0.009, 0.012])] == [1.0] * 4
    wide = [0.005, 0.01, 0.015, 0.02, 0.025]  # a fleet that differs anyway has a wide spread
    assert [r.pace.share for r in fleet(wide)] == [1.0] * 5


def test_two_replicas_are_no_fleet() -> None:
    assert [r.pace.share for r in fleet([0.01, 0.05])] == [1.0, 1.0]


def test_it_recovers_by_itself() -> None:
    replicas = fleet([0.01, 0.01, 0.01, 0.025])
    for step in range(60, 260):
        for replica in replicas:
            replica.work(step * 0.5, 5.0, 0.01)
    judge(replicas, 0.25)
    assert replicas[3].pace.share == 1.0


def test_too_few_tokens_say_nothing() -> None:
    replicas = fleet([0.01, 0.01, 0.01])
    lazy = Replica()
    lazy.work(0.0, 0.0, 0.0)
    lazy.work(0.5, 10.0, 9.0)
    judge([*replicas, lazy], 0.25)
    assert lazy.pace.share == 1.0


def test_prompts_are_compared_where_output_is_not_told() -> None:
    replicas = [Replica() for _ in range(4)]
    for step in range(20):
        for i, replica in enumerate(replicas):
            each = 0.3 if i == 3 else 0.1
            replica.pace.observe(Sample(at=step * 0.5, prefill_sum=step * each, prefill_count=step))
    judge(replicas, 0.25)
    assert [r.pace.share for r in replicas] == pytest.approx([1.0, 1.0, 1.0, 1 / 3])


def test_unknown_is_not_fast_and_a_restart_is_not_slow() -> None:
    pace = Pace()
    pace.observe(Sample(at=0.0, tpot_sum=100.0, tpot_count=1000.0))
    pace.observe(Sample(at=1.0, tpot_sum=0.0, tpot_count=0.0))
    pace.observe(Sample(at=2.0))
    assert pace.token is None


@given(st.lists(st.floats(1e-6, 10.0), min_size=0, max_size=12), st.integers(0, 1000))
def test_shares_stay_within_floor_and_one(paces: list[float], seed: int) -> None:
    rng = random.Random(seed)
    replicas = [Replica() for _ in paces]
    for step in range(6):
        for replica, each in zip(replicas, paces, strict=True):
            replica.work(step * 0.5, rng.uniform(0, 30), each)
    judge(replicas, 0.25)
    assert all(0.25 <= r.pace.share <= 1.0 for r in replicas)
    assert sum(r.pace.share == 1.0 for r in replicas) >= len(replicas) / 2, (
        "more than half are slower than the median"
    )
