"""cache_aware: the rule of SGLang's gateway, with the defaults of its launcher (R17).

If (most - fewest requests) > `balance` and most > `relative` * fewest: the replica with the fewest requests.
Else the one that holds the longest part of the prompt, if that is more than the share `threshold` of it.
Else the one with the fewest requests.
"""

from dataclasses import dataclass

from extproc.core.policies.base import Ask, Choice, Rng, lowest


@dataclass(slots=True)
class CacheAware:
    """`threshold`: share of the prompt, 0..1; `balance`: requests apart; `relative`: factor apart."""

    threshold: float = 0.3
    balance: float = 64.0
    relative: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError("cache_aware: threshold must be within 0..1")
        if self.balance < 0 or self.relative < 1:
            raise ValueError("cache_aware: balance must be at least 0 and relative at least 1")

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The holder of the longest part, unless loads are far apart or no part is long enough."""
        loads = [replica.requests for replica in ask.replicas]
        most, fewest = max(loads), min(loads)
        if most - fewest > self.balance and most > self.relative * fewest:
            return Choice(lowest(loads, picks, rng), loads, "imbalance", {})
        best = max(ask.cached)
        if best > self.threshold * ask.tokens:
            # Of those that hold as much, the one with the fewest requests; loads are below the step of one token.
            scores = [-held + load / 1e6 for held, load in zip(ask.cached, loads, strict=True)]
            return Choice(lowest(scores, picks, rng), scores, "longest_match", {})
        return Choice(lowest(loads, picks, rng), loads, "fewest_requests", {})
