"""weighted_headroom: a draw among the replicas with room, the more room the likelier (R1).

chance(r) ~ (headroom(r) / bias(r)) ** exponent, for headroom(r) >= floor; when none has that much, the one with
the most. headroom(r) is for a request of this length (core/headroom.py); bias(r) is below 1 for a replica whose
cache is still to be filled and above it for one that costs more (core/bias.py).
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
        scores = headrooms(ask.replicas, ask.tokens + ask.output)
        first = drawn(scores, self.floor, self.exponent, rng, [replica.bias for replica in ask.replicas])
        costs = [1.0 - score for score in scores]
        reason = "drawn_by_headroom" if scores[first] >= self.floor else "none_with_room"
        return Choice(led_by(first, costs, picks), costs, reason, {"room": scores})
