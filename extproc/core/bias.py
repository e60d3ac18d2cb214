"""A factor on what a replica is expected to cost: below 1 it is favoured, above 1 avoided, 1 is neutral.

    bias = cost * (1 - favour * empty * young)

    cost    what the operator says a second of this replica costs, against the others (P6): 1 unless set; times what
            a metric says of it, where the pool names one (P2, P6)
    empty   share of its cache that was never filled: 1 - tokens computed since it started / KV capacity, 0..1
    young   1 - age / span, 0..1: nothing is left of the favour after `span` (L3)

A new replica holds no prefix, so a rule that sends prompts to where they are cached never sends it any, and it stays
cold. The favour gets it the prompts for which others are only a little better; it must not get those that would be
much work to compute again. With favour 0.1 an empty replica wins against one that would take 90 % of its time. More
is not better: on an hour of a public chat trace, with a fifth replica joining after ten minutes, 0.1 evens out the
load and lowers the mean time to first token by 1 % where the pool is busy, and 0.3 raises it by 1 to 2 %.
A policy that takes the least cost applies the favour to one decision in as many as there are candidates
(policies/base.py, `biased`). Filling ends the favour sooner than age does: a full cache needs no help. Age ends
it too, since a pool with little traffic may never fill a cache, and then there is nothing to balance either.

What was computed is known from the engine's own counters, which start with its process: prompt tokens that were
not found in the cache, and generated ones. Where they are not told the replica is not favoured: an engine that
was taken for new may have been serving for hours behind other gateways.
"""

import math
from dataclasses import dataclass

from extproc.core.sample import Sample


@dataclass(slots=True, frozen=True, kw_only=True)
class Cold:
    """How much a new replica is favoured (0..0.9), and for how long (s)."""

    favour: float = 0.1
    span: float = 1800.0

    def factor(self, age: float, empty: float | None) -> float:
        """1 - favour * empty * young; 1 where `empty` is unknown. `age` in seconds, infinity for not new."""
        if empty is None or age >= self.span:
            return 1.0
        return 1.0 - self.favour * empty * (1.0 - max(age, 0.0) / self.span)


@dataclass(slots=True, frozen=True, kw_only=True)
class Factor:
    """How a metric enters what a second of a replica costs: 1 + weight * (value - neutral), within low..high.

    A straight line, as whoever names the metric knows its unit: with weight 1 / neutral the cost is in proportion.
    """

    neutral: float = 1.0
    weight: float = 1.0
    low: float = 0.5
    high: float = 2.0

    def times(self, value: float | None) -> float:
        """The factor, `low`..`high`; 1 while the value is unknown."""
        if value is None:
            return 1.0
        return min(max(1.0 + self.weight * (value - self.neutral), self.low), self.high)


def cost_of(configured: float, factor: Factor | None, sample: Sample) -> float:
    """What a second of a replica costs: as configured, times what its metric says."""
    return configured if factor is None else configured * factor.times(sample.factor)


def empty_share(sample: Sample | None, kv_tokens: int) -> float | None:
    """Share 0..1 of a cache that was never filled since the engine started; None while unknown."""
    if sample is None or sample.prompt_tokens is None:
        return None
    computed = sample.prompt_tokens - (sample.hit_tokens or 0.0) + (sample.generated_tokens or 0.0)
    return min(max(1.0 - computed / kv_tokens, 0.0), 1.0) if math.isfinite(computed) else None
