"""prefix_hash: rendezvous hashing on the prompt's first bytes. Needs no index and no books.

Every gateway sends the same beginning to the same replica, and when a replica leaves only its own share moves.
It is blind to load: what one replica gets too much of, it keeps.
"""

from bisect import bisect_right
from dataclasses import dataclass

from extproc.core.fleet import Replica
from extproc.core.policies.base import Ask, Choice, Rng, lowest
from extproc.core.prompt import Prompt

_MASK = (1 << 64) - 1
#: FNV-1a, 64 bits (offset basis and prime), for addresses; computed once for each.
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
#: Addresses remembered; a fleet that changes beyond that forgets and computes anew.
_MOST_ADDRESSES = 4096


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
        scores = [-float(_mixed(key ^ _seed(replica))) for replica in ask.replicas]
        return Choice(lowest(scores, picks, rng), scores, "hashed", {})


def beginning(prompt: Prompt, depth: float) -> int:
    """The hash of the longest beginning of at most `depth` bytes; of the first piece when that is longer."""
    chain = prompt.chains[0]
    return chain.hashes[max(bisect_right(chain.ends, depth) - 1, 0)]


_SEEDS: dict[str, int] = {}


def _seed(replica: Replica) -> int:
    """A number for an address (FNV-1a), the same in every gateway and every run."""
    address = replica.address
    seed = _SEEDS.get(address)
    if seed is None:
        if len(_SEEDS) >= _MOST_ADDRESSES:
            _SEEDS.clear()
        seed = _FNV_BASIS
        for byte in address.encode():
            seed = (seed ^ byte) * _FNV_PRIME & _MASK
        _SEEDS[address] = seed
    return seed


def _mixed(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
