"""Who holds what by what gateways told: placements, corrections and rulings, applied to this one's indexes.

Placements only add. A correction takes away what stands before it in the stream, the one order that all gateways
see: single hashes, or whatever an engine was believed to hold (a ruling of the gateway that judges, core/truth.py).
Batches may come late, twice or in any order: what was taken back is remembered for a while, and so are placements.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from extproc.core.announced import Key, Ruling
from extproc.core.fleet import Replica
from extproc.core.journal import (
    CLOCKS_DIFFER,
    Batch,
    Engine,
    Placed,
    Ruled,
    same_engine,
    unpack_chain,
    unpack_hashes,
)
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.reach import Position
from extproc.core.truth import Truth

#: Corrections, and placements after them, of which the order can still be mended; the newest batch is kept whole.
_CORRECTIONS: Final = 256
_RECENT: Final = 512
#: Most engines not known here that are remembered.
_STRANGERS: Final = 1024
#: Most chains of one request that are looked at.
_CHAINS: Final = 2048
#: The pool that a row of a batch names, and the replica, where they are known here.
Home = tuple[Pool | None, Replica | None]


class _Everything(frozenset[int]):
    """Whatever an engine was believed to hold."""

    def __contains__(self, key: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


_EVERYTHING: Final = _Everything()


class _Forgotten(NamedTuple):
    position: Position
    engine: Engine
    hashes: frozenset[int]


class _Heard(NamedTuple):
    position: Position
    engines: list[Engine]
    placed: list[Placed]


class Holdings:
    """The indexes of this gateway's pools, as far as others' news concern them.

    Args:
        pools: of this gateway.

    Attributes:
        strangers: pool and address of engines that were told of and are not known here, a bounded number of them.
        unknown, malformed: news of engines not known here, or of another incarnation; pieces that could not be read.
    """

    def __init__(self, pools: Iterable[Pool]) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.strangers: set[tuple[str, str]] = set()
        self.unknown = self.malformed = 0
        #: Seconds since 1970, to tell what no engine can have said.
        self.epoch: Callable[[], float] = lambda: float("inf")
        self._now = 0.0
        self._corrections: deque[_Forgotten] = deque(maxlen=_CORRECTIONS)
        self._recent: deque[_Heard] = deque()
        self._learners = [pool.feedback for pool in self.pools.values() if pool.feedback is not None]
        #: Pool and address -> incarnation, token and position of the ruling that holds.
        self._ruled: dict[tuple[str, str], tuple[int, int, Position]] = {}
        self._recent_rows = 0

    def stranger(self, engine: Engine) -> None:
        """News of an engine could not be used; when its address is one that nobody has here, it is noted."""
        pool = self.pools.get(engine.pool)
        if pool is not None and pool.get(engine.address) is None and len(self.strangers) < _STRANGERS:
            self.strangers.add((engine.pool, engine.address))

    def arrived(self) -> set[str]:
        """Pools that got a replica of which news had come before it was known here."""
        known = {(name, a) for name, a in self.strangers if self.pools[name].get(a) is not None}
        self.strangers -= known
        return {name for name, _ in known}

    def taken_back(self, engine: Engine, position: Position) -> frozenset[int]:
        """Hashes of an engine that were taken back after a position: what a snapshot made there must not bring."""
        gone = [c.hashes for c in self._corrections if c.position > position and _is_same(c.engine, engine)]
        return _EVERYTHING if any(hashes is _EVERYTHING for hashes in gone) else frozenset().union(*gone)

    def _find(self, engine: Engine) -> Home:
        """The pool and the replica, if it is the incarnation that is meant."""
        pool = self.pools.get(engine.pool)
        replica = pool.get(engine.address) if pool is not None else None
        if replica is not None and not same_engine(started_of(replica), engine.started):
            replica = None
        return pool, replica

    # -- who holds what --------------------------------------------------------------------------------

    def _index(self, batch: Batch, position: Position, homes: list[Home], boot: int | None) -> None:
        """Place what a batch tells, an engine at a time: what different engines hold is independent.

        `boot`: of the gateway, where it will say how its requests end, else 0; None for our own.
        """
        if not batch.placed:
            return
        self._remember(_Heard(position, batch.engines, batch.placed))
        told: list[list[bytes]] = [[] for _ in homes]
        keys: list[list[Key | None]] = [[] for _ in homes]
        for row in batch.placed:
            if homes[row.engine][1] is None:
                self.unknown += 1
                self.stranger(batch.engines[row.engine])
            elif row.chains:
                told[row.engine] += (chains := row.chains[:_CHAINS])
                is_one = boot and row.key and len(chains) == 1  # of a batch of prompts no single one is told
                keys[row.engine] += [(boot, row.key)] if boot and is_one else [None] * len(chains)
        for engine, (pool, replica), packed, named in zip(batch.engines, homes, told, keys, strict=True):
            if packed and pool is not None and replica is not None:
                self._place(pool, replica, engine, packed, position, None if boot is None else named)

    def _remember(self, news: _Heard) -> None:
        self._recent.append(news)
        self._recent_rows += len(news.placed)
        while self._recent_rows > _RECENT and len(self._recent) > 1:
            self._recent_rows -= len(self._recent.popleft().placed)

    def _place(
        self,
        pool: Pool,
        replica: Replica,
        engine: Engine,
        packed: list[bytes],
        position: Position,
        keys: list[Key | None] | None = None,
    ) -> None:
        """`keys`: of what is news to core/truth.py, by which it is told how each ended; None where it is none."""
        chains = list(map(unpack_chain, packed))
        read = [chain for chain in chains if chain is not None]
        if len(read) < len(chains):
            self.malformed += len(chains) - len(read)
            keys = (
                None if keys is None else [key for key, c in zip(keys, chains, strict=True) if c is not None]
            )
        if self._corrections and (gone := self.taken_back(engine, position)):
            read, keys = [part for chain in read for part in _without(chain, gone)], None
        held = pool.place(replica, read, self._now)
        if pool.feedback is not None and keys is not None:
            heard = pool.feedback.truth.heard
            for chain, depth, key in zip(read, held, keys, strict=True):
                heard(replica.slot, chain, depth, self._now, key)

    def _correct(self, batch: Batch, position: Position) -> None:
        for row in batch.forgotten:
            engine, hashes = batch.engines[row.engine], unpack_hashes(row.hashes)
            pool, replica = self._find(engine)
            # Of one batch, what was found out wins over what was placed.
            mark = (position[0], position[1] + 1) if position else position
            self._corrections.append(_Forgotten(mark, engine, frozenset(hashes)))
            if pool is None or replica is None:
                self.unknown += 1
                continue
            pool.index.forget(replica.slot, hashes)
            self._place_later(pool, replica, engine, mark)

    def _place_later(self, pool: Pool, replica: Replica, engine: Engine, mark: Position) -> None:
        """Place again what stands behind a correction in the stream, and was heard before it."""
        for later in [news for news in self._recent if news.position >= mark]:
            same = [_is_same(other, engine) for other in later.engines]
            chains = [data for row in later.placed if same[row.engine] for data in row.chains[:_CHAINS]]
            self._place(pool, replica, engine, chains, later.position)

    # -- what was found out of caches ------------------------------------------------------------------

    def truths(self) -> list[Truth]:
        """What is known of the caches of each pool that learns of them."""
        return [learner.truth for learner in self._learners]

    def _end(self, batch: Batch) -> None:
        """How requests of a gateway ended, for who judges; the keys of one gateway name one request in one pool."""
        for truth in self.truths():
            for key in batch.firsts:
                truth.computed((batch.boot, key))
            for row in batch.outcomes:
                truth.told((batch.boot, row.key), row.tokens, row.cached, self._now)

    def _rule(self, batch: Batch, position: Position, *, own: bool) -> None:
        """Take over rulings: of each engine what the greatest token said last; emptied is emptied, whoever found it.

        Token 0 is of a gateway that does not judge, and found it emptied while it was alone: nothing else counts.

        By tokens and the stream's order alone, so that all gateways end with the same whatever order they read in.
        """
        for row in batch.ruled:
            engine, mark = batch.engines[row.engine], (position[0], position[1] + 1) if position else position
            if row.token > (self.epoch() + CLOCKS_DIFFER) * 1000:
                self.malformed += 1
                continue
            is_news = row.emptied and not self._is_emptied(engine, mark)
            if is_news:
                self._corrections.append(_Forgotten(mark, engine, _EVERYTHING))
                self._remember(_Heard(mark, batch.engines, [Placed(0, row.engine, 0.0, 0, 0.0, row.kept)]))
            pool, replica = self._find(engine)
            if pool is None or replica is None or pool.feedback is None:
                self.unknown += 1
                continue
            self._apply_ruling(pool, replica, row, mark, own=own, emptied=is_news)
            if is_news:
                self._place_later(pool, replica, engine, mark)

    def _is_emptied(self, engine: Engine, mark: Position) -> bool:
        """Whether an engine is known to have been emptied there in the stream or later."""
        emptied = [c for c in self._corrections if c.hashes is _EVERYTHING and c.position >= mark]
        return any(_is_same(c.engine, engine) for c in emptied)

    def _apply_ruling(
        self, pool: Pool, replica: Replica, row: Ruled, mark: Position, *, own: bool, emptied: bool
    ) -> None:
        assert pool.feedback is not None
        truth, name = pool.feedback.truth, (pool.name, replica.address)
        rank = replica.incarnation, row.token, mark
        kept = [chain for chain in map(unpack_chain, row.kept) if chain is not None] if emptied else []
        ruling = Ruling(row.step, row.scale, emptied, kept)
        if row.token and rank > self._ruled.get(name, (-1, 0, mark)):
            self._ruled[name] = rank
            truth.rule(replica.slot, ruling, self._now, own=own)
        elif emptied:
            truth.emptied(replica.slot, ruling, self._now, own=own)


def started_of(replica: Replica) -> float | None:
    """When its engine started by its own word: what gateways agree on (epoch s)."""
    return replica.sample.started if replica.sample is not None else None


def engine_of(pool: Pool, replica: Replica) -> Engine:
    """A replica of a pool as it is told of."""
    return Engine(pool.name, replica.address, started_of(replica))


def _is_same(mine: Engine, theirs: Engine) -> bool:
    same = mine.pool == theirs.pool and mine.address == theirs.address
    return same and same_engine(mine.started, theirs.started)


def _without(chain: Chain, gone: frozenset[int]) -> list[Chain]:
    """The chain without some hashes: what is left after one that is missing still counts, for other chains."""
    kept = [(key, end) for key, end in zip(chain.hashes, chain.ends, strict=True) if key not in gone]
    return [Chain([key for key, _ in kept], [end for _, end in kept])] if kept else []
