"""A gateway's leases together: one client, kept by the supervisor, given up at the end."""

import asyncio
from typing import Any

from extproc.config import RedisSettings
from extproc.io.lease import Lease
from extproc.io.redis_client import make_client
from extproc.io.tasks import Supervisor

#: Calls of leases under way at once: fewer than a client has connections (io/redis_client.py), so that many pools'
#: leases wait a moment where they would be refused.
_AT_ONCE = 12


class Leases:
    """Makes leases and keeps them.

    Args:
        settings: where Redis is.
        gateway_id: who asks.
    """

    def __init__(self, settings: RedisSettings, gateway_id: str) -> None:
        self._prefix = settings.key_prefix
        self._id = gateway_id
        self._redis = make_client(settings, "leases")
        self._leases: dict[str, Lease] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def of(self, name: str) -> Lease:
        """The lease of a name: letters, digits, _ . - and : to part them. The same one each time."""
        if name not in self._leases:
            self._leases[name] = Lease(self._redis, self._prefix, name, self._id, turns=self._turns)
        return self._leases[name]

    def start(self, tasks: Supervisor) -> None:
        """Take and renew every lease made so far, from now on."""
        for name, lease in self._leases.items():
            tasks.start(f"lease {name}", lease.keep)

    async def stop(self) -> None:
        """Give all up, so that others have them at once, and close the connections; after the tasks have ended."""
        await asyncio.gather(*(lease.release() for lease in self._leases.values()))
        await self._redis.aclose()

    @property
    def why(self) -> str:
        """Why leases can't be had, as Redis answers; "" while they can."""
        return next((lease.trouble.why for lease in self._leases.values() if lease.trouble.why), "")

    def shown(self) -> list[dict[str, Any]]:
        """For /state."""
        return [lease.shown() for lease in self._leases.values()]
