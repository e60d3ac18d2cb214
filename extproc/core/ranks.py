"""Data-parallel ranks of a replica: which of them computes a request, and how the engine is told.

An engine with data parallelism is several engines behind one address, each with a queue and a prefix cache of its
own. Left alone it spreads requests by their number, so that a conversation finds its cache only by chance. vLLM and
SGLang obey a header that names the rank (x-data-parallel-rank, 0 and up), and refuse one that they don't have.

The replica is chosen first, as if it were one engine. Then its rank, so that a conversation stays where it is cached:
that of the conversation's hash, modulo the ranks, or the next after it that has room. No rank gets one more that has
`few` requests and `_EVEN` times the mean, rounded up (Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with
Bounded Loads", SODA 2018: little is moved, whatever the loads). Every gateway comes to the same rank by itself.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Final

from extproc.core import replies
from extproc.core.decide import Decision
from extproc.core.fleet import Replica
from extproc.core.versions import root_of

#: What became of requests, a closed set that labels a metric: the rank of its conversation, another as that has no
#: room, or none, as some replica that may answer does not tell that it has ranks.
KEPT: Final = "kept"
MOVED: Final = "moved"
NOBODY: Final = "unknown"
HOW: Final = (KEPT, MOVED, NOBODY)

#: Most requests of a rank, over the mean: the paper's 1 + epsilon, for which a quarter is its usual example.
_EVEN: Final = Fraction(5, 4)
#: Why a scrape failed, as the collector words it, of an engine that may only be busy.
_SILENCE: Final = "timeout"


class Ranks:
    """The ranks of one pool's replicas.

    Args:
        header: by which the engine is told.
        few: requests below which a rank has room whatever the others have, 1 and up.

    Attributes:
        counts: requests by what became of them.
        flights: exchange -> replica and rank, until it is over.
    """

    __slots__ = ("_few", "_header", "_own", "counts", "flights")

    def __init__(self, header: str, few: int = 4) -> None:
        self._header = header
        self._few = few
        self._own: dict[Replica, list[int]] = {}
        self.flights: dict[int, tuple[Replica, int]] = {}
        self.counts = dict.fromkeys(HOW, 0)

    def told(self, decision: Decision, *, at_headers: bool) -> bytes:
        """To append to the answer that steers a request; nothing where ranks are not known.

        Only a rank is told that every pick has, as a retry carries the same header; whom else a retry may reach is
        held against it in core/tries.py.
        """
        replica = decision.replica
        assert replica is not None
        count = min([count_of(pick) for pick in decision.order])
        if count < 2:
            self.counts[NOBODY] += 1
            return b""
        root = root_of(decision.prompt)
        rank = self._choose(self.loads(replica)[:count], root)
        decision.rank = rank
        self._take(decision.key, replica, rank)
        return replies.told([(self._header, str(rank))], at_headers=at_headers)

    def left(self, key: int) -> None:
        """An exchange is over. Idempotent."""
        flight = self.flights.pop(key, None)
        if flight is None:
            return
        replica, rank = flight
        own = self._own[replica]
        own[rank] -= 1
        if not any(own):
            del self._own[replica]

    def loads(self, replica: Replica) -> list[float]:
        """Requests of each rank: what its metrics tell, which are late, or what this gateway has there, if more."""
        told = replica.sample.ranks if replica.sample is not None and replica.sample.ranks is not None else ()
        own = self._own.get(replica, ())
        size = max(len(told), len(own))
        return [max(_at(told, rank), _at(own, rank)) for rank in range(size)]

    def _choose(self, loads: Sequence[float], root: int | None) -> int:
        """The rank for a conversation, or for a request that is none, the first with least."""
        count = len(loads)
        if root is None:
            self.counts[KEPT] += 1
            return loads.index(min(loads))
        most = max(self._few, ceil(_EVEN * (Fraction(sum(loads)) + 1) / count))
        order = [(root + step) % count for step in range(count)]
        rank = next(rank for rank in order if loads[rank] < most)
        self.counts[KEPT if rank == order[0] else MOVED] += 1
        return rank

    def _take(self, key: int, replica: Replica, rank: int) -> None:
        self.left(key)
        own = self._own.setdefault(replica, [])
        own.extend([0] * (rank + 1 - len(own)))
        own[rank] += 1
        self.flights[key] = replica, rank


def _at(loads: Sequence[float], rank: int) -> float:
    return loads[rank] if rank < len(loads) else 0.0


def count_of(replica: Replica) -> int:
    """How many ranks it is known to have: 0 until it tells, and from a failed scrape on until it tells anew.

    Whoever can't be reached may come back with fewer. Mere silence is no such sign: a busy engine is slow to answer.
    """
    sample = replica.sample
    if sample is None or sample.ranks is None or replica.unheard not in ("", _SILENCE):
        return 0
    return len(sample.ranks)
