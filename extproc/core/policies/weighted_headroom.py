"""weighted_headroom: a draw among the replicas with room, the more room the likelier (R1).

chance(r) ~ headroom(r) ** exponent, for headroom(r) >= floor; when none has that much, the one with the most.
"""

from dataclasses import dataclass

from extproc.core.policies.base import Ask, Choice, Rng, check_range, led_by
from extproc.core.policies.spread import drawn, headrooms


@dataclass(slots=True)
class WeightedHeadroom:
    """`floor`: least score 0..1 that is drawn from; `exponent` of the chances: 0 makes them equal."""

    floor: float = 0.15
    exponent: float = 2.0

    def __post_init__(self) -> None:
        check_range("weighted_headroom", "floor", self.floor, 0, 1)
        check_range("weighted_headroom", "exponent", self.exponent, 0, 100)

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """One drawn by headroom; the roomiest others are the fallbacks."""
        scores = headrooms(ask.replicas)
        first = drawn(scores, self.floor, self.exponent, rng)
        costs = [1.0 - score for score in scores]
        reason = "drawn_by_headroom" if scores[first] >= self.floor else "none_with_room"
        return Choice(led_by(first, costs, picks), costs, reason, {"room": scores})
