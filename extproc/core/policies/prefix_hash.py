"""prefix_hash: rendezvous hashing on the prompt's first bytes. Needs no index and no books.

Every gateway sends the same beginning to the same replica, and when a replica leaves only its own share moves.
It is blind to load: what one replica gets too much of, it keeps.
"""

from bisect import bisect_right
from dataclasses import dataclass

from extproc.core.policies.base import Ask, Choice, Rng, lowest
from extproc.core.policies.hashing import address_seed, mixed
from extproc.core.prompt import Prompt


@dataclass(slots=True)
class PrefixHash:
    """`depth`: the longest beginning that is hashed, in bytes: the last chain hash within it is the key."""

    depth: float = 4096

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 2**30:
            raise ValueError("prefix_hash: depth must be within 1..2**30 bytes")

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates in the order of their rendezvous weights for this beginning."""
        if ask.prompt is None or not ask.prompt.chains:
            scores = [float(replica.requests) for replica in ask.replicas]
            return Choice(lowest(scores, picks, rng), scores, "no_prompt", {})
        key = beginning(ask.prompt, self.depth)
        scores = [-float(mixed(key ^ address_seed(replica.address))) for replica in ask.replicas]
        return Choice(lowest(scores, picks, rng), scores, "hashed", {})


def beginning(prompt: Prompt, depth: float) -> int:
    """The hash of the longest beginning of at most `depth` bytes; of the first piece when that is longer."""
    chain = prompt.chains[0]
    return chain.hashes[max(bisect_right(chain.ends, depth) - 1, 0)]
