"""The headroom score, with values worked out by hand."""

from collections import deque

import pytest

from extproc.core.fleet import Replica
from extproc.core.headroom import Headroom, Parts, Weights, forecast, lean, queue_penalty, toward_kv
from extproc.core.policies.spread import NEUTRAL, headrooms
from extproc.core.sample import Sample
from extproc.core.traits import Traits


def test_the_score_is_the_weighted_mean_of_what_is_free() -> None:
    headroom = Headroom(Weights(kv=0.4, running=0.3, waiting=0.3, window=1))
    headroom.update(Sample(at=0.0, kv_used=0.5, running=16, waiting=0), max_running=64)
    # 0.4 * 0.5 + 0.3 * (1 - 16/64) + 0.3 * 1 = 0.2 + 0.225 + 0.3
    assert headroom.score == pytest.approx(0.725)


def test_an_unknown_part_leaves_the_mean_and_does_not_count_as_free() -> None:
    headroom = Headroom(Weights(window=1))
    headroom.update(Sample(at=0.0, kv_used=0.9), max_running=64)
    assert headroom.score == pytest.approx(0.1)


def test_nothing_known_is_unknown() -> None:
    headroom = Headroom(Weights())
    headroom.update(Sample(at=0.0), max_running=64)
    assert headroom.score is None


@pytest.mark.parametrize(
    ("waiting", "factor"), [(None, 1.0), (0, 1.0), (1.9, 1.0), (2, 1 / 3), (3, 0.25), (4, 0.2), (100, 0.2)]
)
def test_the_queue_penalty(waiting: float | None, factor: float) -> None:
    assert queue_penalty(waiting) == pytest.approx(factor)


def test_the_score_is_the_mean_over_the_window() -> None:
    headroom = Headroom(Weights(kv=1, running=0, waiting=0, window=2, horizon=0))
    for at, used in ((0.0, 0.0), (1.0, 0.4), (2.0, 0.6)):
        headroom.update(Sample(at=at, kv_used=used), max_running=64)
    assert headroom.score == pytest.approx((0.6 + 0.4) / 2)


def test_falling_free_kv_is_extrapolated_and_rising_is_not() -> None:
    rising = deque([(0.0, 0.2), (0.5, 0.3), (1.0, 0.4)])
    assert forecast(rising, 0.4, 3.0) == pytest.approx(1.0)  # 0.4 + 0.2/s * 3 s
    assert forecast(rising, 0.4, 1.0) == pytest.approx(0.6)
    falling = deque([(0.0, 0.4), (0.5, 0.3), (1.0, 0.2)])
    assert forecast(falling, 0.2, 3.0) == 0.2
    assert forecast(deque([(0.0, 0.2), (1.0, 0.4)]), 0.4, 3.0) == 0.4, "two samples make no forecast"


def test_the_score_stays_within_0_and_1() -> None:
    headroom = Headroom(Weights(window=1))
    headroom.update(Sample(at=0.0, kv_used=1.5, running=999, waiting=999), max_running=64)
    assert headroom.score == 0.0


def test_every_part_of_the_last_sample_is_told() -> None:
    headroom = Headroom(Weights(window=5))
    headroom.update(Sample(at=0.0, kv_used=0.25, running=16, waiting=3), max_running=64)
    assert headroom.parts == Parts(kv=0.75, running=0.75, waiting=1 - 3 / 64, penalty=0.25)
    headroom.update(Sample(at=1.0, running=64), max_running=64)
    assert headroom.parts == Parts(kv=None, running=0.0, waiting=None, penalty=1.0)


@pytest.mark.parametrize(
    ("tokens", "toward"), [(0, -1.0), (500, -1 / 3), (1000, 0.0), (3000, 0.5), (99_000, 0.98)]
)
def test_a_request_of_a_hundredth_of_the_cache_is_of_usual_length(tokens: float, toward: float) -> None:
    assert toward_kv(tokens, 100_000) == pytest.approx(toward)


def test_long_requests_weigh_free_kv_more_and_short_ones_free_slots() -> None:
    """KV 0.2 free, slots 0.9 free, no queue: 0.4 * 0.2 + 0.3 * 0.9 + 0.3 = 0.65.

    Half of the smaller weight, 0.15, moves: lean = 0.15 * (0.2 - 0.9) = -0.105.
    """
    replica = Replica("r0", 0, Traits(kv_tokens=100_000, max_running=10), 0.0)
    replica.observe(Sample(at=1.0, kv_used=0.8, running=1, waiting=0))
    assert (replica.headroom, replica.lean) == (pytest.approx(0.65), pytest.approx(-0.105))

    def score(tokens: float) -> float:
        return headrooms([replica], tokens)[0]

    assert score(1000) == pytest.approx(0.65)
    assert score(0) == pytest.approx(0.25 * 0.2 + 0.45 * 0.9 + 0.3)  # the weights of the shortest
    assert score(3000) == pytest.approx(0.65 - 0.0525)
    assert score(10**9) == pytest.approx(0.55 * 0.2 + 0.15 * 0.9 + 0.3, abs=1e-4)
    assert replica.parts.kv == pytest.approx(0.2)


def test_length_says_nothing_where_a_part_is_unknown_or_weighs_nothing() -> None:
    for weights, sample in (
        (Weights(window=1), Sample(at=0.0, kv_used=0.8, waiting=0)),
        (Weights(window=1), Sample(at=0.0, running=60, waiting=0)),
        (Weights(window=1, kv=0.0), Sample(at=0.0, kv_used=0.8, running=1)),
        (Weights(window=1, shift=0.0), Sample(at=0.0, kv_used=0.8, running=1)),
    ):
        headroom = Headroom(weights)
        headroom.update(sample, max_running=64)
        assert headroom.lean == 0.0
    unknown = Replica("r0", 0, Traits(), 0.0)
    assert headrooms([unknown], 5.0) == headrooms([unknown]) == [NEUTRAL]


def test_the_queue_penalty_takes_as_much_of_the_lean_and_the_window_smooths_it() -> None:
    weights = Weights(kv=0.5, running=0.5, waiting=0.0, window=2, horizon=0, shift=1.0)
    headroom = Headroom(weights)
    headroom.update(Sample(at=0.0, kv_used=0.0, running=10, waiting=3), max_running=10)
    assert headroom.lean == pytest.approx(0.5 * (1.0 - 0.0) * 0.25)
    headroom.update(Sample(at=1.0, kv_used=0.0, running=10, waiting=0), max_running=10)
    assert headroom.lean == pytest.approx((0.125 + 0.5) / 2)
    assert lean(weights, 0.2, 0.7) == pytest.approx(-0.25)
