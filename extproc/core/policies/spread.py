"""Headroom at the moment of a decision, and the draw by it (R1): shared by the policies that go by scores."""

from collections.abc import Sequence
from typing import Final

from extproc.core.fleet import Replica
from extproc.core.headroom import queue_penalty
from extproc.core.policies.base import Rng

#: Score of a replica that has told nothing yet: unknown is neither idle nor full.
NEUTRAL: Final = 0.5


def headrooms(replicas: Sequence[Replica]) -> list[float]:
    """Score 0..1 of each: what telemetry says, or own books where these leave less (R11).

    Books are exact at once: without them, all that comes within one scrape interval would see the same idle replica.
    """
    return [
        own if replica.occupancy and (own := _by_books(replica)) < told else told
        for replica in replicas
        for told in (NEUTRAL if replica.headroom is None else replica.headroom,)
    ]


def drawn(scores: Sequence[float], floor: float, exponent: float, rng: Rng) -> int:
    """One index, with chances as score ** exponent among scores of at least `floor`; else one of the highest (R1)."""
    weights = [score**exponent if score >= floor else 0.0 for score in scores]
    left = rng.random() * sum(weights)
    last = -1
    for i, weight in enumerate(weights):
        if weight > 0:
            last = i
            left -= weight
            if left < 0:
                return i
    if last >= 0:  # rounding left a hair over
        return last
    best = max(scores)
    ties = [i for i, score in enumerate(scores) if score == best]
    return ties[int(rng.random() * len(ties))]


def _by_books(replica: Replica) -> float:
    """The headroom score (core/headroom.py) of what is known to be on it now."""
    weights, used = replica.traits.weights, replica.occupancy
    whole = weights.kv + weights.running + weights.waiting
    if not whole:
        return 1.0
    score = weights.kv * max(1.0 - replica.context, 0.0)
    if used <= 1:
        return (score + weights.running * (1.0 - used) + weights.waiting) / whole
    score += weights.waiting * max(2.0 - used, 0.0)
    return score / whole * queue_penalty((used - 1.0) * replica.max_running)
