"""What other gateways hold, in this gateway's rooms: told when it begins to wait, gone when it is placed or over.

A request that is not told of any more (news that were lost) is forgotten by the room when it is overdue.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final

from extproc.core.journal import Batch, Held, unpack_chain
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.waiting import WaitingRoom

#: Most chains of one request that are looked at.
_CHAINS: Final = 2048

#: A gateway's name, and the number of its start.
Name = tuple[str, int]


class Elsewhere:
    """Held requests of others, by gateway.

    Args:
        pools: of this gateway, by name; those with a room count.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools
        self._keys = count(-1, -1)  # below 0: an exchange's own number is above
        self._held: dict[Name, dict[int, tuple[int, WaitingRoom]]] = {}

    def __len__(self) -> int:
        """Requests that are remembered."""
        return sum(map(len, self._held.values()))

    def hear(self, gateway: Name, batch: Batch, made: float) -> None:
        """Take in a batch that a gateway made at `made` (our clock)."""
        if batch.held:
            held = self._held.setdefault(gateway, {})
            for row in batch.held:
                self._add(held, row, made)
        elif not self._held:
            return
        if batch.leaves:
            self._forget(gateway)
        known = self._held.get(gateway)
        if known:
            self._drop(known, [row.key for row in batch.placed])
            self._drop(known, batch.ended)

    def keep_only(self, gateways: Iterable[Name]) -> None:
        """Forget what gateways hold that are not heard any more."""
        for gone in self._held.keys() - set(gateways) if self._held else ():
            self._forget(gone)

    def _add(self, held: dict[int, tuple[int, WaitingRoom]], row: Held, made: float) -> None:
        pool = self._pools.get(row.pool)
        if pool is None or not isinstance(pool.room, WaitingRoom) or row.key in held:
            return
        chains = [chain for data in row.chains[:_CHAINS] if (chain := unpack_chain(data)) is not None]
        prompt = Prompt(
            dialect=row.dialect,
            kind="generate",
            model=row.model,
            chains=chains,
            size=row.size,
            token_ids=row.token_ids,
            script=row.script,
            max_output=row.most,
        )
        key = next(self._keys)
        if pool.room.hear(key, prompt, made - row.age):
            held[row.key] = key, pool.room

    def _drop(self, held: dict[int, tuple[int, WaitingRoom]], keys: Iterable[int]) -> None:
        for key in keys:
            found = held.pop(key, None)
            if found is not None:
                found[1].remove(found[0])

    def _forget(self, gateway: Name) -> None:
        for key, room in self._held.pop(gateway, {}).values():
            room.remove(key)
