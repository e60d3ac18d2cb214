"""The headroom score, with values worked out by hand."""

from collections import deque

import pytest

from extproc.core.headroom import Headroom, Weights, forecast, queue_penalty
from extproc.core.sample import Sample


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
