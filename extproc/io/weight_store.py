"""Weights of versions in Redis (io/weights.py): one string, written only in the place of the one that was read."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from redis.exceptions import RedisError

from extproc.config import RedisSettings
from extproc.io.redis_check import cause
from extproc.io.redis_client import make_client
from extproc.io.redis_shape import is_number, script
from extproc.io.weights import UntakenError

_SWAP = script(
    """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  -- said twice, over a connection that broke after the first time
  return redis.call('GET', KEYS[1]) == ARGV[2] and 1 or 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
""",
    is_number,
)


class WeightStore:
    """Reads and writes them. Every call has a deadline, and raises UntakenError when Redis did not answer."""

    def __init__(self, settings: RedisSettings) -> None:
        #: Where they stand.
        self.key = f"{settings.key_prefix}:versions"
        self._deadline = 2 * settings.deadline + settings.connect_timeout
        self._redis = make_client(settings, "versions")

    async def get(self) -> bytes | None:
        """What stands there."""
        found: bytes | None = await self._within(self._redis.get(self.key))
        return found

    async def swap(self, before: bytes | None, after: bytes) -> bool:
        """Put `after` in the place of `before`; whether it stands there."""
        return bool(await self._within(self._redis.eval(_SWAP, 1, self.key, before or b"", after)))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _within(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._deadline):
                return await call
        except (RedisError, OSError, TimeoutError) as error:
            raise UntakenError(cause(error)) from error
