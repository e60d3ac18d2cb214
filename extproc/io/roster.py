"""Who belongs to a pool, for those who may take a replica out of it whatever its sources say.

`PoolFollower` (io/following.py) is the roster of a pool that is discovered, `FixedRoster` that of a pool whose list
stands in the configuration.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from extproc.core.pool import Pool
from extproc.io import clock


class Roster(Protocol):
    """The replicas of one pool, and who was dropped from it."""

    @property
    def dropped(self) -> Mapping[str, float]:
        """Who was dropped and would still belong to the pool: address -> when (seconds, monotonic)."""

    def drop(self, address: str) -> None:
        """Take a replica out of the pool until it is restored. Unknown addresses are ignored."""

    def restore(self, address: str) -> None:
        """Let a dropped replica join again, at once; others are ignored. It warms up like any that joins."""

    def terminating(self, address: str) -> bool:
        """Whether discovery says that it runs out, so that nothing new may go there whoever says so."""


class FixedRoster:
    """The roster of a list that never changes.

    Args:
        pool: who is taken out and put back.
        addresses: the list.
        on_left: given the address of each that was dropped.
    """

    def __init__(
        self, pool: Pool, addresses: Iterable[str], on_left: Callable[[str], None] = lambda _address: None
    ) -> None:
        self._pool = pool
        self._addresses = frozenset(addresses)
        self._on_left = on_left
        self._dropped: dict[str, float] = {}

    @property
    def dropped(self) -> Mapping[str, float]:
        """Who was dropped: address -> when (seconds, monotonic)."""
        return self._dropped

    def drop(self, address: str) -> None:
        """Take a replica out of the pool until it is restored. Unknown addresses are ignored."""
        if address in self._addresses and address not in self._dropped:
            self._dropped[address] = clock.monotonic()
            self._pool.leave(address)
            self._on_left(address)

    def restore(self, address: str) -> None:
        """Let a dropped replica join again, at once; others are ignored."""
        if self._dropped.pop(address, None) is not None:
            now = clock.monotonic()
            self._pool.join(address, now, now)

    def terminating(self, address: str) -> bool:
        """Never: a list does not say so."""
        return False
