"""The replica registry in Redis: plain hashes that redis-cli can read, so that fleets can be looked at as one.

Keys, all with a TTL of ten heartbeats (PREFIX from the settings):

    PREFIX:gateway:ID              hash   started, seen (Redis TIME, seconds), streams, version
    PREFIX:replicas:POOL:ID        hash   address -> JSON of what gateway ID believes of the replica
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from extproc import __version__
from extproc.config import RedisSettings
from extproc.core.fleet import Replica
from extproc.core.pool import Pool

_log = structlog.get_logger("kvsteer.registry")

#: Heartbeats after which a silent gateway's entries are gone.
_TTL_BEATS = 10


class Registry:
    """Writes what this gateway believes, once a heartbeat. Redis being gone is told once, not every beat."""

    def __init__(
        self,
        settings: RedisSettings,
        gateway_id: str,
        pools: list[Pool],
        streams: Callable[[], int],
        sync: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._settings = settings
        self._id = gateway_id
        self._pools = pools
        self._streams = streams
        self._sync = sync
        self._started = ""
        #: Whether the last call succeeded; None before the first.
        self.up: bool | None = None
        self.errors = 0
        self._redis: Any = redis.asyncio.Redis.from_url(
            settings.url,
            socket_timeout=settings.deadline,
            socket_connect_timeout=settings.deadline,
            health_check_interval=0,
            # The kept connection may be one to a Redis that has restarted since: once more, on a fresh one. All that
            # is written here may be written twice, and the deadline of a beat bounds both tries.
            retry=Retry(NoBackoff(), 1),
        )

    async def beat(self) -> None:
        """Refresh this gateway's entries. Never raises for Redis' sake."""
        try:
            # Connecting may take a few round trips; each has the deadline, all together four of them.
            async with asyncio.timeout(4 * self._settings.deadline):
                await self._write()
                if self._sync is not None:
                    await self._sync(self._redis)
        except (RedisError, OSError, TimeoutError) as error:
            self.errors += 1
            if self.up is not False:
                _log.warning("redis does not answer; going on alone", error=type(error).__name__)
            self.up = False
        else:
            if self.up is False:
                _log.info("redis answers again")
            self.up = True

    async def close(self) -> None:
        """Take this gateway's entries away and close the connections."""
        try:
            async with asyncio.timeout(self._settings.deadline):
                await self._redis.delete(self._gateway_key(), *map(self._replicas_key, self._pools))
        except (RedisError, OSError, TimeoutError):
            pass  # the TTL does it
        await self._redis.aclose()

    async def _write(self) -> None:
        seconds, _ = await self._redis.time()
        self._started = self._started or str(seconds)
        ttl = int(self._settings.heartbeat * _TTL_BEATS * 1000)
        async with self._redis.pipeline(transaction=True) as pipe:
            fields = {
                "started": self._started,
                "seen": str(seconds),
                "streams": str(self._streams()),
                "version": __version__,
            }
            pipe.hset(self._gateway_key(), mapping=fields)
            pipe.pexpire(self._gateway_key(), ttl)
            for pool in self._pools:
                key = self._replicas_key(pool)
                pipe.delete(key)
                if pool.replicas:
                    pipe.hset(key, mapping={r.address: orjson.dumps(_entry(r)) for r in pool.replicas})
                    pipe.pexpire(key, ttl)
            await pipe.execute()

    def _gateway_key(self) -> str:
        return f"{self._settings.prefix}:gateway:{self._id}"

    def _replicas_key(self, pool: Pool) -> str:
        return f"{self._settings.prefix}:replicas:{pool.name}:{self._id}"


def _entry(replica: Replica) -> dict[str, Any]:
    return {
        "incarnation": replica.incarnation,
        "state": replica.life.state,
        "barred": replica.barred,
        "headroom": replica.headroom,
        "requests": replica.books.requests,
        "tokens": replica.books.tokens,
    }
