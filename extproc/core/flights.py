"""Requests that one other gateway has in flight, as its batches tell them: in any order, twice, or with some missing.

What is known of a request is joined, never overwritten by what is older:

    placed in batch s      it runs there, unless it ended, or a table made at s or later lacks it
    ended                  for good: a gateway uses a key once
    a table made before T  replaces everything that was told before batch T

So two views that got the same batches end equal, and one that missed some is right again with the next table.
"""

from collections.abc import Callable, Iterator
from typing import Final

from extproc.core.cost import prefill_work
from extproc.core.fleet import Replica
from extproc.core.journal import Engine, Placed, Running, Table

#: Most requests of one gateway that are kept; `limits.streams` is 100,000.
_MOST: Final = 200_000
#: Sequence numbers in which a batch that comes twice is noticed.
WINDOW: Final = 4096
#: Tables of which parts are waited for.
_PARTIAL: Final = 4

#: One request of another gateway: the batch that said so last, its key in our books (below 0), the engine, the
#: replica in whose books it is (None: in none), work and tokens, and when it was sent (our clock). A tuple, for there
#: is one for every request of the fleet.
Flight = tuple[int, int, Engine, Replica | None, float, int, float]


def believed(work: float, replica: Replica) -> float:
    """Prompt work that one request can be for a replica: at most that of a prompt as large as its KV cache."""
    if work <= replica.kv_tokens:  # a token is at least one of work (core/cost.py)
        return work
    return min(work, prefill_work(0.0, replica.kv_tokens, replica.traits.prefill_doubling))


class Charges:
    """What all other gateways have in flight, in the books of this one's replicas.

    A replica's occupancy is counted anew once for each batch (`settle`), not for each request.

    Args:
        keys: numbers of requests in the books, below 0.
        find: the replica an engine is, None for one that is not known here.
    """

    def __init__(self, keys: Iterator[int], find: Callable[[Engine], Replica | None]) -> None:
        self.keys = keys
        self.find = find
        self.now = 0.0  # seconds, our clock
        self.count = 0  # requests in the books
        self._touched: dict[int, Replica] = {}

    def put(
        self, key: int, replica: Replica, work: float, tokens: int, sent: float, told: bool = False
    ) -> None:
        """A request that was sent at `sent` goes into a replica's books."""
        now, work = self.now, believed(work, replica)
        replica.books.send(
            key, work, tokens, now, replica.prefill_speed, sent if sent < now else now, told=told
        )
        self._touched[id(replica)] = replica
        self.count += 1

    def take(self, key: int, replica: Replica, tokens: int) -> None:
        """It is over."""
        replica.books.end(key, tokens, self.now)
        self._touched[id(replica)] = replica
        self.count -= 1

    def prompt_done(self, key: int, replica: Replica, seen: float) -> None:
        """Its first token was seen at `seen`."""
        work, seconds = replica.books.prompt_done(key, self.now, seen)
        if seconds > 0:
            replica.learn(work, seconds)
        self._touched[id(replica)] = replica

    def settle(self) -> None:
        """Count the replicas whose books changed."""
        for replica in self._touched.values():
            replica.recount()
        self._touched.clear()


class Seen:
    """Which batches came, within a window below the newest.

    A number far above it is no news, for whoever believes it takes all that comes after for old. When another one
    follows near it, the numbering began anew there.
    """

    __slots__ = ("_far", "_numbers", "newest")

    def __init__(self) -> None:
        self.newest = -1
        self._far = -1  # the last number that was far above; -1 for none
        self._numbers: set[int] = set()

    def add(self, number: int) -> bool:
        """Whether a batch is new."""
        floor = self.newest - WINDOW
        if number in self._numbers or number <= floor or self._is_far(number):
            return False
        self._numbers.add(number)
        if number == self.newest + 1:
            self._numbers.discard(number - WINDOW)
        elif number > self.newest:
            self._numbers = {n for n in self._numbers if n > number - WINDOW}
        self.newest = max(self.newest, number)
        return True

    def _is_far(self, number: int) -> bool:
        if self.newest < 0 or number <= self.newest + WINDOW:
            return False
        before, self._far = self._far, number
        return before < 0 or abs(number - before) > WINDOW


