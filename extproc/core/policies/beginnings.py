"""Which beginning of a prompt stands for its conversation, when many conversations begin alike.

The first hash of a chain is what tells conversations apart, unless a system prompt comes first: then it is the same
for all of them, and hashing it sends everybody to one replica. So beginnings that carry more of the pool's requests
than one replica should get, and go on in many ways, are passed over; the next hash is the key. A conversation's key
stays the same from its first turn on, except once, when a beginning is found out to be shared.

Prompts are followed down only as far as much traffic goes, so what is remembered is a small tree.
"""

from typing import Final

from extproc.core.prompt import Prompt

#: Requests after which all counts are halved. Beginnings of less than a thousandth of the traffic stay uncounted.
WINDOW: Final = 4096
#: Least counted requests of a shared beginning, whatever its share: fewer say nothing.
_LEAST = 16
#: Different hashes that must follow a shared beginning. One long conversation goes on in one way.
_MANY = 8
#: Hashes looked at from the start: 64 KiB and more.
_DEEPEST = 64
#: A beginning stays shared until it falls to this part of the limit, or keys would flicker.
_HOLD = 0.5
#: Continuations are counted by this many bits of their hash.
_BITS = 63


class _Node:
    """Requests that began so, which continuations they had (one bit each), and whether it is large by now."""

    __slots__ = ("bits", "count", "is_large")

    def __init__(self) -> None:
        self.count = 0
        self.bits = 0
        self.is_large = False


class Beginnings:
    """Learns which beginnings are shared widely, and names keys. `grain`: fair shares of one replica a key may carry.

    Bounded: each request adds at most one entry, and halving drops those that came once.
    """

    __slots__ = ("_grain", "_nodes", "_total")

    def __init__(self, grain: float) -> None:
        self._grain = grain
        self._nodes: dict[int, _Node] = {}
        self._total = 0

    def __len__(self) -> int:
        """Beginnings remembered."""
        return len(self._nodes)

    def key(self, prompt: Prompt, replicas: int) -> int:
        """The hash that stands for the conversation of `prompt`, which has a chain, in a pool of `replicas`."""
        hashes = prompt.chains[0].hashes
        self._total += 1
        if self._total >= WINDOW:
            self._halve()
        limit = max(self._grain * self._total / replicas, _LEAST)
        nodes, at = self._nodes, 0
        for i in range(min(len(hashes), _DEEPEST) - 1):  # the last one has nothing after it
            node = nodes.get(hashes[i])
            if node is None:
                node = nodes[hashes[i]] = _Node()
            node.count += 1
            node.bits |= 1 << (hashes[i + 1] & _BITS)
            node.is_large = node.count >= (limit * _HOLD if node.is_large else limit)
            if not node.is_large:
                break
            if node.bits.bit_count() >= _MANY:
                at = i + 1
        return hashes[at]

    def _halve(self) -> None:
        self._total >>= 1
        for key, node in list(self._nodes.items()):
            node.count >>= 1
            if not node.count:
                del self._nodes[key]
