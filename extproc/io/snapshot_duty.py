"""When a snapshot is written, and when it is loaded: so that every view of an index is whole, soon.

Each pool has a lease `snapshot:POOL`, since gateways on one Redis need not have the same pools. Its holder looks once
a second whether the newest is old, or lies before what the journal still keeps, and then writes another. A gateway
whose own view is not whole (it has just started, or was away for longer than the journal keeps; a load broke off; a
replica is known here only now) looks twice a second, and loads the newest each time there is one that it does not
have. It does not want the lease meanwhile, since what it wrote would lack something; after a while it does, for
perhaps nobody's view is whole.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog
from redis.exceptions import RedisError

from extproc.core.pool import Pool
from extproc.core.reach import Position, Reach, is_due
from extproc.core.shared import Shared
from extproc.io.lease import Lease
from extproc.io.redis_check import AtKey, Trouble
from extproc.io.state_snapshot import Head, Snapshots

_log = structlog.get_logger("kvsteer.snapshot")

#: Seconds between two looks, and where the view is not whole.
LOOK, _LOOK_AGAIN = 1.0, 0.5
#: Seconds without a whole view after which this gateway is content with what it has.
_PATIENCE = 10.0
#: Seconds after which a snapshot that could not be read in full is tried again; it doubles up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 15.0


class SnapshotDuty:
    """Keeps views whole.

    Args:
        snapshots: writes and loads.
        shared: the pools.
        reach: how far this gateway's views reach.
        leases: who writes each pool's.
        position: up to where the journal is applied.
        clock: seconds, monotonic.

    Attributes:
        trouble: whether Redis refuses snapshots again and again.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        shared: Shared,
        reach: Reach,
        leases: Mapping[str, Lease],
        position: Callable[[], Position],
        clock: Callable[[], float],
    ) -> None:
        self._snapshots, self._shared, self._reach, self._leases = snapshots, shared, reach, leases
        self._position, self._clock = position, clock
        self._lacking_since = dict.fromkeys(shared.pools, clock())
        self._absent: set[str] = set()  # pools without a snapshot at the last look
        self._taken: dict[str, str] = {}  # pool -> the snapshot that was loaded last, in full
        self._retry: dict[
            str, tuple[str, float, float]
        ] = {}  # pool -> one in part: when to try again, the wait
        self._troubled = ""
        self.trouble = Trouble("snapshots")

    def is_willing(self, pool: str) -> bool:
        """Whether this gateway should write a pool's snapshots: they lack nothing, as far as can be known.

        While there is no snapshot whoever knows of something is, and who missed nothing that is known of.
        """
        knows = len(self._shared.pools[pool].index) > 0 or not self._reach.lost
        return self._reach.is_whole(pool) or (pool in self._absent and knows) or self._lacks_long(pool)

    def _lacks_long(self, pool: str) -> bool:
        return self._clock() - self._lacking_since[pool] > _PATIENCE

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK if self._reach.whole else _LOOK_AGAIN)

    async def look(self) -> None:
        """Load and write what is due. Never raises for Redis' sake, and for one pool's none of the others waits."""
        failed: Exception | None = None
        for pool in self._shared.pools.values():
            try:
                await self._see_to(pool)
            except (RedisError, OSError) as error:
                failed = failed or error
        if failed is not None:
            self.trouble.failed(failed)
        else:
            self.trouble.works()
        self._tell(_kind(failed) if failed else "")
        for name in filter(self._reach.is_whole, self._shared.pools):
            self._lacking_since[name] = self._clock()

    async def begin(self) -> None:
        """Before the journal is read: know how large caches are, lest what is read be dropped for want of room."""
        try:
            for pool in self._shared.pools.values():
                await self._snapshots.presume(pool)
        except (RedisError, OSError):
            pass  # then the index is bounded by the configured size until engines tell theirs

    def arrived(self, pool: str) -> None:
        """A replica joined here of which news had come before, and were lost."""
        self._reach.missed(pool, self._position())
        self._taken.pop(pool, None)
        self._lacking_since[pool] = self._clock()

    async def _see_to(self, pool: Pool) -> None:
        is_whole, lease = self._reach.is_whole(pool.name), self._leases[pool.name]
        if is_whole and not lease.held:
            return
        head = await self._snapshots.head(pool.name)
        if head is not None and self._reach.is_beyond(head.position):
            head = None  # of a stream that is gone, or nobody's
        (self._absent.discard if head is not None else self._absent.add)(pool.name)
        if head is not None and head.gen and not is_whole:
            await self._mend(pool, head)
        if lease.held and self.is_willing(pool.name) and self._is_worth(pool, head):
            await self._write(pool, head)

    def _is_worth(self, pool: Pool, head: Head | None) -> bool:
        """Whether to write: of a pool without traffic an empty snapshot, else no view of it could be whole."""
        if len(pool.index) or self._reach.is_whole(pool.name):
            return True
        return head is None and self._lacks_long(pool.name)

    async def _mend(self, pool: Pool, head: Head) -> None:
        """Load a snapshot, unless this one was already."""
        if self._taken.get(pool.name) == head.gen:
            self._reach.loaded(pool.name, head.position)  # where the tail begins may be known only now
            return
        began = self._clock()
        again = self._retry.get(pool.name, ("", 0.0, 0.0))
        if again[0] == head.gen and began < again[1]:
            return
        wait = min(again[2] * 2, _LONGEST_WAIT) if again[0] == head.gen else _FIRST_WAIT
        self._retry[pool.name] = (head.gen, began + wait, wait)  # also when Redis fails on the way
        pairs, is_all = await self._snapshots.take(pool, head)
        if not is_all:
            return
        del self._retry[pool.name]
        self._taken[pool.name] = head.gen
        self._reach.loaded(pool.name, head.position)
        _log.info("snapshot loaded", pool=pool.name, pairs=pairs, seconds=round(self._clock() - began, 3))
        if self._reach.has_hole(pool.name):
            _log.warning(
                "the journal does not reach back to the snapshot; waiting for the next", pool=pool.name
            )

    async def _write(self, pool: Pool, head: Head | None) -> None:
        if not is_due(head.position if head else None, await self._snapshots.oldest(), self._position()):
            return
        position = await self._snapshots.write(pool)
        if position is not None:
            self._absent.discard(pool.name)
            self._reach.loaded(pool.name, position)

    def _tell(self, error: str) -> None:
        """Say once that Redis fails."""
        if error and error != self._troubled:
            _log.warning("snapshots can't be read or written; the index warms with traffic", error=error)
        self._troubled = error


def _kind(error: Exception) -> str:
    return type(error.error if isinstance(error, AtKey) else error).__name__
