"""A gateway's leases together: asked for in one call, and given up at the end.

Commands are pipelined, so a round is one round trip whatever the number of leases; and renewals that are nearly due
go with those that are, so that all of a gateway's leases are soon renewed in one round, three times in a TTL.
"""

import asyncio
from typing import Any

from redis.exceptions import RedisError

from extproc.config import RedisSettings
from extproc.io import clock
from extproc.io.lease import TTL, Lease
from extproc.io.redis_client import make_client
from extproc.io.tasks import Supervisor

#: Seconds before it is due that a lease may be asked for, together with others.
_EARLY = TTL / 12
#: Shortest and longest time between two rounds.
_LEAST, _LONGEST = 0.01, TTL / 3


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

    def of(self, name: str) -> Lease:
        """The lease of a name: letters, digits, _ . - and : to part them. The same one each time."""
        if name not in self._leases:
            self._leases[name] = Lease(self._redis, self._prefix, name, self._id)
        return self._leases[name]

    def start(self, tasks: Supervisor) -> None:
        """Take and renew every lease, from now on."""
        tasks.start("leases", self.keep)

    async def keep(self) -> None:
        """Take and renew until cancelled. Never raises for Redis' sake."""
        while True:
            await self.round()
            due = min((lease.due for lease in self._leases.values()), default=float("inf"))
            await asyncio.sleep(min(max(due - clock.monotonic(), _LEAST), _LONGEST))

    async def round(self) -> None:
        """Ask for what is due, or nearly, in one call."""
        soon = clock.monotonic() + _EARLY
        asked = [lease for lease in self._leases.values() if lease.due <= soon]
        answers = await self._call([lease.question() for lease in asked])
        for lease, answer in zip(asked, answers, strict=True):
            lease.answered(answer)

    async def stop(self) -> None:
        """Give all up, so that others have them at once, and close the connections; after the tasks have ended."""
        await self._call([lease.give_up() for lease in self._leases.values()])  # else they end by themselves
        await self._redis.aclose()

    async def _call(self, scripts: list[tuple[Any, ...]]) -> list[Any]:
        """What Redis says to each of these scripts, or why it says nothing."""
        if not scripts:
            return []
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for script in scripts:
                    pipe.eval(*script)
                said: list[Any] = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError, TimeoutError) as error:
            return [error] * len(scripts)
        return said

    @property
    def why(self) -> str:
        """Why leases can't be had, as Redis answers; "" while they can."""
        return next((lease.trouble.why for lease in self._leases.values() if lease.trouble.why), "")

    def shown(self) -> list[dict[str, Any]]:
        """For /state."""
        return [lease.shown() for lease in self._leases.values()]
