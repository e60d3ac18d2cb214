"""tiered_affinity: three tiers of the owner's headroom, dwell, hot prefixes, bounded memory."""

import random
from collections import Counter

import pytest

from extproc.core.fleet import Replica
from extproc.core.policies import make_policy
from extproc.core.policies.tiered_affinity import TieredAffinity
from tests.unit.policy_asks import ask, chat, fleet

PROMPT = chat(11, 12)


class Fixed:
    """Random numbers that are all the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def owned(*scores: float, owner: int = 0, **settings: float) -> tuple[TieredAffinity, list[Replica]]:
    """A policy where `owner` got the prefix at second 0, and the fleet with these scores since."""
    policy, replicas = TieredAffinity(**settings), fleet(*[0.0] * len(scores))
    replicas[owner].headroom = 1.0
    choice = policy.choose(ask(replicas, PROMPT), 1, Fixed(0.0))
    assert (choice.order, choice.reason) == ([owner], "new_prefix")
    for replica, score in zip(replicas, scores, strict=True):
        replica.headroom = score
    return policy, replicas


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_an_owner_with_more_than_03_gets_it_whatever_the_others_have(draw: float) -> None:
    policy, replicas = owned(0.31, 1.0, 1.0)
    choice = policy.choose(ask(replicas, PROMPT, now=9.0), 3, Fixed(draw))
    assert (choice.order[0], choice.reason) == (0, "owner")


@pytest.mark.parametrize("score", [0.15, 0.2, 0.3])
def test_an_owner_from_015_to_03_gets_70_percent_and_the_rest_is_balanced(score: float) -> None:
    policy, replicas = owned(score, 1.0, 1.0)
    rng = random.Random(5)
    seen = Counter(
        (choice.order[0], choice.reason)
        for t in range(5000)
        for choice in [policy.choose(ask(replicas, PROMPT, now=100.0 + t), 1, rng)]
    )
    kept = seen[0, "owner_busy"] / 5000
    assert kept == pytest.approx(0.7, abs=0.02)
    # the rest by headroom: each other has 1 of (2 + score ** 2)
    for other in (1, 2):
        assert seen[other, "relieved"] / 5000 == pytest.approx(0.3 / (2 + score**2), abs=0.015)
    replicas[0].headroom = 0.5  # it was never moved
    assert policy.choose(ask(replicas, PROMPT, now=9000.0), 1, rng).reason in ("owner", "new_prefix")


def test_an_owner_below_015_loses_the_prefix() -> None:
    policy, replicas = owned(0.149, 0.9, 0.0)
    choice = policy.choose(ask(replicas, PROMPT, now=30.0), 1, Fixed(0.5))
    assert (choice.order, choice.reason) == ([1], "rebound")
    replicas[0].headroom = 1.0
    assert policy.choose(ask(replicas, PROMPT, now=31.0), 1, Fixed(0.5)).order == [1]


def test_a_prefix_is_not_moved_again_within_30_seconds() -> None:
    policy, replicas = owned(0.1, 0.9, 0.0)
    early = policy.choose(ask(replicas, PROMPT, now=29.9), 1, Fixed(0.5))
    assert (early.order, early.reason) == ([1], "dwelling")  # balanced, but not bound there
    replicas[0].headroom = 0.9
    assert policy.choose(ask(replicas, PROMPT, now=29.95), 1, Fixed(0.5)).order == [0]
    replicas[0].headroom = 0.1
    assert policy.choose(ask(replicas, PROMPT, now=30.0), 1, Fixed(0.5)).reason == "rebound"
    replicas[0].headroom, replicas[1].headroom = 0.9, 0.1
    assert policy.choose(ask(replicas, PROMPT, now=59.9), 1, Fixed(0.5)).reason == "dwelling"
    assert policy.choose(ask(replicas, PROMPT, now=60.0), 1, Fixed(0.5)).reason == "rebound"


def test_an_owner_that_is_no_candidate_is_left_and_found_again_within_the_dwell() -> None:
    policy, replicas = owned(0.9, 0.9, 0.9)
    away = policy.choose(ask(replicas[1:], PROMPT, now=5.0), 1, Fixed(0.0))
    assert away.reason == "dwelling"
    assert policy.choose(ask(replicas, PROMPT, now=6.0), 1, Fixed(0.0)).order == [0]
    gone = policy.choose(ask(replicas[1:], PROMPT, now=40.0), 1, Fixed(0.0))
    assert gone.reason == "rebound"
    assert policy.choose(ask(replicas, PROMPT, now=41.0), 1, Fixed(0.0)).order == [1]


def test_above_50_requests_a_second_a_prefix_gets_a_second_owner() -> None:
    policy, replicas = owned(0.9, 0.9, 0.9, 0.9)
    rng = random.Random(6)
    # one came at second 0; 49 more at once make 50 in a second
    first = [policy.choose(ask(replicas, PROMPT), 1, rng).order[0] for _ in range(49)]
    assert set(first) == {0}
    more = [policy.choose(ask(replicas, PROMPT), 1, rng) for _ in range(50)]  # 51 to 100: two owners
    assert {choice.reason for choice in more} == {"owner_of_hot"}
    assert len({choice.order[0] for choice in more}) == 2
    most = [policy.choose(ask(replicas, PROMPT), 1, rng).order[0] for _ in range(200)]  # up to 300: all
    assert set(most) == {0, 1, 2, 3}


def test_a_prefix_that_has_cooled_goes_to_its_first_owner_again() -> None:
    policy, replicas = owned(0.9, 0.9)
    rng = random.Random(6)
    for _ in range(99):
        policy.choose(ask(replicas, PROMPT), 1, rng)
    # 100 e^-5 + 1 = 1.7 a second
    cool = [policy.choose(ask(replicas, PROMPT, now=5.0 + t), 1, rng).order[0] for t in range(20)]
    assert set(cool) == {0}


def test_of_several_owners_the_one_with_the_fewest_requests_is_taken_and_full_ones_last() -> None:
    policy, replicas = owned(0.9, 0.9)
    rng = random.Random(6)
    for _ in range(99):
        policy.choose(ask(replicas, PROMPT), 1, rng)
    replicas[0].occupancy = 0.1
    assert policy.choose(ask(replicas, PROMPT), 1, rng).order == [1]
    replicas[1].headroom = 0.2
    assert policy.choose(ask(replicas, PROMPT), 1, rng).order == [0]


def test_prompts_of_one_beginning_share_an_owner_and_others_do_not() -> None:
    policy, replicas = TieredAffinity(), fleet(*[1.0] * 8)
    rng = random.Random(8)
    same = {policy.choose(ask(replicas, chat(3, n), now=float(n)), 1, rng).order[0] for n in range(15)}
    assert len(same) == 1
    other = {policy.choose(ask(replicas, chat(100 + n), now=20.0), 1, rng).order[0] for n in range(60)}
    assert len(other) == 8


def test_what_is_remembered_is_bounded_in_number_and_time() -> None:
    policy, replicas = TieredAffinity(prefixes=50, ttl=10.0), fleet(1.0, 1.0)
    rng = random.Random(8)
    for n in range(200):
        policy.choose(ask(replicas, chat(n)), 1, rng)
    assert len(policy._bound) == 50
    assert policy.choose(ask(replicas, chat(199), now=10.0), 1, rng).reason == "owner"
    assert policy.choose(ask(replicas, chat(199), now=20.1), 1, rng).reason == "new_prefix"


def test_without_a_prompt_it_is_drawn_by_headroom() -> None:
    choice = TieredAffinity().choose(ask(fleet(0.1, 0.9)), 2, random.Random(1))
    assert (choice.order, choice.reason) == ([1, 0], "no_prompt")


@pytest.mark.parametrize(
    "settings",
    [{"high": 1.1}, {"floor": 0.4}, {"stay": -0.1}, {"dwell": -1.0}, {"hot": 0.0}, {"prefixes": 0.0}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"tiered_affinity: {next(iter(settings))} must be within"):
        make_policy("tiered_affinity", settings)
