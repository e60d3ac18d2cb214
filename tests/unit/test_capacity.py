"""The capacity believed: what shrinks it, what grows it, and what does not."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.capacity import Capacity

MIB = 1 << 20


def told(capacity: Capacity, true: float, prompts: int, seed: int = 1) -> None:
    """Prompts come back at distances that the capacity believed allows, and now and then just above."""
    rng = random.Random(seed)
    for _ in range(prompts):
        distance = rng.random() * MIB
        if distance < capacity.believed:
            (capacity.hit if distance < true else capacity.missed)(distance)
        elif distance < min(true, capacity.believed * 1.5):
            capacity.surprised()


def test_the_configured_capacity_is_believed_at_first() -> None:
    assert Capacity(MIB).believed == MIB


def test_misses_above_hits_set_it_between_them() -> None:
    capacity = Capacity(1024)
    for _ in range(5):
        capacity.hit(100)
    for _ in range(3):
        capacity.missed(600)
    assert capacity.believed == 1024  # three are few
    capacity.missed(600)
    # Steps are factors of 2 ** (1 / 4); the largest not above 600 is 512 (the next one is 608.9).
    assert capacity.believed == 512


def test_misses_without_hits_below_are_not_a_matter_of_size() -> None:
    capacity = Capacity(1024)
    for distance in (100, 200, 300, 600) * 10:
        capacity.missed(distance)
    assert capacity.believed == 1024


def test_a_few_misses_among_many_hits_move_nothing() -> None:
    capacity, rng = Capacity(MIB), random.Random(1)
    for _ in range(1000):
        distance = rng.random() * MIB
        (capacity.missed if rng.random() < 0.05 else capacity.hit)(distance)
    assert capacity.believed >= 0.8 * MIB


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
def test_a_part_of_the_capacity_is_found_within_two_hundred_prompts(share: float) -> None:
    for seed in range(10):
        capacity = Capacity(MIB)
        told(capacity, share * MIB, 200, seed)
        assert 0.6 * share * MIB < capacity.believed < 1.6 * share * MIB, seed


def test_a_cache_that_is_whole_again_is_believed_in_again() -> None:
    capacity = Capacity(MIB)
    told(capacity, MIB / 4, 500)
    assert capacity.believed < MIB / 2
    told(capacity, MIB, 1500)
    assert capacity.believed >= 0.8 * MIB


def test_how_surprising_a_miss_is_says_the_share_of_misses_among_the_nearest_prompts_above() -> None:
    capacity = Capacity(1024)
    assert capacity.surprise(10) == pytest.approx(math.log(2))  # nothing is known
    for _ in range(20):
        capacity.hit(300)
    assert capacity.surprise(10) == pytest.approx(math.log(21 / 0.5), rel=0.01)
    assert capacity.surprise(600) == pytest.approx(math.log(2))
    for _ in range(5):
        capacity.missed(10)
    # Eleven of the prompts nearest above 10 would do; only five are there, so those at 300 count too: 20 + 5.
    assert capacity.surprise(10) == pytest.approx(math.log(26 / 5.5), rel=0.05)
    assert capacity.surprise(10, [10] * 5) == pytest.approx(math.log(21 / 0.5), rel=0.1)


def test_misses_of_an_emptied_cache_are_taken_back_and_the_size_with_them() -> None:
    capacity = Capacity(1024)
    for _ in range(5):
        capacity.hit(100)
    for _ in range(4):
        capacity.missed(600)
    assert capacity.believed == 512
    assert capacity.surprise(600) == 0  # beyond what is believed nothing should be there
    capacity.pardon([600, 600, 600, 5000], 1024)
    assert capacity.believed == 1024


@given(st.lists(st.tuples(st.sampled_from("hms"), st.floats(0, 1e12)), max_size=200), st.integers(0, 10**9))
def test_it_stays_between_a_part_of_the_configured_one_and_all_of_it(
    news: list[tuple[str, float]], configured: int
) -> None:
    capacity = Capacity(configured)
    for word, distance in news:
        if word == "s":
            capacity.surprised()
        else:
            (capacity.hit if word == "h" else capacity.missed)(distance)
        assert configured // 256 <= capacity.believed <= configured


def test_weights_that_grow_are_brought_down_without_a_change() -> None:
    capacity = Capacity(MIB)
    told(capacity, MIB / 4, 20_000)
    assert 0.6 * MIB / 4 < capacity.believed < 1.6 * MIB / 4
