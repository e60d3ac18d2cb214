"""What this gateway has to tell of caches, until it is sent: how requests ended, and what it concluded as judge."""

from collections.abc import Callable, Sequence
from typing import Final

from extproc.core.announced import Ruling
from extproc.core.fleet import Replica
from extproc.core.holdings import engine_of
from extproc.core.journal import MOST_HASHES, MOST_TOKENS, Batch, Engine, Outcome, Ruled, pack_chains
from extproc.core.pool import Pool

#: Most outcomes and rulings that wait, and outcomes in a batch, some 10 bytes each.
_OUTCOMES: Final = 50_000
_RULINGS: Final = 4096
_ROWS: Final = 2000
#: Bytes of rulings in a batch, and of one beside its chains.
_BYTES: Final = 2**15
_ROW_BYTES: Final = 40
#: Prompts that a cache found empty is told to hold, as many as core/belief.py remembers, and hashes of them together:
#: 24 KiB, so that a ruling always fits into a batch.
_KEPT: Final = 64
_HASHES: Final = MOST_HASHES // 2


class Verdicts:
    """Outcomes and rulings that wait. A batch that could not be sent is told again: to hear it twice does no harm.

    Args:
        pools: of this gateway; where one learns from outcomes, they will be told.
        stir: called with news.
    """

    def __init__(self, pools: Sequence[Pool], stir: Callable[[], None]) -> None:
        self._pools = pools
        self._stir = stir
        self._outcomes: list[Outcome] = []
        self._ruled: list[tuple[Engine, int, Ruling]] = []
        self._sent: tuple[list[Outcome], list[tuple[Engine, int, Ruling]]] = ([], [])  # in the last batch
        #: News for which there was no room.
        self.dropped = 0

    def __len__(self) -> int:
        """News that wait."""
        return len(self._outcomes) + len(self._ruled)

    def outcome(self, key: int, tokens: float | None, cached: float | None) -> None:
        """An exchange that was placed ended so: its prompt tokens (0: never computed), and those that were cached."""
        if len(self._outcomes) >= _OUTCOMES:
            self.dropped += 1
            return
        known = tokens is not None and 0 <= tokens <= MOST_TOKENS
        is_told = known and cached is not None and 0 <= cached <= MOST_TOKENS
        self._outcomes.append(
            Outcome(key, int(tokens or 0) if known else 1, int(cached or 0) if is_told else None)
        )
        self._stir()

    def ruled(self, pool: Pool, replica: Replica, token: int, ruling: Ruling) -> None:
        """What this gateway concluded of a replica's cache, as it judges the pool by the lease of this token.

        Token 0: it does not judge, and found the cache emptied while it was alone.
        """
        if len(self._ruled) >= _RULINGS:
            self.dropped += 1
            return
        self._ruled.append((engine_of(pool, replica), token, ruling))
        self._stir()

    def add(self, batch: Batch, rows: dict[Engine, int]) -> None:
        """Put what fits into a batch. `rows`: engines of the batch and their numbers."""
        batch.tells = any(pool.feedback is not None for pool in self._pools)
        batch.outcomes, self._outcomes = self._outcomes[:_ROWS], self._outcomes[_ROWS:]
        told, room = 0, _BYTES
        while told < len(self._ruled) and room > 0:
            engine, token, ruling = self._ruled[told]
            kept = pack_chains(ruling.kept[:_KEPT], _HASHES)
            row = rows.setdefault(engine, len(rows))
            batch.ruled.append(Ruled(row, token, ruling.step, ruling.scale, ruling.emptied, kept))
            told, room = told + 1, room - _ROW_BYTES - sum(map(len, kept))
        self._sent = batch.outcomes, self._ruled[:told]
        del self._ruled[:told]

    def failed(self) -> None:
        """The last batch could not be sent."""
        self._outcomes[:0], self._ruled[:0] = self._sent
        self._sent = [], []
        over = len(self._outcomes) - _OUTCOMES
        if over > 0:
            del self._outcomes[:over]
            self.dropped += over
