"""hybrid_hash: what the whole model shares goes by consistent hashing, the rest by the index (R6).

The index tells how much of a prompt is known anywhere, and so where it parts from what came before. A place where
prompts have parted `often` times in new ways is the end of something everybody shares: a system prompt, a set of
tools, a much asked document. Such a prefix has its home on a ring with bounded load: few replicas hold it, and the
index has few entries for it. What is known further than that is the conversation's own: it goes to who holds most.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from extproc.core.policies.base import Ask, Choice, Rng, check_range, lowest
from extproc.core.policies.recent import Recent
from extproc.core.policies.ring import Ring, bound_of, within

#: Bytes by which tokens turned back into bytes may be off, chiefly by rounding.
_ROUNDING = 0.5


@dataclass(slots=True)
class HybridHash:
    """`often`: new continuations that make a prefix model-wide; `large`: bytes from which it has a home.

    `factor` and `least` bound the load as in session_hash; `ttl` s and `prefixes` bound what is remembered.
    """

    often: float = 16.0
    large: float = 4096.0
    factor: float = 1.25
    least: float = 2.0
    ttl: float = 1800.0
    prefixes: float = 16_384
    _partings: Recent[list[int]] = field(init=False, repr=False)
    _ring: Ring = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_range("hybrid_hash", "often", self.often, 1, 2**30)
        check_range("hybrid_hash", "large", self.large, 0, 2**30)
        check_range("hybrid_hash", "factor", self.factor, 1, 1000)
        check_range("hybrid_hash", "least", self.least, 0, 2**30)
        check_range("hybrid_hash", "ttl", self.ttl, 0, 2**30)
        check_range("hybrid_hash", "prefixes", self.prefixes, 1, 2**24)
        self._partings = Recent(self.prefixes, self.ttl)
        self._ring = Ring()

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The home of a model-wide prefix, else who holds most below the bound, else the fewest requests."""
        loads = [replica.requests for replica in ask.replicas]
        parting = known_until(ask)
        if parting >= 0 and ask.prompt is not None:
            chain = ask.prompt.chains[0]
            if not self._is_wide(ask, parting):
                return self._holder(ask, loads, picks, rng)
            if chain.ends[parting] >= self.large:
                self._ring.follow(ask.replicas)
                bound = bound_of(loads, self.factor, self.least)
                order = within(self._ring.walk(chain.hashes[parting]), loads, bound, picks)
                return Choice(order, (), "shared_by_hash", {"requests": loads})
        elif max(ask.cached) > 0:  # several prompts in one request: what they share has no one end
            return self._holder(ask, loads, picks, rng)
        return Choice(lowest(loads, picks, rng), loads, "fewest_requests", {})

    def _is_wide(self, ask: Ask, parting: int) -> bool:
        """Whether the prefix up to there is model-wide; a prompt that goes on in a new way counts for it."""
        assert ask.prompt is not None
        hashes = ask.prompt.chains[0].hashes
        seen = self._partings.get(hashes[parting], ask.now)
        if parting == len(hashes) - 1:  # known to its end
            return seen is not None and seen[0] >= self.often
        if seen is None:
            seen = [0]
            self._partings.put(hashes[parting], seen, ask.now)
        seen[0] += 1
        return seen[0] > self.often

    def _holder(self, ask: Ask, loads: list[float], picks: int, rng: Rng) -> Choice:
        """Who holds most of the prompt, of those below the bound; as much counts as level: the fewest requests."""
        bound = bound_of(loads, self.factor, self.least)
        most = ask.tokens + 1.0
        scores = [
            (-held if load + 1 <= bound else most) + load / 1e6
            for held, load in zip(ask.cached, loads, strict=True)
        ]
        return Choice(lowest(scores, picks, rng), scores, "longest_match", {})


def known_until(ask: Ask) -> int:
    """Position in the one chain of the prompt up to which some candidate holds it; -1 when none holds any of it,
    or the request has another number of chains."""
    best = max(ask.cached)
    if best <= 0 or ask.prompt is None or len(ask.prompt.chains) != 1:
        return -1
    ends = ask.prompt.chains[0].ends
    if best >= ask.tokens - 1:  # the last token never counts as cached
        return len(ends) - 1
    return bisect_right(ends, best / ask.ratio + _ROUNDING) - 1
