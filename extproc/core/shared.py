"""What other gateways told, applied to this one's pools: who holds what, what runs where, what engines said.

Applying is commutative and idempotent: batches may come late, twice, or never, in any order (core/flights.py says how
for what runs). Placements only add to the index; a correction takes away what was placed before it, by position in
the stream, which is the one order all gateways see.

A gateway silent for `_SILENCE` is dropped with all it had in flight. Long requests of a living one are never dropped:
it says in each table that they run. Its keys never meet this gateway's own: they have a ledger of their own, and
numbers below 0 in the replicas' books.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from extproc.core.elsewhere import Elsewhere
from extproc.core.flights import Charges, believed
from extproc.core.holdings import Holdings, Home
from extproc.core.journal import Batch, Ratio, heard
from extproc.core.leaving import Leavings, Word
from extproc.core.peers import SILENCE, Peer, Peers, missing
from extproc.core.pool import Pool
from extproc.core.ratios import Row
from extproc.core.reach import Position
from extproc.core.sample import Sample

#: Most seconds of prompt work that one batch can have sent to a replica: what the pool's average spans.
_BUSY: Final = 60.0


def observe(pool: Pool, address: str, sample: Sample) -> None:
    """Take a sample in if it is newer than what is known."""
    replica = pool.get(address)
    if replica is not None and (replica.sample is None or sample.at > replica.sample.at):
        pool.observe(address, sample)


class Shared(Holdings):
    """This gateway's view of what the others do.

    Args:
        pools: of this gateway.
        me: its name and boot number, whose own batches are known already.
        on_sample: given a pool, an address and another gateway's sample; by default the pool takes in newer ones.
        on_failure: given a pool, an address and the reason why another gateway's scrape failed, and when.

    Attributes:
        missed: something was told that did not come; set to False by who asks for the tables.
        asked: somebody wants our table; set to False by who sends it.
        leavings: what replicas said themselves of leaving, here and to others.
        gaps: batches that never came.
        uncalled: samples of a gateway that does not collect the pool's.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        me: tuple[str, int],
        on_sample: Callable[[Pool, str, Sample], None] = observe,
        on_failure: Callable[[Pool, str, str, float], None] = lambda pool, a, r, now: pool.failed(a, r, now),
    ) -> None:
        super().__init__(pools)
        self.missed = self.asked = False
        self.gaps = self.uncalled = 0
        self._me = me
        self._on_sample = on_sample
        self._on_failure = on_failure
        #: Given the number of an exchange of this gateway whose first token another one saw, and when.
        self.on_first_token: Callable[[int, float], None] = lambda key, seen: None
        #: Whether a gateway is the one whose samples of a pool count, by their names.
        self.collects: Callable[[str, str], bool] = lambda pool, gateway: True
        self.leavings = Leavings(self.pools.values())
        self._charges = Charges(count(-1, -1), lambda engine: self._find(engine)[1])
        self.peers = Peers(self._charges)
        self._elsewhere = Elsewhere(self.pools)
        #: Called when news of others were taken in.
        self.on_news: Callable[[], None] = lambda: None

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
            self._rule(batch, position, own=True)
            if self._corrections:  # others may see a correction before this, which came here after
                self._index(batch, position, [self._find(engine) for engine in batch.engines], None)
            return False
        made, peer = now - lag, None
        if lag <= SILENCE:
            peer = self._peer(batch, made)
            if peer is None or not self._is_new(peer, batch):
                return False
            peer.heard, peer.tells = max(peer.heard, made), batch.tells
        self.asked = self.asked or (batch.asks and peer is not None)
        self._correct(batch, position)
        self._rule(batch, position, own=False)
        homes = [self._find(engine) for engine in batch.engines]
        self._index(batch, position, homes, batch.boot if batch.tells and peer is not None else 0)
        if peer is not None:
            self._end(batch)
            self._busy(batch, homes)
            self._fly(peer, batch, homes, made)
            self._elsewhere.hear((batch.gateway, batch.boot), batch, made)
            for row in batch.relayed:
                self._first_token((row.gateway, row.boot), row.key, made)
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
        self._first_token(gateway, key, now)
        self._charges.settle()
        self.on_news()

    def _first_token(self, gateway: tuple[str, int], key: int, seen: float) -> None:
        if gateway == self._me:
            self.on_first_token(key, seen)
        elif gateway in self.peers:
            self.peers[gateway].flights.first_tokens([key], seen)

    def expire(self, now: float) -> list[str]:
        """Drop gateways that fell silent, with all they had; returns their names. Call it a few times a second."""
        self._now = self._charges.now = now
        silent = list(self.peers.silent(now))
        for truth in self.truths() if silent else ():
            truth.lost({boot for _, boot in self.peers})
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

    def _fly(self, peer: Peer, batch: Batch, homes: list[Home], made: float) -> None:
        flights, seq = peer.flights, batch.seq
        if batch.leaves:
            peer.gone = True
            flights.clear()
        if peer.gone:
            return
        if batch.table is not None:
            flights.table(batch.table, batch.engines, made)
        flights.placed(seq, batch.placed, batch.engines, [replica for _, replica in homes], made)
        flights.first_tokens(batch.firsts, made)
        flights.ended(seq, batch.ended)

    def _busy(self, batch: Batch, homes: list[Home]) -> None:
        """Note the prompt work that was sent, as far as it can have been."""
        work = [0.0] * len(homes)
        for row in batch.placed:
            replica = homes[row.engine][1]
            if replica is not None:
                work[row.engine] += believed(row.work, replica)
        for (pool, replica), tokens in zip(homes, work, strict=True):
            if tokens and pool is not None and replica is not None:
                pool.busy.add(min(tokens / replica.prefill_speed, _BUSY), self._now)

    # -- what others had with engines ------------------------------------------------------------------

    def _doubt(self, batch: Batch, homes: list[Home], made: float) -> None:
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
                replica.doubt(made + row.seconds, now, made)

    def _leave(self, batch: Batch, homes: list[Home], made: float) -> None:
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
