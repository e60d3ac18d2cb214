"""Registration in Redis: what a reporter beside an engine writes and `redis_source` reads.

Two keys for each pool, which one can read with redis-cli (PREFIX and POOL as configured):

    PREFIX:register:POOL           sorted set   ip:port -> when the registration expires (Redis TIME, seconds)
    PREFIX:register:POOL:details   hash         ip:port -> JSON {"metrics", "terminating", "labels"}, each optional

An expired registration is no registration; whoever registers next takes it away. Both keys expire with the last
registration in them. All clocks are Redis' own: machines with wrong clocks do no harm.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import redis.exceptions
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError

from extproc.config import RedisSettings
from extproc.core.membership import Endpoint
from extproc.io.discovery.base import SourceFailed
from extproc.io.redis_client import make_client

#: KEYS: set, details. ARGV: address, details, seconds it holds, most expired ones to take away.
_REGISTER = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.3f', now), 'LIMIT', 0, ARGV[4])
for _, address in ipairs(dead) do
  redis.call('ZREM', KEYS[1], address)
  redis.call('HDEL', KEYS[2], address)
end
redis.call('ZADD', KEYS[1], string.format('%.3f', now + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
for _, key in ipairs(KEYS) do
  redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(last * 1000)))
end
"""
#: Expired registrations one registration takes away at most; each of N reporters takes that many.
_SWEPT = 100

#: Each round trip has the deadline of the settings; a call may need several, to connect and to log in.
_TRIPS = 4


class Registration:
    """An engine's place in a pool, held for as long as `beat` is called.

    Args:
        settings: where Redis is, its prefix and deadline.
        pool: name of the pool.
        endpoint: what to register; `beat` may be given another state of it.
        ttl: seconds a registration holds; call `beat` about three times as often.
    """

    def __init__(self, settings: RedisSettings, pool: str, endpoint: Endpoint, *, ttl: float = 10.0) -> None:
        self._keys = registration_keys(settings.key_prefix, pool)
        self._address = endpoint.address
        self._endpoint = endpoint
        self._ttl = ttl
        self._deadline = settings.deadline
        self._redis = connect(settings)

    async def beat(self, endpoint: Endpoint | None = None) -> None:
        """Register, or hold the registration; an `endpoint` is told from now on (same address).

        Raises:
            SourceFailed: Redis can't be had for the moment.
            ValueError: the endpoint has another address.
        """
        if endpoint is not None and endpoint.address != self._address:
            raise ValueError(
                f"{endpoint.address} is not the registered {self._address}; register it by itself"
            )
        self._endpoint = endpoint or self._endpoint
        details = orjson.dumps(_details(self._endpoint))
        async with calls(self._deadline):
            await self._redis.eval(_REGISTER, 2, *self._keys, self._address, details, self._ttl, _SWEPT)

    async def leave(self) -> None:
        """Take the registration away: the replica leaves its pool at once.

        Raises:
            SourceFailed: Redis can't be had; then it leaves when the registration expires.
        """
        async with calls(self._deadline), self._redis.pipeline(transaction=True) as pipe:
            pipe.zrem(self._keys[0], self._address)
            pipe.hdel(self._keys[1], self._address)
            await pipe.execute()

    async def close(self) -> None:
        """Close the connection; the registration stays until it expires."""
        await self._redis.aclose()


def registration_keys(prefix: str, pool: str) -> tuple[str, str]:
    """The two keys of a pool's registrations."""
    return f"{prefix}:register:{pool}", f"{prefix}:register:{pool}:details"


def connect(settings: RedisSettings) -> Any:
    """A client (io/redis_client.py); everything that is said through it may be said twice."""
    return make_client(settings, "discovery")


@asynccontextmanager
async def calls(deadline: float) -> AsyncGenerator[None, None]:
    """Bound what is done within, and word its failures; the errors of the client may quote what was sent."""
    try:
        async with asyncio.timeout(_TRIPS * deadline):
            yield
    except (AuthenticationError, NoPermissionError):
        raise SourceFailed(
            "denied", "redis refuses the user; check redis.url and the user's rights"
        ) from None
    except (TimeoutError, redis.exceptions.TimeoutError):
        raise SourceFailed(
            "timeout", "redis does not answer in time; raise redis.deadline, or mend it"
        ) from None
    except InvalidResponse:
        raise SourceFailed(
            "refused",
            "what answers there is no Redis; check host and port of redis.url, and rediss:// for TLS",
        ) from None
    except (redis.exceptions.ConnectionError, OSError):
        raise SourceFailed("connect", "redis can't be reached; check redis.url, and that it runs") from None
    except RedisError as error:
        kind = type(error).__name__
        raise SourceFailed("refused", f"redis refuses the call ({kind}); it must be 5.0 or later") from None


def _details(endpoint: Endpoint) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if endpoint.metrics:
        details["metrics"] = endpoint.metrics
    if endpoint.terminating:
        details["terminating"] = True
    if endpoint.labels:
        details["labels"] = dict(endpoint.labels)
    return details
