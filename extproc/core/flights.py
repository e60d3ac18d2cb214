"""Requests that one other gateway has in flight, as its batches tell them: in any order, twice, or with some missing.

What is known of a request is joined, never overwritten by what is older:

    placed in batch s      it runs there, unless it ended, or a table made at s or later lacks it
    ended                  for good: a gateway uses a key once
    a table made before T  replaces everything that was told before batch T

So two views that got the same batches end equal, and one that missed some is right again with the next table.
"""

from collections.abc import Callable, Iterator
from typing import Final

from extproc.core.journal import Engine, Running, Table

#: Most requests of one gateway that are kept; `limits.streams` is 100,000.
_MOST: Final = 200_000
#: Sequence numbers in which a batch that comes twice is noticed.
_WINDOW: Final = 4096
#: Tables of which parts are waited for.
_PARTIAL: Final = 4


class Flight:
    """One request of another gateway. `local` is its key here, below 0; `bound` whether it is in our books."""

    __slots__ = ("bound", "engine", "local", "sent", "seq", "tokens", "work")

    def __init__(self, seq: int, local: int, engine: Engine, work: float, tokens: int, sent: float) -> None:
        self.seq = seq
        self.local = local
        self.engine = engine
        self.work = work
        self.tokens = tokens
        self.sent = sent
        self.bound = False


class Seen:
    """Which batches came, within a window below the newest."""

    __slots__ = ("_numbers", "newest")

    def __init__(self) -> None:
        self.newest = -1
        self._numbers: set[int] = set()

    def add(self, number: int) -> bool:
        """Whether a batch is new."""
        floor = self.newest - _WINDOW
        if number in self._numbers or number <= floor:
            return False
        self._numbers.add(number)
        if number == self.newest + 1:
            self._numbers.discard(number - _WINDOW)
        elif number > self.newest:
            self._numbers = {n for n in self._numbers if n > number - _WINDOW}
        self.newest = max(self.newest, number)
        return True


class Flights:
    """The requests of one gateway.

    Args:
        bind: puts a new request into the books.
        release: takes one out.
    """

    def __init__(
        self, keys: Iterator[int], bind: Callable[[Flight], None], release: Callable[[Flight], None]
    ) -> None:
        self._keys = keys
        self._bind = bind
        self._release = release
        self._known: dict[int, Flight] = {}
        self._ended: dict[int, int] = {}  # key -> batch that said so, until a table covers it
        self._before = 0  # everything told before this batch is in the last table
        self._partial: dict[int, dict[int, list[tuple[Running, Engine]]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def values(self) -> Iterator[Flight]:
        """Every request that is known to run."""
        return iter(self._known.values())

    def get(self, key: int) -> Flight | None:
        """One that is known to run."""
        return self._known.get(key)

    def placed(self, seq: int, key: int, engine: Engine, work: float, tokens: int, sent: float) -> None:
        """Batch `seq` says that it was sent to an engine at `sent` (our clock)."""
        if seq < self._before or key in self._ended:
            return
        known = self._known.get(key)
        if known is not None:
            if known.seq > seq:
                return
            if known.engine == engine:
                known.seq = seq
                return
            self._release(known)
        self._put(key, Flight(seq, next(self._keys), engine, work, tokens, sent))

    def ended(self, seq: int, key: int) -> None:
        """Batch `seq` says that it is over."""
        if seq >= self._before and len(self._ended) < _MOST:
            self._ended[key] = seq
        known = self._known.pop(key, None)
        if known is not None:
            self._release(known)

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

    def clear(self) -> None:
        """The gateway is gone, and so is what it had."""
        for flight in self._known.values():
            self._release(flight)
        self._known.clear()

    def _replace(self, before: int, rows: dict[int, tuple[Running, Engine]], made: float) -> None:
        self._before = before
        self._ended = {key: seq for key, seq in self._ended.items() if seq >= before}
        for key in [key for key, flight in self._known.items() if flight.seq < before and key not in rows]:
            self._release(self._known.pop(key))
        for key, (row, engine) in rows.items():
            known = self._known.get(key)
            if key in self._ended or (known is not None and known.seq >= before):
                continue
            if known is not None and known.engine == engine:
                known.seq = before
                continue
            if known is not None:
                self._release(known)
            self._put(key, Flight(before, next(self._keys), engine, row.work, row.tokens, made - row.age))

    def _put(self, key: int, flight: Flight) -> None:
        if key in self._known or len(self._known) < _MOST:
            self._known[key] = flight
            self._bind(flight)
