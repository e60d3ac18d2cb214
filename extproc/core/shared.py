"""What other gateways told, applied to this one's pools: who holds what, what runs where, what engines said.

Applying is commutative and idempotent: batches may come late, twice, or never, in any order (core/flights.py says how
for what runs). Placements only add to the index; a correction takes away what was placed before it, by position in
the stream, which is the one order all gateways see.

A gateway silent for `_SILENCE` is dropped with all it had in flight. Long requests of a living one are never dropped:
it says in each table that they run. Its keys never meet this gateway's own: they have a ledger of their own, and
numbers below 0 in the replicas' books.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple

from extproc.core.elsewhere import Elsewhere
from extproc.core.fleet import Replica
from extproc.core.flights import Charges, believed
from extproc.core.journal import Batch, Engine, Placed, Ratio, heard, same_engine, unpack_chain, unpack_hashes
from extproc.core.leaving import Leavings, Word
from extproc.core.peers import SILENCE, Peer, Peers, missing
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.ratios import Row
from extproc.core.reach import Position
from extproc.core.sample import Sample

#: Corrections, and placements after them, of which the order can still be mended; the newest batch is kept whole.
_CORRECTIONS: Final = 256
_RECENT: Final = 512
#: Most engines not known here that are remembered.
_STRANGERS: Final = 1024
#: Most chains of one request that are looked at.
_CHAINS: Final = 2048
#: Most seconds of prompt work that one batch can have sent to a replica: what the pool's average spans.
_BUSY: Final = 60.0

#: The pool that a row of a batch names, and the replica, where they are known here.
_Home = tuple[Pool | None, Replica | None]


class _Forgotten(NamedTuple):
    position: Position
    engine: Engine
    hashes: frozenset[int]


class _Heard(NamedTuple):
    position: Position
    engines: list[Engine]
    placed: list[Placed]


def observe(pool: Pool, address: str, sample: Sample) -> None:
    """Take a sample in if it is newer than what is known."""
    replica = pool.get(address)
    if replica is not None and (replica.sample is None or sample.at > replica.sample.at):
        pool.observe(address, sample)


class Shared:
    """This gateway's view of what the others do.

    Args:
        pools: of this gateway.
        me: its name and boot number, whose own batches are known already.
        on_sample: given a pool, an address and another gateway's sample; by default the pool takes in newer ones.
        on_failure: given a pool, an address and the reason why another gateway's scrape failed, and when.

    Attributes:
        missed: something was told that did not come; set to False by who asks for the tables.
        asked: somebody wants our table; set to False by who sends it.
        strangers: pool and address of engines that were told of and are not known here, a bounded number of them.
        leavings: what replicas said themselves of leaving, here and to others.
        gaps, unknown, malformed: batches that never came; news of engines not known here, or of another incarnation;
            pieces that could not be read.
        uncalled: samples of a gateway that does not collect the pool's.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        me: tuple[str, int],
        on_sample: Callable[[Pool, str, Sample], None] = observe,
        on_failure: Callable[[Pool, str, str, float], None] = lambda pool, a, r, now: pool.failed(a, r, now),
    ) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.missed = self.asked = False
        self.strangers: set[tuple[str, str]] = set()
        self.gaps = self.unknown = self.malformed = self.uncalled = 0
        self._me = me
        self._on_sample = on_sample
        self._on_failure = on_failure
        #: Given the number of an exchange of this gateway whose first token another one saw.
        self.on_first_token: Callable[[int], None] = lambda key: None
        #: Whether a gateway is the one whose samples of a pool count, by their names.
        self.collects: Callable[[str, str], bool] = lambda pool, gateway: True
        #: Seconds since 1970, to tell what no engine can have said.
        self.epoch: Callable[[], float] = lambda: float("inf")
        self.leavings = Leavings(self.pools.values())
        self._charges = Charges(count(-1, -1), lambda engine: self._find(engine)[1])
        self.peers = Peers(self._charges)
        self._elsewhere = Elsewhere(self.pools)
        #: Called when news of others were taken in.
        self.on_news: Callable[[], None] = lambda: None
        self._now = 0.0
        self._corrections: deque[_Forgotten] = deque(maxlen=_CORRECTIONS)
        self._recent: deque[_Heard] = deque()
        self._recent_rows = 0

    @property
    def requests(self) -> int:
        """Requests of others in flight on replicas known here."""
        return self._charges.count

    @property
    def held(self) -> int:
        """Requests that wait at other gateways."""
        return len(self._elsewhere)

    def hear(self, batch: Batch, position: Position, now: float, lag: float = 0.0) -> bool:
        """Take in a batch; whether it was news.

        Args:
            batch: checked (journal.decode).
            position: of it in the stream.
            now: seconds, our clock.
            lag: seconds it lay in the stream; 0 when it was read at once. What ran longer ago than `SILENCE` is not
                taken in: who lives has said it again since, and who does not is gone with it.
        """
        self._now = self._charges.now = now
        if (batch.gateway, batch.boot) == self._me:
            if self._corrections:  # others may see a correction before this, which came here after
                self._index(batch, position, [self._find(engine) for engine in batch.engines])
            return False
        made, peer = now - lag, None
        if lag <= SILENCE:
            peer = self._peer(batch, made)
            if peer is None or not self._is_new(peer, batch):
                return False
            peer.heard = max(peer.heard, made)
        self.asked = self.asked or (batch.asks and peer is not None)
        self._correct(batch, position)
        homes = [self._find(engine) for engine in batch.engines]
        self._index(batch, position, homes)
        if peer is not None:
            self._busy(batch, homes)
            self._fly(peer, batch, homes, made)
            self._elsewhere.hear((batch.gateway, batch.boot), batch, made)
            for row in batch.relayed:
                self._first_token((row.gateway, row.boot), row.key)
            self._charges.settle()
            self._doubt(batch, homes, made)
            self._leave(batch, homes, made)
        self._sample(batch, made)
        self._learn(batch)
        self.on_news()
        return True

    def first_token(self, gateway: tuple[str, int], key: int, now: float) -> None:
        """The first token of another gateway's exchange was seen here. Unknown ones are ignored."""
        self._now = self._charges.now = now
        self._first_token(gateway, key)
        self._charges.settle()
        self.on_news()

    def _first_token(self, gateway: tuple[str, int], key: int) -> None:
        if gateway == self._me:
            self.on_first_token(key)
        elif gateway in self.peers:
            self.peers[gateway].flights.first_tokens([key])

    def expire(self, now: float) -> list[str]:
        """Drop gateways that fell silent, with all they had; returns their names. Call it a few times a second."""
        self._now = self._charges.now = now
        silent = list(self.peers.silent(now))
        self._charges.settle()
        self._elsewhere.keep_only(self.peers)
        if silent:
            self.on_news()
        return silent

    def rebind(self, now: float) -> None:
        """Replicas came, or turned out to be who they are: charge what could not be charged before."""
        self._now = self._charges.now = now
        for peer in self.peers.values():
            peer.flights.rebind()
        self._charges.settle()

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
        return frozenset().union(*gone)

    # -- gateways --------------------------------------------------------------------------------------

    def _peer(self, batch: Batch, made: float) -> Peer | None:
        is_known = (batch.gateway, batch.boot) in self.peers
        peer = self.peers.of(batch, made)
        self.missed = self.missed or (peer is not None and not is_known and batch.seq > 0)
        return peer

    def _is_new(self, peer: Peer, batch: Batch) -> bool:
        lost = missing(peer.seen.newest, batch.seq)
        self.gaps += lost
        self.missed = self.missed or lost > 0
        return peer.seen.add(batch.seq)

    # -- what runs -------------------------------------------------------------------------------------

    def _fly(self, peer: Peer, batch: Batch, homes: list[_Home], made: float) -> None:
        flights, seq = peer.flights, batch.seq
        if batch.leaves:
            peer.gone = True
            flights.clear()
        if peer.gone:
            return
        if batch.table is not None:
            flights.table(batch.table, batch.engines, made)
        flights.placed(seq, batch.placed, batch.engines, [replica for _, replica in homes], made)
        flights.first_tokens(batch.firsts)
        flights.ended(seq, batch.ended)

    def _busy(self, batch: Batch, homes: list[_Home]) -> None:
        """Note the prompt work that was sent, as far as it can have been."""
        work = [0.0] * len(homes)
        for row in batch.placed:
            replica = homes[row.engine][1]
            if replica is not None:
                work[row.engine] += believed(row.work, replica)
        for (pool, replica), tokens in zip(homes, work, strict=True):
            if tokens and pool is not None and replica is not None:
                pool.busy.add(min(tokens / replica.prefill_speed, _BUSY), self._now)

    def _find(self, engine: Engine) -> _Home:
        """The pool and the replica, if it is the incarnation that is meant."""
        pool = self.pools.get(engine.pool)
        replica = pool.get(engine.address) if pool is not None else None
        if replica is not None and not same_engine(started_of(replica), engine.started):
            replica = None
        return pool, replica

    # -- who holds what --------------------------------------------------------------------------------

    def _index(self, batch: Batch, position: Position, homes: list[_Home]) -> None:
        """Place what a batch tells, an engine at a time: what different engines hold is independent."""
        if not batch.placed:
            return
        self._remember(_Heard(position, batch.engines, batch.placed))
        told: list[list[bytes]] = [[] for _ in homes]
        for row in batch.placed:
            if homes[row.engine][1] is None:
                self.unknown += 1
                self.stranger(batch.engines[row.engine])
            elif row.chains:
                told[row.engine] += row.chains[:_CHAINS]
        for engine, (pool, replica), chains in zip(batch.engines, homes, told, strict=True):
            if chains and pool is not None and replica is not None:
                self._place(pool, replica, engine, chains, position)

    def _remember(self, news: _Heard) -> None:
        self._recent.append(news)
        self._recent_rows += len(news.placed)
        while self._recent_rows > _RECENT and len(self._recent) > 1:
            self._recent_rows -= len(self._recent.popleft().placed)

    def _place(
        self, pool: Pool, replica: Replica, engine: Engine, chains: list[bytes], position: Position
    ) -> None:
        read = [chain for chain in map(unpack_chain, chains) if chain is not None]
        self.malformed += len(chains) - len(read)
        if self._corrections:
            gone = self.taken_back(engine, position)
            if gone:
                read = [part for chain in read for part in _without(chain, gone)]
        held = pool.place(replica, read, self._now)
        if pool.feedback is not None:
            heard = pool.feedback.truth.heard
            for chain, depth in zip(read, held, strict=True):
                heard(replica.slot, chain, depth, self._now)

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
            for later in [news for news in self._recent if news.position >= mark]:
                same = [_is_same(other, engine) for other in later.engines]
                chains = [data for row in later.placed if same[row.engine] for data in row.chains[:_CHAINS]]
                self._place(pool, replica, engine, chains, later.position)

    # -- what others had with engines ------------------------------------------------------------------

    def _doubt(self, batch: Batch, homes: list[_Home], made: float) -> None:
        """Take in what others' breakers found, of less than half of a pool at once.

        When more seems broken to somebody, it is more likely to be his own network.
        """
        now = self._now
        for row in batch.troubled:
            pool, replica = homes[row.engine]
            if pool is None or replica is None:
                self.unknown += 1
                continue
            doubted = 1 + sum(other.is_doubted(now) for other in pool.replicas if other is not replica)
            if not row.seconds or 2 * doubted < len(pool.replicas):
                replica.doubt(made + row.seconds, now)

    def _leave(self, batch: Batch, homes: list[_Home], made: float) -> None:
        """Take in replicas' own words of whether they leave, which others heard."""
        for row in batch.leaving:
            pool, replica = homes[row.engine]
            if pool is None or replica is None:
                self.unknown += 1
            else:
                self.leavings.hear(pool, replica.address, Word(made - row.age, row.leaves), self._now)

    # -- what engines said -----------------------------------------------------------------------------

    def _sample(self, batch: Batch, made: float) -> None:
        for row in batch.sampled:
            engine = batch.engines[row.engine]
            pool = self.pools.get(engine.pool)
            if pool is None or pool.get(engine.address) is None:
                self.unknown += 1
            elif not self.collects(engine.pool, batch.gateway):
                self.uncalled += 1
            elif row.failure:
                self._on_failure(pool, engine.address, row.failure, self._now)
            else:
                self._take_sample(pool, engine.address, heard(row, made, self.epoch()))

    def _take_sample(self, pool: Pool, address: str, sample: Sample | None) -> None:
        if sample is None:
            self.malformed += 1
        else:
            self._on_sample(pool, address, sample)

    # -- what others learned ---------------------------------------------------------------------------

    def _learn(self, batch: Batch) -> None:
        """Tokens per byte, where this gateway learns them too; old news do no harm, since more prompts win."""
        for row in batch.ratios:
            pool = self.pools.get(row.pool)
            if pool is not None and pool.feedback is not None:
                pool.ratios.restore([row_of(row)])


def row_of(said: Ratio) -> Row:
    """A row of core/ratios.py, which checks it before it is believed."""
    return Row(
        said.model,
        said.script,
        said.seen,
        *(said.start, said.error, said.n, said.z, said.zz, said.u, said.zu),
    )


def started_of(replica: Replica) -> float | None:
    """When its engine started by its own word: what gateways agree on (epoch s)."""
    return replica.sample.started if replica.sample is not None else None


def _is_same(mine: Engine, theirs: Engine) -> bool:
    same = mine.pool == theirs.pool and mine.address == theirs.address
    return same and same_engine(mine.started, theirs.started)


def _without(chain: Chain, gone: frozenset[int]) -> list[Chain]:
    """The chain without some hashes: what is left after one that is missing still counts, for other chains."""
    kept = [(key, end) for key, end in zip(chain.hashes, chain.ends, strict=True) if key not in gone]
    return [Chain([key for key, _ in kept], [end for _, end in kept])] if kept else []
