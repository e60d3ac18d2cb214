"""Headroom at the moment of a decision, and the draw by it (R1): shared by the policies that go by scores."""

from collections.abc import Sequence
from typing import Final

from extproc.core.fleet import Replica
from extproc.core.headroom import lean, leaned, queue_penalty
from extproc.core.policies.base import Rng

#: Score of a replica that has told nothing yet: unknown is neither idle nor full.
NEUTRAL: Final = 0.5


def headrooms(replicas: Sequence[Replica], tokens: float | None = None) -> list[float]:
    """Score 0..1 of each: what telemetry says, or own books where these leave less (R11).

    Books are exact at once: without them, all that comes within one scrape interval would see the same idle replica.
    `tokens` are those of the request, its answer included: what it needs is weighed by its length (C6).
    """
    scores = []
    for replica in replicas:
        score, leaning = NEUTRAL if replica.headroom is None else replica.headroom, replica.lean
        if replica.occupancy:
            own, own_leaning = _by_books(replica)
            if own < score:
                score, leaning = own, own_leaning
        if leaning and tokens is not None:
            score = leaned(score, leaning, tokens, replica.kv_tokens)
        scores.append(score)
    return scores


def drawn(
    scores: Sequence[float], floor: float, exponent: float, rng: Rng, bias: Sequence[float] | None = None
) -> int:
    """One index, with chances as score ** exponent among scores of at least `floor`; else one of the highest (R1).

    `bias` divides the scores, but makes none pass the floor or fail it.
    """
    weights = [score**exponent if score >= floor else 0.0 for score in scores]
    if bias is not None:
        weights = [weight / by**exponent for weight, by in zip(weights, bias, strict=True)]
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


def _by_books(replica: Replica) -> tuple[float, float]:
    """The headroom score and lean (core/headroom.py) of what is known to be on it now."""
    weights, used = replica.traits.weights, replica.occupancy
    whole = weights.kv + weights.running + weights.waiting
    if not whole:
        return 1.0, 0.0
    free_kv, free_slots = max(1.0 - replica.context, 0.0), max(1.0 - used, 0.0)
    score = weights.kv * free_kv + weights.running * free_slots
    if used <= 1:
        return (score + weights.waiting) / whole, lean(weights, free_kv, free_slots)
    penalty = queue_penalty((used - 1.0) * replica.max_running)
    score += weights.waiting * max(2.0 - used, 0.0)
    return score / whole * penalty, lean(weights, free_kv, free_slots, penalty)
