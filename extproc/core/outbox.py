"""What this gateway has to tell the others, until it is sent.

For each request the hot path appends a reference to a list; everything else is done a batch at a time. The lists are
bounded. When nothing can be sent, what is least valuable goes first:

    placements   of the oldest, one by one: others then know less of what is cached
    ends         all at once: the next table says what still runs, and is due then

Pure: whoever sends asks for `batch`, and says `failed` when it could not be sent.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from extproc.core.breaker import CLOSED
from extproc.core.fleet import Replica
from extproc.core.holdings import engine_of
from extproc.core.journal import (
    FULL_BYTES,
    MOST_HASHES,
    MOST_TOKENS,
    Batch,
    Engine,
    Forgotten,
    Held,
    Leaving,
    Placed,
    Ratio,
    Relayed,
    Running,
    Sampled,
    Table,
    Troubled,
    pack_chains,
    pack_hashes,
    told,
)
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.sample import Sample
from extproc.core.verdicts import Verdicts

if TYPE_CHECKING:
    from extproc.core.decide import Decision

#: Most placements, ends and other news that wait.
_PLACEMENTS: Final = 20_000
_ENDS: Final = 50_000
_OTHERS: Final = 4096
#: Rows of one kind in a batch; some 20 bytes each.
_ROWS: Final = 2000
#: Rows of a table in one batch, some 30 bytes each.
_TABLE_ROWS: Final = 1000
#: Seconds between tables; longer when much is in flight, so that at most 1,000 rows a second are told.
_TABLE_EVERY: Final = 2.0
_TABLE_LONGEST: Final = 10.0
#: Shortest time between tables that others asked for.
_TABLE_LEAST: Final = 0.25
#: Samples in one batch, some 150 bytes each, and bytes of corrections and held requests.
_SAMPLES: Final = 200
_RARE_BYTES: Final = 2**15
#: Seconds between two looks at what was learned of tokens per byte.
_RATIOS_EVERY: Final = 3.0
#: Bytes of a row beside its chains.
_ROW_BYTES: Final = 40


class Outbox:
    """Collects news, and makes batches of them.

    Args:
        name, boot: who this is.
        pools: of this gateway.
        ledger: whose charges are told; its listener becomes this outbox.
        wake: called with the first news after `idle` was set.

    Attributes:
        idle: nobody looks at the outbox until `wake` is called.
        dropped: news that were never sent, by kind.
        behind: the last batch was full before everything was in it, so that the next is due at once.
        asks: the next batch asks for the others' tables.
    """

    def __init__(
        self, name: str, boot: int, pools: list[Pool], ledger: Ledger, wake: Callable[[], None]
    ) -> None:
        self.idle = self.behind = False
        self.asks = True
        self.leaves = False
        self.dropped = {"placement": 0, "end": 0, "other": 0}
        self.seq = 0
        self._name, self._boot = name, boot
        self._pools = pools
        self._ledger = ledger
        self._wake = wake
        # With the chains: a request's record lets go of them when it ends, which may be before this can be told.
        self._placed: list[tuple[Decision, Replica, list[Chain]]] = []
        self._taken: list[tuple[Decision, Replica, list[Chain]]] = []  # in the last batch
        self._firsts: list[int] = []
        self._ended: list[int] = []
        self._relayed: list[Relayed] = []
        self._sampled: dict[tuple[str, str], tuple[Pool, Replica, Sample | None, str, float]] = {}
        self._forgotten: list[tuple[Engine, bytes]] = []
        self._troubled: dict[Engine, Replica] = {}
        self._leaving: dict[Engine, tuple[float, bool]] = {}
        self._held: dict[
            int, tuple[Pool, Prompt, float]
        ] = {}  # by exchange; until told, or bound before that
        self._table: list[Running] | None = None  # rows not yet told
        self._engines: list[Engine] = []  # that rows of the table name
        self._part = self._parts = self._before = 0
        self._table_due = True
        self._tabled = float("-inf")
        self._rows = 0
        #: How requests ended, and what was concluded of caches.
        self.verdicts = Verdicts(pools, self._stir)
        self._learned = float("-inf")  # when it was last looked at what was learned

    def __len__(self) -> int:
        """News that wait."""
        rare = len(self._forgotten) + len(self._sampled) + len(self._held) + len(self._troubled)
        rare += len(self._leaving) + len(self.verdicts)
        return len(self._placed) + len(self._firsts) + len(self._relayed) + len(self._ended) + rare

    # -- news ------------------------------------------------------------------------------------------

    def placed(self, decision: "Decision", replica: Replica) -> None:
        """A decision was bound."""
        prompt = decision.prompt
        self._placed.append((decision, replica, prompt.chains if prompt is not None else []))
        if len(self._placed) > _PLACEMENTS:
            self._drop_placements()
        if self.idle:
            self._stir()

    def first_token(self, key: int) -> None:
        """The first token of an exchange was seen."""
        self._firsts.append(key)
        if len(self._firsts) > _ENDS:
            self._drop_ends()
        if self.idle:
            self._stir()

    def relay(self, gateway: tuple[str, int], key: int) -> None:
        """The first token of an exchange of another gateway, by name and start, was seen here."""
        if len(self._relayed) >= _OTHERS:
            self.dropped["other"] += 1
            return
        self._relayed.append(Relayed(*gateway, key))
        self._stir()

    def ended(self, key: int) -> None:
        """An exchange is over."""
        self._ended.append(key)
        if len(self._ended) > _ENDS:
            self._drop_ends()
        if self.idle:
            self._stir()

    def sampled(self, pool: Pool, address: str, sample: Sample) -> None:
        """This gateway's collector read a sample; of those that wait the newest of each replica is told."""
        self._note_sample(pool, address, sample, "", sample.at)

    def scrape_failed(self, pool: Pool, address: str, reason: str, now: float) -> None:
        """This gateway's collector could not read a sample."""
        self._note_sample(pool, address, None, reason, now)

    def forgot(self, pool: Pool, address: str, hashes: list[int]) -> None:
        """It turned out that a replica does not hold some hashes."""
        replica = pool.get(address)
        if replica is None or len(self._forgotten) >= _OTHERS:
            self.dropped["other"] += 1
            return
        self._forgotten.append((engine_of(pool, replica), pack_hashes(hashes[:MOST_HASHES])))
        self._stir()

    def troubled(self, pool: Pool, replica: Replica, seconds: float) -> None:
        """The breaker of a replica opened or closed; how it is when the batch is made is told."""
        engine = engine_of(pool, replica)
        if len(self._troubled) >= _ROWS and engine not in self._troubled:
            self.dropped["other"] += 1
            return
        self._troubled[engine] = replica
        self._stir()

    def leaving(self, pool: Pool, replica: Replica, said: float, leaves: bool) -> None:
        """A replica's own word of whether it leaves, said at a time of our clock. The newest word is told."""
        engine = engine_of(pool, replica)
        if len(self._leaving) >= _ROWS and engine not in self._leaving:
            self.dropped["other"] += 1
            return
        self._leaving[engine] = said, leaves
        self._stir()

    def held(self, key: int, pool: Pool, prompt: Prompt, arrived: float) -> None:
        """A request waits here for a replica."""
        if len(self._held) >= _OTHERS:
            self.dropped["other"] += 1
            return
        self._held[key] = pool, prompt, arrived
        self._stir()

    def unheld(self, key: int, *, gone: bool) -> None:
        """It does not wait any more. Its placement tells that, unless it is `gone`."""
        if self._held.pop(key, None) is None and gone:
            self.ended(key)

    def table_wanted(self, now: float) -> None:
        """Somebody missed something."""
        if now - self._tabled >= _TABLE_LEAST:
            self._table_due = True
        self._tell_all_learned()

    # -- batches ---------------------------------------------------------------------------------------

    def has_news(self, now: float) -> bool:
        """Whether there is more to say than that this gateway lives."""
        return bool(
            len(self) or self._table is not None or self._is_table_due(now) or self.asks or self.leaves
        )

    def batch(self, now: float) -> Batch:
        """The next batch, as full as may be; what does not fit waits for the one after."""
        batch = Batch(self._name, self._boot, self.seq, self.asks, self.leaves)
        self.seq += 1
        rows: dict[Engine, int] = {}
        self._add_table(batch, rows, now)
        self._add_others(batch, rows, now)
        self._add_placed(batch, rows, now)
        batch.firsts, self._firsts = self._firsts[:_ROWS], self._firsts[_ROWS:]
        batch.ended, self._ended = self._ended[:_ROWS], self._ended[_ROWS:]
        batch.relayed, self._relayed = self._relayed[:_ROWS], self._relayed[_ROWS:]
        self._add_ratios(batch, now)
        self.verdicts.add(batch, rows)
        batch.engines = list(rows)
        self.asks = False
        return batch

    def failed(self) -> None:
        """The last batch could not be sent, or perhaps it was: its placements wait again, a table makes up for the
        rest."""
        self._placed[:0] = self._taken
        self._taken = []
        self._drop_placements()
        self._table, self._table_due = None, True
        self._firsts.clear()
        self._ended.clear()
        self.verdicts.failed()
        self._tell_all_learned()
        self.asks = True

    def _add_table(self, batch: Batch, rows: dict[Engine, int], now: float) -> None:
        if self._table is None:
            if not self._is_table_due(now):
                return
            self._begin_table(batch.seq, now)
        assert self._table is not None
        part, self._table = self._table[:_TABLE_ROWS], self._table[_TABLE_ROWS:]
        for row in part:
            row.engine = rows.setdefault(self._engines[row.engine], len(rows))
        batch.table = Table(self._before, self._part, self._parts, part)
        self._part += 1
        if self._part == self._parts:
            self._table = None

    def _is_table_due(self, now: float) -> bool:
        every = min(max(_TABLE_EVERY, self._rows / 1000), _TABLE_LONGEST)
        return self._table_due or now - self._tabled >= every

    def _begin_table(self, seq: int, now: float) -> None:
        """Write down what runs on living incarnations. News made before this are in this batch or came before it."""
        known = {id(replica): (pool, replica) for pool in self._pools for replica in pool.replicas}
        engines: dict[Engine, int] = {}
        numbers: dict[int, int] = {}
        found = []
        for key, on, tokens in self._ledger.entries():
            living = known.get(id(on))
            if living is None:
                continue
            if id(on) not in numbers:
                numbers[id(on)] = engines.setdefault(engine_of(*living), len(engines))
            work = min(max(on.books.left(key), 0.0), MOST_TOKENS)
            found.append(Running(key, numbers[id(on)], work, min(tokens, MOST_TOKENS), 0.0))
        self._table, self._engines = found, list(engines)
        self._part, self._parts, self._before = 0, max(-(-len(found) // _TABLE_ROWS), 1), seq
        self._table_due, self._tabled, self._rows = False, now, len(found)

    def _add_others(self, batch: Batch, rows: dict[Engine, int], now: float) -> None:
        for name in list(self._sampled)[:_SAMPLES]:
            pool, replica, sample, reason, at = self._sampled.pop(name)
            row, age = rows.setdefault(engine_of(pool, replica), len(rows)), max(now - at, 0.0)
            batch.sampled.append(
                told(row, sample, age) if sample is not None else Sampled(row, age, failure=reason[:64])
            )
        for engine, replica in self._troubled.items():
            seconds = replica.breaker.rest(now)
            if (
                seconds or replica.breaker.state == CLOSED
            ):  # else it waited too long: whoever likes may try by now
                batch.troubled.append(Troubled(rows.setdefault(engine, len(rows)), seconds))
        self._troubled.clear()
        for engine, (said, leaves) in self._leaving.items():
            batch.leaving.append(Leaving(rows.setdefault(engine, len(rows)), max(now - said, 0.0), leaves))
        self._leaving.clear()
        room = _RARE_BYTES
        while self._forgotten and room > 0:
            engine, hashes = self._forgotten.pop(0)
            batch.forgotten.append(Forgotten(rows.setdefault(engine, len(rows)), hashes))
            room -= _ROW_BYTES + len(hashes)
        while self._held and room > 0:
            key = next(iter(self._held))
            pool, prompt, arrived = self._held.pop(key)
            chains = pack_chains(prompt.chains, MOST_HASHES)
            sizes = (prompt.model[:256], prompt.dialect, prompt.size, prompt.token_ids)
            most = None if prompt.max_output is None else min(prompt.max_output * prompt.n, MOST_TOKENS)
            batch.held.append(
                Held(key, pool.name, *sizes, max(now - arrived, 0.0), chains, prompt.script, most)
            )
            room -= _ROW_BYTES + sum(map(len, chains))

    def _add_ratios(self, batch: Batch, now: float) -> None:
        """Tokens per byte that moved; with the batches that are sent anyway, every second at least."""
        if now - self._learned < _RATIOS_EVERY:
            return
        self._learned = now
        for pool in self._pools:
            if pool.feedback is not None:
                batch.ratios += [Ratio(pool.name, *row) for row in pool.ratios.news()]

    def _tell_all_learned(self) -> None:
        for pool in self._pools:
            pool.ratios.untold()

    def _add_placed(self, batch: Batch, rows: dict[Engine, int], now: float) -> None:
        size = count = 0
        engines: dict[int, int] = {}
        add, running = batch.placed.append, self._ledger
        for decision, replica, known in self._placed:
            if size >= FULL_BYTES or count >= _ROWS:
                break
            count += 1
            row = engines.get(id(replica))
            if row is None:
                row = engines[id(replica)] = rows.setdefault(engine_of(decision.pool, replica), len(rows))
            chains = pack_chains(known, MOST_HASHES)
            # What has ended meanwhile is told for its hashes alone.
            key = decision.key if decision.key in running else 0
            age = now - decision.at
            tokens = min(int(decision.tokens + decision.output), MOST_TOKENS)
            work = min(decision.work, MOST_TOKENS)
            add(Placed(key, row, work, tokens, age if age > 0 else 0.0, chains, decision.told))
            size += _ROW_BYTES + sum(map(len, chains))
        self._taken, self._placed = self._placed[:count], self._placed[count:]
        self.behind = bool(self._placed)

    # -- bounds ----------------------------------------------------------------------------------------

    def _note_sample(self, pool: Pool, address: str, sample: Sample | None, reason: str, at: float) -> None:
        replica = pool.get(address)
        key = (pool.name, address)
        if replica is None or (len(self._sampled) >= _OTHERS and key not in self._sampled):
            self.dropped["other"] += 1
            return
        self._sampled[key] = (pool, replica, sample, reason, at)
        self._stir()

    def _drop_placements(self) -> None:
        over = len(self._placed) - _PLACEMENTS
        if over > 0:
            del self._placed[: over + _PLACEMENTS // 20]  # some more, so that this is rare
            self.dropped["placement"] += over + _PLACEMENTS // 20
            self._table_due = True

    def _drop_ends(self) -> None:
        self.dropped["end"] += len(self._ended) + len(self._firsts)
        self._ended.clear()
        self._firsts.clear()
        self._table_due = True

    def _stir(self) -> None:
        if self.idle:
            self.idle = False
            self._wake()
