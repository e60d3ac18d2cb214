"""The replica registry in Redis: plain hashes that redis-cli can read, so that fleets can be looked at as one.

Keys, all with a TTL of ten heartbeats (PREFIX from the settings):

    PREFIX:gateway:ID              hash   started, boot, seen (Redis TIME, seconds), streams, version, address
    PREFIX:replicas:POOL:ID        hash   address -> JSON of what gateway ID believes of the replica
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import structlog
from redis.exceptions import RedisError, ResponseError

from extproc import __version__
from extproc.config import RedisSettings
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.redis_check import AtKey, cause, naming, unsafe
from extproc.io.redis_client import make_client
from extproc.io.redis_guard import Guard

_log = structlog.get_logger("kvsteer.registry")

#: Heartbeats after which a silent gateway's entries are gone.
_TTL_BEATS = 10
#: Deadlines a beat may take: INFO, TIME, its entries, and a look.
_BEAT_TRIPS = 7
#: Deadlines that a look between two beats may take: it waits for one that is under way, reads, and perhaps writes.
_LOOK_TRIPS = 4
#: Beats between two looks at how Redis is configured.
_CHECK_BEATS = 15


class Registry:
    """Writes what this gateway believes, once a heartbeat. Redis being gone is told once, not every beat."""

    def __init__(
        self,
        settings: RedisSettings,
        gateway_id: str,
        pools: list[Pool],
        streams: Callable[[], int],
        sync: Callable[[Any, float], Awaitable[None]] | None = None,
        *,
        address: str = "",
    ) -> None:
        self._settings = settings
        self._id = gateway_id
        self._pools = pools
        self._streams = streams
        self._sync = sync
        self._address = address
        self._started = ""
        #: Tells two gateways of one name apart; whether we wrote before, and said that there are two.
        self._boot = secrets.token_hex(8)
        self._has_written = self._told_name = False
        #: Whether the last call succeeded; None before the first.
        self.up: bool | None = None
        self.errors = 0
        self._redis = make_client(settings, "registry")
        self._beats = 0
        #: Why Redis can't be relied on, though it may answer; "" when it can.
        self.why = ""

    async def beat(self) -> None:
        """Refresh this gateway's entries. Never raises for Redis' sake."""
        try:
            # A beat is five round trips, or a few more, whatever the number of pools; each has the deadline.
            async with asyncio.timeout(
                _BEAT_TRIPS * self._settings.deadline + self._settings.connect_timeout
            ):
                why = await self._checked()
                ahead = await self._write()
                if self._sync is not None:
                    await self._sync(self._redis, ahead)
        except AtKey as error:  # Redis answers; only what has to do with this key is degraded
            self.errors += 1
            self._told(up=True, why=f"redis fails: {cause(error)}")
        except (RedisError, OSError, TimeoutError) as error:
            self.errors += 1
            self._told(up=False, why=f"redis fails: {cause(error)}")
        else:
            self._told(up=True, why=why)

    async def look(self, look: Callable[[Any], Awaitable[None]]) -> None:
        """Let someone read and write a little between two beats; only these say how Redis is. Never raises for it."""
        if not self.up:
            return
        try:
            async with asyncio.timeout(_LOOK_TRIPS * self._settings.deadline):
                await look(self._redis)
        except (RedisError, OSError, TimeoutError):
            self.errors += 1

    async def close(self) -> None:
        """Take this gateway's entries away and close the connections."""
        try:
            async with asyncio.timeout(self._settings.deadline):
                await self._redis.delete(self._gateway_key(), *map(self._replicas_key, self._pools))
        except (RedisError, OSError, TimeoutError):
            pass  # the TTL does it
        await self._redis.aclose()

    @property
    def degraded(self) -> bool:
        """Whether the shared state can't be relied on at this moment."""
        return not self.up or bool(self.why)

    @property
    def guard(self) -> Guard:
        """How the calls of this client end."""
        found: Guard = self._redis.guard
        return found

    async def _checked(self) -> str:
        """What is unsafe about this Redis: asked at first, now and then, when it is back, and until it is mended."""
        self._beats += 1
        if self.up and not self.why and self._beats % _CHECK_BEATS:
            return self.why
        return await unsafe(self._redis, self._settings.key_prefix)

    def _told(self, *, up: bool, why: str) -> None:
        """Say once what changed."""
        if why and why != self.why:
            _log.warning("shared state is degraded", why=why)
        elif self.why and not why:
            _log.info("shared state is whole again")
        self.up, self.why = up, why

    async def _write(self) -> float:
        """Write the entries; seconds by which Redis' clock is before our monotonic one."""
        seconds, micros = await self._redis.time()
        ahead = int(seconds) + int(micros) / 1e6 - clock.monotonic()
        self._started = self._started or str(seconds)
        ttl = int(self._settings.heartbeat * _TTL_BEATS * 1000)
        gateway = self._gateway_key()
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hget(gateway, "boot")
            keys = [gateway] * 3  # of each command
            fields = {
                "boot": self._boot,
                "started": self._started,
                "seen": str(seconds),
                "streams": str(self._streams()),
                "version": __version__,
                "address": self._address,
            }
            pipe.hset(gateway, mapping=fields)
            pipe.pexpire(gateway, ttl)
            for pool in self._pools:
                key = self._replicas_key(pool)
                pipe.delete(key)
                if pool.replicas:
                    pipe.hset(key, mapping={r.address: orjson.dumps(_entry(r)) for r in pool.replicas})
                    pipe.pexpire(key, ttl)
                keys += [key] * (3 if pool.replicas else 1)
            if self._settings.share:  # only to know whether it is a stream, and to name it if it is not
                pipe.xlen(self._journal_key())
                keys.append(self._journal_key())
            answers = await pipe.execute(raise_on_error=False)
        for key, said in zip(keys, answers, strict=True):
            if isinstance(said, ResponseError):
                raise naming(said, key)
        self._compare(answers[0])
        return ahead

    def _compare(self, boot: bytes | None) -> None:
        """Warn, once, of another gateway that writes under our name; at the first beat it may be our own past."""
        is_other = self._has_written and boot is not None and boot != self._boot.encode()
        self._has_written = True
        if is_other and not self._told_name:
            self._told_name = True
            _log.warning(
                "another gateway has the same id; give each a gateway_id of its own", gateway=self._id
            )

    def _gateway_key(self) -> str:
        return f"{self._settings.key_prefix}:gateway:{self._id}"

    def _journal_key(self) -> str:
        return f"{self._settings.key_prefix}:journal"

    def _replicas_key(self, pool: Pool) -> str:
        return f"{self._settings.key_prefix}:replicas:{pool.name}:{self._id}"


def _entry(replica: Replica) -> dict[str, Any]:
    return {
        "incarnation": replica.incarnation,
        "state": replica.life.state,
        "barred": replica.barred,
        "headroom": replica.headroom,
        "requests": replica.books.requests,
        "tokens": replica.books.tokens,
    }
