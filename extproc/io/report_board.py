"""Reports left in Redis: where reporters can't reach every gateway, or should not know them.

Two keys for each pool (PREFIX and POOL as configured), gone a minute after the last report:

    PREFIX:reports:POOL          sorted set   ip:port -> when its report was left (Redis TIME, seconds)
    PREFIX:reports:POOL:bodies   hash         ip:port -> the report, JSON (core/report.py)

A gateway asks for what is new since it last asked, in one script call. How long a report lay there is told by Redis'
own clock at both ends; the clocks of reporters and gateways don't matter.
"""

from dataclasses import dataclass
from typing import Any

from extproc.config import RedisSettings
from extproc.core.membership import LIMIT
from extproc.io.discovery.registration import calls, connect

#: Seconds a report is kept; beyond `metrics.stale_after` it would be of no use.
_KEPT = 60
#: Old reports one new report takes away at most.
_SWEPT = 100

#: KEYS: set, bodies. ARGV: address, report, seconds it is kept, most old ones to take away.
_PUT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now - ARGV[3]), 'LIMIT', 0, ARGV[4])
for _, address in ipairs(old) do
  redis.call('ZREM', KEYS[1], address)
  redis.call('HDEL', KEYS[2], address)
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[3])
"""
#: KEYS: set, bodies. ARGV: since when, most reports. Answers now, then address, when, report, address ...
#: Bodies are fetched by the hundred, as Lua unpacks only some thousand values at once.
_NEWS = """
local time = redis.call('TIME')
local answer = {string.format('%.6f', time[1] + time[2] / 1000000)}
local new = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for start = 1, #new, 200 do
  local some = {}
  for i = start, math.min(start + 199, #new), 2 do some[#some + 1] = new[i] end
  local bodies = redis.call('HMGET', KEYS[2], unpack(some))
  for i, address in ipairs(some) do
    answer[#answer + 1] = address
    answer[#answer + 1] = new[start + 2 * i - 1]
    answer[#answer + 1] = bodies[i] or ''
  end
end
return answer
"""


@dataclass(frozen=True, slots=True)
class Left:
    """A report as it was left: whose, what, and how many seconds it lay there."""

    address: str
    body: bytes
    lay: float


class ReportBoard:
    """The reports of one pool.

    Args:
        settings: where Redis is, its prefix and deadline.
        pool: name of the pool.
        limit: most reports read at once.
    """

    def __init__(self, settings: RedisSettings, pool: str, *, limit: int = LIMIT) -> None:
        self._keys = (f"{settings.key_prefix}:reports:{pool}", f"{settings.key_prefix}:reports:{pool}:bodies")
        self._deadline = settings.deadline
        self._limit = limit
        self._redis: Any = connect(settings)
        self._since = 0.0
        #: Who was read already of those that were left at `_since` exactly.
        self._seen: set[tuple[bytes, bytes]] = set()

    async def put(self, address: str, body: bytes) -> None:
        """Leave a replica's report in place of its last one. Raises SourceFailed."""
        async with calls(self._deadline):
            await self._redis.eval(_PUT, 2, *self._keys, address, body, _KEPT, _SWEPT)

    async def news(self) -> list[Left]:
        """The reports left since the last call, the oldest first. Raises SourceFailed."""
        async with calls(self._deadline):
            said = await self._redis.eval(_NEWS, 2, *self._keys, f"{self._since:.6f}", self._limit)
        now, entries = float(said[0]), list(zip(said[1::3], said[2::3], said[3::3], strict=True))
        fresh = [entry for entry in entries if entry[:2] not in self._seen]
        if entries:
            last = entries[-1][1]
            self._since = float(last)
            self._seen = {entry[:2] for entry in entries if entry[1] == last}
        elif now < self._since:  # another Redis has taken over, and its clock is behind
            self._since, self._seen = now, set()
        return [Left(a.decode("utf-8", "replace"), body, max(0.0, now - float(at))) for a, at, body in fresh]

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()
