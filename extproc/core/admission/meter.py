"""What a pool carries, and what it can bear, in runtime tokens (A2): KV held, generated, prefill still waiting.

Carried: what the books say of requests in flight (exact at once, their whole expected output included), or what the
engine's last sample says is held and the prompts that wait, whichever is more: other senders' requests count too.

Borne: the knee (C8), tokens at which queueing starts, given or learned for each replica. It begins at what the KV
cache may hold. While prompts queue there (more than `QUEUEING` seconds of work ahead, or requests that wait while
all running slots are taken; what waits in the gateways' rooms, a replica's part, is work ahead of it) the knee
moves, a fifth of the way at each look, towards what is carried without the work that queues: in overload that is
what the replica is busy with, however much waits. A replica that carries more than its knee and does not queue
proves that it can; one that carries nearly as much and does not is tried with a little more.
"""

from typing import Final, NamedTuple

from extproc.core.fleet import Replica
from extproc.core.pool import Pool

#: Seconds of prompt work ahead from which a replica queues: about what one prompt of 32 k tokens takes, so that this
#: one is no queue by itself.
QUEUEING: Final = 2.0
#: How far a knee moves at a look at which its replica queues.
_STEP: Final = 0.2
#: Growth at a look of a knee that is nearly reached without queueing, and from which share on it is nearly reached.
_TRIED, _NEARLY = 0.005, 0.7
#: Least share of the KV cache that a knee is: a burst must not make a replica look as if it could bear nothing.
_LEAST: Final = 0.005


class Reading(NamedTuple):
    """A pool at a moment. Tokens; `queueing` is the share of replicas where prompts queue, 0..1.

    `limit` is what KV caches may hold, the most a budget can ever be; `given`: what is borne was configured.
    """

    runtime: float
    capacity: float
    limit: float
    queueing: float
    replicas: int
    given: bool = False

    @property
    def basis(self) -> float:
        """What a budget follows when replicas come, go, or turn out to be larger or smaller.

        What was given stays as it is when the real size of a KV cache is told, as far as that can hold it.
        """
        return min(self.capacity, self.limit) if self.given else self.limit

    @property
    def pressure(self) -> float:
        """Share of what can be borne that is carried; 1 where nothing can be borne."""
        return self.runtime / self.capacity if self.capacity > 0 else 1.0


def runtime(replica: Replica) -> float:
    """Tokens that a replica carries."""
    sample, books = replica.sample, replica.books
    told = 0.0
    if sample is not None and sample.kv_used is not None:
        told = sample.kv_used * replica.kv_tokens + books.pending
    return max(float(books.tokens), told)


class Meter:
    """One pool's.

    Args:
        pool: its replicas are looked at.
        given: tokens each replica can bear; 0 to learn it.
    """

    def __init__(self, pool: Pool, given: float = 0.0) -> None:
        self._pool = pool
        self._given = given
        self._knees: dict[Replica, float] = {}

    def look(self, now: float) -> Reading:
        """Read every replica that may be chosen, and learn. Call it about once a second."""
        carried = borne = limit = 0.0
        queues = 0
        replicas = [replica for replica in self._pool.replicas if not replica.excluded(now)]
        held = _held(self._pool) / max(len(replicas), 1)
        knees = {replica: self._knees.get(replica, _most(replica)) for replica in replicas}
        for replica in replicas:
            load = runtime(replica)
            queued = _queued(replica, held, now)
            knees[replica] = _learned(knees[replica], load, _most(replica), queued)
            carried += load
            borne += self._given or knees[replica]
            limit += _most(replica)
            queues += queued is not None
        self._knees = knees
        queueing = queues / len(replicas) if replicas else 0.0
        return Reading(carried, borne, limit, queueing, len(replicas), self._given > 0)

    def knee(self, replica: Replica) -> float:
        """Tokens a replica is believed to bear."""
        return self._given or self._knees.get(replica, _most(replica))


def _most(replica: Replica) -> float:
    return replica.kv_tokens * replica.traits.kv_ceiling


def _held(pool: Pool) -> float:
    """Prompt tokens that wait in the rooms of all gateways: others' requests are taken to be as long as the own."""
    room = pool.room
    return room.own_tokens * len(room) / room.own if room is not None and room.own else 0.0


def _queued(replica: Replica, held: float, now: float) -> float | None:
    """Prompt tokens that queue there beyond what may be ahead; None where none do.

    `held` wait elsewhere for it: they are ahead, but nothing it carries.
    """
    allowed = QUEUEING * replica.prefill_speed
    ahead = replica.backlog(now) * replica.prefill_speed
    if ahead + held > allowed:
        return max(ahead - allowed, 0.0)
    waiting = replica.sample.waiting if replica.sample is not None else None
    return 0.0 if waiting and replica.occupancy >= 1.0 else None


def _learned(knee: float, load: float, most: float, queued: float | None) -> float:
    if queued is not None:
        knee += (max(load - queued, 0.0) - knee) * _STEP
    elif load > knee:
        knee = load
    elif load > _NEARLY * knee:
        knee *= 1.0 + _TRIED
    return min(max(knee, most * _LEAST), most)
