"""Slow replicas: found against the fleet, weighted down, back by themselves, and steady in thin traffic."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.sample import Sample
from extproc.core.slow import Pace, judge

FLOOR = 0.25


class Replica:
    def __init__(self) -> None:
        self.pace = Pace()
        self.seconds = self.tokens = 0.0

    def work(self, at: float, tokens: float, each: float) -> None:
        self.tokens += tokens
        self.seconds += tokens * each
        self.pace.observe(Sample(at=at, tpot_sum=self.seconds, tpot_count=self.tokens))


class Fleet:
    """Replicas that are scraped twice a second and judged once a second."""

    def __init__(self, count: int) -> None:
        self.replicas = [Replica() for _ in range(count)]
        self.now = 0.0
        self.seen: list[list[float]] = []

    def run(self, seconds: float, paces: list[float], tokens: float = 20.0) -> list[float]:
        """Every scrape shows so many tokens of each; the shares at the end."""
        for step in range(int(seconds * 2)):
            self.now += 0.5
            for replica, each in zip(self.replicas, paces, strict=True):
                replica.work(self.now, tokens, each)
            if step % 2:
                self.judge()
        return self.shares

    def judge(self) -> None:
        judge(self.replicas, FLOOR)
        self.seen.append(self.shares)

    @property
    def shares(self) -> list[float]:
        return [replica.pace.share for replica in self.replicas]


def test_a_replica_at_40_percent_speed_gets_40_percent() -> None:
    assert Fleet(4).run(30, [0.01, 0.01, 0.01, 0.025]) == pytest.approx([1.0, 1.0, 1.0, 0.4])


def test_the_share_falls_by_a_third_of_what_is_left_at_every_judgement() -> None:
    fleet = Fleet(4)
    fleet.run(8, [0.01, 0.01, 0.01, 0.025])
    # five scrapes of the same weight are needed: the sixth sample is at 3 s, and decay makes them a little less than
    # five, so the first judgement that knows is at 4 s: 1 - 0.6 / 3 = 0.8, then 0.8 - 0.4 / 3, ...
    shares = [seen[3] for seen in fleet.seen]
    assert shares[:3] == [1.0, 1.0, 1.0]
    assert shares[3:6] == pytest.approx([0.8, 0.8 - 0.4 / 3, 2 / 3 - 0.8 / 9])


def test_never_below_the_floor() -> None:
    assert Fleet(4).run(60, [0.01, 0.01, 0.01, 1.0])[3] == FLOOR


def test_small_and_usual_differences_are_nothing() -> None:
    assert Fleet(4).run(30, [0.010, 0.011, 0.009, 0.012]) == [1.0] * 4
    wide = [0.005, 0.01, 0.015, 0.02, 0.025]  # a fleet that differs anyway has a wide spread
    assert Fleet(5).run(30, wide) == [1.0] * 5


def test_two_replicas_are_no_fleet() -> None:
    assert Fleet(2).run(30, [0.01, 0.05]) == [1.0, 1.0]


def test_it_is_back_within_two_minutes_though_it_gets_little_to_do() -> None:
    fleet = Fleet(4)
    fleet.run(60, [0.01, 0.01, 0.01, 0.025])
    took = 0.0
    while fleet.shares[3] < 1.0:
        fleet.run(1, [0.01] * 4, tokens=4)
        took += 1
        assert took <= 120, f"share {fleet.shares[3]}"
    # Of 20 tokens a scrape at 25 ms and then 4 at 10 ms the mean is below 10 + 0.6 * 2.5 = 11.5 ms when the old ones'
    # weight is a ninth of the new ones': 5 * 2 ** (-t / 15) = (1 - 2 ** (-t / 15)) / 9, at t = 83 s; then 11 steps.
    assert 83 <= took <= 96


def test_a_pace_between_the_two_limits_leaves_things_as_they_are() -> None:
    # the limit is 12.5 ms, it stays slow down to 11.5 ms: at 12 ms neither a new finding nor an acquittal
    paces = [0.01, 0.01, 0.01, 0.012]
    fresh = Fleet(4)
    assert fresh.run(120, paces)[3] == 1.0
    found = Fleet(4)
    found.run(60, [0.01, 0.01, 0.01, 0.025])
    assert found.run(120, paces)[3] == pytest.approx(1 / 1.2, abs=0.01)


def test_too_few_tokens_say_nothing() -> None:
    fleet = Fleet(3)
    fleet.run(30, [0.01] * 3)
    lazy = Replica()
    lazy.work(0.0, 0.0, 0.0)
    lazy.work(0.5, 10.0, 9.0)
    judge([*fleet.replicas, lazy], FLOOR)
    assert lazy.pace.share == 1.0


def test_many_late_tokens_of_one_scrape_are_one_observation() -> None:
    replica = Replica()
    for step in range(20):  # one token a scrape, and once 500 that a long prompt held up
        replica.work(step * 0.5, 500.0 if step == 10 else 1.0, 0.2 if step == 10 else 0.01)
    assert replica.pace.token is None


def test_a_single_late_scrape_among_a_few_is_chance() -> None:
    fleet = Fleet(4)
    for second in range(40):
        fleet.now += 1.0
        for i, replica in enumerate(fleet.replicas):
            late = (
                i == 3 and second % 8 == 7
            )  # one in eight takes ten times as long: 21 ms on average, above 12.5
            replica.work(fleet.now, 10.0, 0.1 if late else 0.01)
        fleet.judge()
    assert {seen[3] for seen in fleet.seen} == {1.0}


def test_in_thin_traffic_shares_do_not_jump() -> None:
    """Four equal replicas, a request of eight tokens every four seconds somewhere; a third of them are held up."""
    rng, fleet = random.Random(5), Fleet(4)
    for second in range(1200):
        fleet.now += 1.0
        busy = rng.randrange(16)
        for i, replica in enumerate(fleet.replicas):
            replica.work(fleet.now, 8.0 if i == busy else 0.0, rng.choice([0.01, 0.01, 0.05]))
        fleet.judge()
        assert len(fleet.seen) == second + 1
    changes = [
        abs(a - b)
        for old, new in zip(fleet.seen, fleet.seen[1:], strict=False)
        for a, b in zip(old, new, strict=True)
    ]
    assert max(changes) <= 0.25, "a share jumped"
    assert min(min(seen) for seen in fleet.seen) == 1.0, "an equal replica was called slow"


def test_of_a_slow_replica_that_nobody_sees_any_more_the_share_grows_back() -> None:
    fleet = Fleet(4)
    fleet.run(60, [0.01, 0.01, 0.01, 0.025])
    for second in range(200):  # noqa: B007 - read after the loop
        fleet.now += 1.0
        for replica in fleet.replicas[:3]:
            replica.work(fleet.now, 20.0, 0.01)
        fleet.replicas[3].work(fleet.now, 0.0, 0.0)
        fleet.judge()
        if fleet.shares[3] == 1.0:
            break
    # its 60 s of 20 tokens every half second sum to some 800 decayed; below 30 after 15 * log2(800 / 30) = 71 s,
    # then 0.6 * 60 = 36 judgements
    assert second == pytest.approx(71 + 36, abs=4)
    assert not fleet.replicas[3].pace.slow


def test_prompts_are_compared_where_output_is_not_told() -> None:
    replicas = [Replica() for _ in range(4)]
    for step in range(60):
        for i, replica in enumerate(replicas):
            each = 0.3 if i == 3 else 0.1
            replica.pace.observe(Sample(at=step * 0.5, prefill_sum=step * each, prefill_count=step))
        judge(replicas, FLOOR)
    assert [r.pace.share for r in replicas] == pytest.approx([1.0, 1.0, 1.0, 1 / 3], abs=0.011)


def test_unknown_is_not_fast_and_a_restart_is_not_slow() -> None:
    pace = Pace()
    pace.observe(Sample(at=0.0, tpot_sum=100.0, tpot_count=1000.0))
    pace.observe(Sample(at=1.0, tpot_sum=0.0, tpot_count=0.0))
    pace.observe(Sample(at=2.0))
    assert pace.token is None


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -5.0, 1e300])
def test_garbage_counters_are_passed_over(garbage: float) -> None:
    pace = Pace()
    for step in range(40):
        pace.observe(Sample(at=step * 0.5, tpot_sum=step * 0.2, tpot_count=step * 20.0))
    pace.observe(Sample(at=20.0, tpot_sum=garbage, tpot_count=garbage))
    pace.observe(Sample(at=20.5, tpot_sum=8.2, tpot_count=820.0))
    judge([Replica(), Replica()], FLOOR)
    known = pace.token
    assert known is None or (math.isfinite(known[0]) and known[0] <= 1.01)


@given(st.lists(st.floats(1e-6, 10.0), min_size=0, max_size=12), st.integers(0, 1000))
def test_shares_stay_within_floor_and_one(paces: list[float], seed: int) -> None:
    rng = random.Random(seed)
    replicas = [Replica() for _ in paces]
    for step in range(12):
        for replica, each in zip(replicas, paces, strict=True):
            replica.work(step * 0.5, rng.uniform(0, 30), each)
        judge(replicas, FLOOR)
    assert all(FLOOR <= r.pace.share <= 1.0 for r in replicas)
    known = [r for r in replicas if r.pace.token is not None]
    assert sum(r.pace.slow for r in known) <= len(known) / 2, "more than half are slower than the median"
