"""A pool whose replicas are discovered: joins, leaves and farewells reach pool, collector and who else is told.

A `PoolFollower` is also the pool's roster (io/roster.py): what an operator dropped leaves everywhere, and comes back
when it is restored.
"""

from collections.abc import Callable, Mapping, Sequence

from extproc.core.membership import Changes
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.discovery import Discovery, Source
from extproc.io.tasks import Supervisor

#: Seconds a start waits for the sources' first answers; requests that come before find no replica.
_PATIENCE = 3.0
_CAUSE = "discovery"


class PoolFollower:
    """Keeps one pool like its sources say.

    Args:
        pool: who joins and leaves.
        sources: where replicas are found.
        grace: seconds an empty answer must stand.
        limit: most replicas.
        on_members: given address -> metrics URL ("" for the usual one) whenever the set changes; the pool has
            changed by then.
        on_left: given the addresses of those that left.
        domain_label: of what sources know of a replica, the one that says what it fails together with; "" for none.
    """

    def __init__(
        self,
        pool: Pool,
        sources: list[Source],
        *,
        grace: float,
        limit: int,
        on_members: Callable[[dict[str, str]], None],
        on_left: Callable[[Sequence[str]], None],
        domain_label: str = "",
    ) -> None:
        self._pool = pool
        self._on_members = on_members
        self._on_left = on_left
        self._domain_label = domain_label
        self.discovery = Discovery(pool.name, sources, self._take, clock.monotonic, grace=grace, limit=limit)

    async def start(self, tasks: Supervisor) -> None:
        """Follow from now on, and wait a moment for the first answers."""
        tasks.start(f"discovery {self._pool.name}", self.discovery.run)
        await self.discovery.first(_PATIENCE)

    @property
    def dropped(self) -> Mapping[str, float]:
        """Who was dropped and is still named by a source: address -> when (seconds, monotonic)."""
        return self.discovery.membership.dropped

    def drop(self, address: str) -> None:
        """Take a replica out of the pool until it is restored. Unknown addresses are ignored."""
        self.discovery.drop(address)

    def restore(self, address: str) -> None:
        """Let a dropped replica join again, at once; others are ignored."""
        self.discovery.restore(address)

    def terminating(self, address: str) -> bool:
        """Whether a source says that it runs out."""
        endpoint = self.discovery.membership.endpoints.get(address)
        return endpoint is not None and endpoint.terminating

    def _take(self, changes: Changes) -> None:
        now, pool = clock.monotonic(), self._pool
        with pool.at_once():
            for endpoint in changes.joined:  # those of the start have served all along, as far as we know
                pool.join(endpoint.address, now, None if changes.first else now)
            for address in changes.left:
                pool.leave(address)
        if changes.left:
            self._on_left(changes.left)
        for endpoint in changes.terminating:
            if replica := pool.get(endpoint.address):
                replica.drain(_CAUSE, now)
        for endpoint in changes.returned:  # an operator's drain stays
            replica = pool.get(endpoint.address)
            if replica and replica.life.cause == _CAUSE:
                replica.undrain(_CAUSE, now)
        members = self.discovery.membership.endpoints
        if self._domain_label:
            label = self._domain_label
            pool.domains.found((a, e.labels[label]) for a, e in members.items() if label in e.labels)
        if pool.handover is not None:
            pool.handover.found((address, endpoint.labels) for address, endpoint in members.items())
        self._on_members({address: endpoint.metrics for address, endpoint in members.items()})
