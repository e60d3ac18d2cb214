"""Which replicas a pool would miss least: what to take away when scaling in (S2).

Losing a replica costs, in seconds of prompt work on the others:

    cache     what it alone holds of prefixes, by how likely each is asked for again: 2 ** (-unused / HALF)
    streams   tokens of requests in flight there; a drain waits for them, a deadline that passes loses them
    adapters  a load for each LoRA adapter that it alone holds

divided by what a second of it costs (`cost`), so that of two alike the dear one goes first. One that may not be
chosen costs nothing: nobody gets anything from its cache. They are picked one after the other, and what the first
alone held with the second counts for the second: of two replicas with the same prefixes only one is cheap to lose.

The half-life is an assumption, not measured: prefixes of conversations come back within minutes or not at all.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.core.fleet import Replica
from extproc.core.lifecycle import QUIESCING
from extproc.core.pool import Pool
from extproc.core.prompt import TOKENS_PER_BYTE

#: Seconds after which an unused prefix is half as likely to be asked for again.
HALF: Final = 300.0
#: Prefix hashes that are looked at, over all replicas of a pool, and of one at least: 5 ms for each that is picked.
_LOOKED: Final = 16_384
_LEAST: Final = 16


@dataclass(slots=True, frozen=True, kw_only=True)
class Loss:
    """What it costs to lose a replica.

    Attributes:
        seconds: all of it, for the ranking.
        cache, streams, adapters: its parts, in seconds.
        alone: share 0..1 of its believed cache that no other serving replica holds.
        requests, tokens: in flight.
        why: in words.
    """

    replica: Replica
    seconds: float
    cache: float
    streams: float
    adapters: float
    alone: float
    requests: int
    tokens: int
    why: str


#: Of a sample of a replica's prefixes: who holds each, its weight, and how likely it is asked for again.
_Sample = list[tuple[tuple[int, ...], int, float]]


def pick(pool: Pool, count: int, now: float) -> list[Loss]:
    """The `count` replicas whose loss costs least, the cheapest first; fewer where the pool has no more to give.

    Of each role (core/handover.py) one stays, and one that serves where one does. Those that drain already are
    leaving, and are not named.
    """
    staying = [replica for replica in pool.replicas if replica.life.state != QUIESCING]
    each = max(_LOOKED // max(len(staying), 1), _LEAST)
    samples = {replica.slot: _sample(pool, replica, each, now) for replica in staying}
    found: list[Loss] = []
    while len(found) < count:
        serving = {r.slot for r in staying if r.excluded(now) is None}
        needed = _needed(pool, staying, serving)
        free = [r for r in staying if r.slot not in needed]
        if not free:
            break
        losses = [_loss(pool, replica, samples[replica.slot], serving, now) for replica in free]
        least = min(losses, key=lambda loss: (loss.seconds, loss.replica.address))
        found.append(least)
        staying.remove(least.replica)
    return found


def _needed(pool: Pool, staying: Sequence[Replica], serving: Collection[int]) -> set[int]:
    """Slots of those that have to stay: the last of its role, and the last of it that serves."""
    roles = [None] if pool.handover is None else [pool.handover.answering, pool.handover.computing]
    needed: set[int] = set()
    for role in roles:
        there = [r.slot for r in staying if role is None or r.address in role]
        able = [slot for slot in there if slot in serving]
        for last in (there, able):
            needed.update(last if len(last) == 1 else ())
    return needed


def _sample(pool: Pool, replica: Replica, most: int, now: float) -> _Sample:
    """Every n-th of its prefixes, so that at most `most` are looked at."""
    epochs = pool.index.dump(replica.slot, now)
    step = sum(len(hashes) for _, _, hashes, _ in epochs) // most + 1
    return [
        (pool.index.who(key), weight, 2.0 ** (-age / HALF))
        for _, age, hashes, weights in epochs
        for key, weight in zip(hashes[::step], weights[::step], strict=True)
    ]


def _loss(pool: Pool, replica: Replica, sample: _Sample, serving: Collection[int], now: float) -> Loss:
    books, speed = replica.books, replica.prefill_speed
    excluded = replica.excluded(now)
    others = frozenset(serving) - {replica.slot}
    whole = sum(weight for _, weight, _ in sample)
    lone = [(weight, again) for who, weight, again in sample if others.isdisjoint(who)]
    alone = sum(weight for weight, _ in lone) / whole if whole else 0.0
    again = sum(weight * again for weight, again in lone) / whole if whole else 0.0
    held = pool.index.size(replica.slot) * TOKENS_PER_BYTE
    cache = again * held / speed if excluded is None else 0.0
    streams = books.tokens / speed
    adapters = _adapters(pool, replica, others) if excluded is None else 0.0
    seconds = (cache + streams + adapters) / replica.cost
    why = _why(excluded, alone, held, books.requests)
    return Loss(
        replica=replica, seconds=seconds, cache=cache, streams=streams, adapters=adapters, alone=alone,
        requests=books.requests, tokens=books.tokens, why=why,
    )  # fmt: skip


def _adapters(pool: Pool, replica: Replica, others: frozenset[int]) -> float:
    if pool.adapters is None:
        return 0.0
    held = pool.adapters.held(replica)
    lone = [name for name in held if others.isdisjoint(pool.adapters.holders(name))]
    return pool.adapters.load * len(lone)


def _why(excluded: str | None, alone: float, held: float, requests: int) -> str:
    if excluded is not None:
        return f"it may not be chosen ({excluded}), so its cache serves nobody; {requests} requests in flight"
    if not held:
        return f"its cache is not known to hold anything; {requests} requests in flight"
    tokens = f"{alone:.0%} of the {held:,.0f} tokens it is believed to hold"
    return f"{tokens} are on no other; {requests} requests in flight"