class Flights:
    """The requests of one gateway, in the books by `charges`."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self._known: dict[int, Flight] = {}
        self._ended: dict[int, int] = {}  # key -> batch that said so, until a table covers it
        self._before = 0  # everything told before this batch is in the last table
        self._partial: dict[int, dict[int, list[tuple[Running, Engine]]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def replicas(self) -> Iterator[Replica | None]:
        """The replica that each of its requests is on; None for one that is not in this gateway's pool."""
        return (flight[3] for flight in self._known.values())

    def placed(
        self, seq: int, rows: list[Placed], engines: list[Engine], on: list[Replica | None], made: float
    ) -> None:
        """Batch `seq`, made at `made` (our clock), says what was sent where; `on` are the replicas of `engines`."""
        if seq < self._before:
            return
        known, ended, charges = self._known, self._ended, self._charges
        for row in rows:
            key = row.key
            if not key or key in ended:
                continue
            if key in known:
                if not self._confirm(seq, key, engines[row.engine]):
                    continue
            elif len(known) >= _MOST:
                continue
            local, replica, sent = next(charges.keys), on[row.engine], made - row.age
            if replica is not None:
                charges.put(local, replica, row.work, row.tokens, sent, row.told)
            known[key] = (seq, local, engines[row.engine], replica, row.work, row.tokens, sent)

    def first_tokens(self, keys: list[int], seen: float) -> None:
        """The first tokens of some were seen at `seen` (our clock)."""
        get, done = self._known.get, self._charges.prompt_done
        for key in keys:
            flight = get(key)
            if flight is not None and flight[3] is not None:
                done(flight[1], flight[3], seen)

    def ended(self, seq: int, keys: list[int]) -> None:
        """Batch `seq` says that some are over."""
        if seq >= self._before and len(self._ended) + len(keys) <= _MOST:
            self._ended.update(dict.fromkeys(keys, seq))
        pop, take = self._known.pop, self._charges.take
        for key in keys:
            flight = pop(key, None)
            if flight is not None and flight[3] is not None:
                take(flight[1], flight[3], flight[5])

    def table(self, table: Table, engines: list[Engine], made: float) -> None:
        """A part of a table made at `made` (our clock); it takes effect with its last part."""
        if table.before < self._before:
            return
        parts = self._partial.setdefault(table.before, {})
        parts[table.part] = [(row, engines[row.engine]) for row in table.rows]
        if len(parts) < table.parts:
            if len(self._partial) > _PARTIAL:
                del self._partial[min(self._partial)]
            return
        rows = {row.key: (row, engine) for part in parts.values() for row, engine in part}
        self._partial = {before: kept for before, kept in self._partial.items() if before > table.before}
        self._replace(table.before, rows, made)

    def rebind(self) -> None:
        """Charge what could not be charged before, where its replica is known now."""
        for key, flight in self._known.items():
            if flight[3] is None:
                self._known[key] = self._bound(
                    flight
                )  # no key is new: the dict may be gone through meanwhile

    def clear(self) -> None:
        """The gateway is gone, and so is what it had."""
        for flight in self._known.values():
            self._release(flight)
        self._known.clear()

    def _replace(self, before: int, rows: dict[int, tuple[Running, Engine]], made: float) -> None:
        self._before = before
        self._ended = {key: seq for key, seq in self._ended.items() if seq >= before}
        for key in [key for key, flight in self._known.items() if flight[0] < before and key not in rows]:
            self._release(self._known.pop(key))
        for key, (row, engine) in rows.items():
            if key in self._ended:
                continue
            if key in self._known:
                if self._known[key][0] == before or not self._confirm(before, key, engine):
                    continue
            elif len(self._known) >= _MOST:
                continue
            local, sent = next(self._charges.keys), made - row.age
            self._known[key] = self._bound((before, local, engine, None, row.work, row.tokens, sent))

    def _confirm(self, seq: int, key: int, engine: Engine) -> bool:
        """Batch `seq` tells again of one that is known; whether it runs elsewhere and was released."""
        known = self._known[key]
        if known[0] > seq:
            return False
        if known[2] == engine:
            self._known[key] = (seq, *known[1:])
            return False
        self._release(known)
        return True

    def _bound(self, flight: Flight) -> Flight:
        seq, local, engine, _, work, tokens, sent = flight
        replica = self._charges.find(engine)
        if replica is not None:
            self._charges.put(local, replica, work, tokens, sent)
        return seq, local, engine, replica, work, tokens, sent

    def _release(self, flight: Flight) -> None:
        if flight[3] is not None:
            self._charges.take(flight[1], flight[3], flight[5])
