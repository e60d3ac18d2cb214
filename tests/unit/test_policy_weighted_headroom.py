"""weighted_headroom: chances as headroom ** exponent, among those at or above the floor."""

import math
import random
from collections import Counter

import pytest

from extproc.core.fleet import Replica
from extproc.core.policies import make_policy
from extproc.core.policies.spread import drawn, headrooms
from extproc.core.policies.weighted_headroom import WeightedHeadroom
from tests.unit.policy_asks import ask, fleet, send

DRAWS = 1000


class Die(random.Random):
    """Falls as it is told."""

    value = 0.0

    def random(self) -> float:
        return self.value


def picks(replicas: list[Replica], policy: WeightedHeadroom) -> Counter[int]:
    """How often each is drawn by numbers spread evenly from 0 to 1: as its chance says, to one draw."""
    die, picked = Die(), Counter[int]()
    for number in range(DRAWS):
        die.value = (number + 0.5) / DRAWS
        picked[policy.choose(ask(replicas), 1, die).order[0]] += 1
    return picked


def shares(*scores: float | None, **settings: float) -> list[float]:
    picked = picks(fleet(*scores), WeightedHeadroom(**settings))
    return [picked[i] / DRAWS for i in range(len(scores))]


@pytest.mark.parametrize(
    ("scores", "settings", "expected"),
    [
        ([0.6, 0.3], {}, [0.8, 0.2]),  # 0.36 : 0.09
        ([0.6, 0.3, 0.149], {}, [0.8, 0.2, 0.0]),  # the third is below the floor
        ([0.45, 0.15], {}, [0.9, 0.1]),  # 0.2025 : 0.0225; the floor itself is in
        ([0.6, 0.3], {"exponent": 1.0}, [2 / 3, 1 / 3]),
        ([0.6, 0.3], {"exponent": 0.0}, [0.5, 0.5]),
        ([1.0, None], {}, [0.8, 0.2]),  # unknown is 0.5, not 1: 1 : 0.25
        ([0.1, 0.14, 0.05], {}, [0.0, 1.0, 0.0]),  # none qualifies: the highest
        ([0.1, 0.1, 0.05], {}, [0.5, 0.5, 0.0]),  # and its equals
        ([0.0, 0.0], {}, [0.5, 0.5]),
        ([0.4, 0.2], {"floor": 0.3}, [1.0, 0.0]),
    ],
)
def test_chances_are_the_scores_to_the_exponent(
    scores: list[float | None], settings: dict[str, float], expected: list[float]
) -> None:
    assert shares(*scores, **settings) == pytest.approx(expected, abs=0.0011)


def test_the_roomiest_others_are_the_fallbacks() -> None:
    choice = WeightedHeadroom(floor=0.85).choose(ask(fleet(0.2, 0.9, 0.4, 0.6)), 3, random.Random(1))
    assert choice.order == [1, 3, 2]
    assert choice.scores == pytest.approx([0.8, 0.1, 0.6, 0.4])  # lower is better
    assert choice.reason == "drawn_by_headroom"
    assert WeightedHeadroom().choose(ask(fleet(0.1)), 3, random.Random(1)).reason == "none_with_room"


def test_what_was_sent_since_the_sample_lowers_the_score() -> None:
    replicas = fleet(1.0, 1.0, None, 0.3)
    send(replicas[0], requests=5, tokens=5000)
    send(replicas[2], requests=1)
    send(replicas[3], requests=5, tokens=5000)
    # kv 0.4 * (1 - 25,000 / 100,000) + running 0.3 * (1 - 5 / 10) + waiting 0.3 * 1 = 0.3 + 0.15 + 0.3
    assert headrooms(replicas) == pytest.approx([0.75, 1.0, 0.5, 0.3])


def test_more_than_the_slots_count_as_a_queue() -> None:
    replicas = fleet(1.0, 1.0)
    send(replicas[0], requests=11)  # 1 waits: 0.4 + 0 + 0.3 * (1 - 1 / 10) = 0.67; below 2, no penalty
    send(replicas[1], requests=13)  # 3 wait: (0.4 + 0.3 * (1 - 3 / 10)) / (1 + 3) = 0.61 / 4
    assert headrooms(replicas) == pytest.approx([0.67, 0.1525])


@pytest.mark.parametrize(
    ("point", "index"), [(0.0, 0), (0.19, 0), (0.21, 2), (0.99, 2), (math.nextafter(1.0, 0.0), 2)]
)
def test_a_draw_is_a_point_on_the_line_of_weights(point: float, index: int) -> None:
    class Fixed:
        def random(self) -> float:
            return point

    assert drawn([0.3, 0.1, 0.6, 0.0], 0.15, 2.0, Fixed()) == index  # 0.09 and 0.36: a fifth and the rest


@pytest.mark.parametrize(
    "settings", [{"floor": -0.1}, {"floor": 1.1}, {"exponent": -1.0}, {"exponent": math.nan}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"weighted_headroom: {next(iter(settings))} must be within"):
        make_policy("weighted_headroom", settings)


def test_a_bias_changes_the_chances_of_those_with_room_and_lets_nobody_in() -> None:
    replicas = fleet(0.6, 0.6, 0.1)
    for replica, bias in zip(replicas, (1.0, 2.0, 0.1), strict=True):
        replica.bias = bias
    picked = picks(replicas, WeightedHeadroom())
    assert picked[0] / DRAWS == pytest.approx(0.8, abs=0.0011)  # 0.6 ** 2 against 0.3 ** 2
    assert picked[2] == 0


def test_a_request_is_weighed_by_its_length_against_samples_and_books() -> None:
    replicas = fleet(0.5, 1.0)  # 100,000 tokens of KV: 1,000 are usual, 3,000 are half of the way to KV
    replicas[0].lean = -0.1
    send(replicas[1], requests=5, tokens=5000)  # 0.75; free KV 0.75, free slots 0.5: 0.15 * 0.25 = 0.0375
    assert headrooms(replicas, 1000) == pytest.approx([0.5, 0.75])
    assert headrooms(replicas, 3000) == pytest.approx([0.45, 0.75 + 0.01875])
    assert headrooms(replicas, 0) == pytest.approx([0.6, 0.75 - 0.0375])
    choice = WeightedHeadroom().choose(ask(replicas, output=2000.0), 1, random.Random(1))  # 1,000 and 2,000
    assert choice.parts["room"] == pytest.approx([0.45, 0.76875])
    replicas[0].lean = -0.9
    assert headrooms(replicas, 10**9)[0] == 0.0
