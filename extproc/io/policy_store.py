"""Versions of each pool's policy settings in Redis: what was chosen by when, who changed it, and why.

Keys (PREFIX from the settings), without a TTL, since an operator's decision must not expire:

    PREFIX:policies       string  names the newest change in any pool, as POOL:NUMBER@SECONDS; gateways poll it
    PREFIX:policy:POOL    hash    newest -> number of the newest version; NUMBER -> its JSON, for the last 100

and a field in the registry's hash of each gateway, which has a TTL (io/registry.py):

    PREFIX:gateway:ID     hash    policies -> JSON: pool -> version in use, and the one it refused, and why

Times are Redis TIME, in seconds. A version is complete (policy and shadow), so that any one can be put back alone.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, TypeVar

import orjson
from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.errors import KvsteerError
from extproc.io.policy_versions import (
    POINTER,
    Chosen,
    Standing,
    Version,
    gateway_name,
    pointed,
    quoted,
    reported,
    standing_of,
)
from extproc.io.redis_check import AtKey, Lost, at_key
from extproc.io.redis_client import make_client
from extproc.io.redis_shape import is_number, script

#: Versions of a pool that are kept.
KEPT = 100
#: Gateways whose reports are read, a bound on what one command fetches.
_GATEWAYS = 1000

T = TypeVar("T")

#: KEYS: the pool's versions, the newest change. ARGV: the pointer's field, the new newest number, the pointer
#: expected (= before it, or nothing for none), the new change, how many of the following are fields and values,
#: these, and fields to take away. Answers 0 when the pointer is another.
_ADD = script(
    """
local there = redis.call('HGET', KEYS[1], ARGV[1])
if (there and '=' .. there or '') ~= ARGV[3] then
  -- said twice, over a connection that broke after the first time
  return redis.call('GET', KEYS[2]) == ARGV[4] and 1 or 0
end
local fields = tonumber(ARGV[5])
for i = 6, 5 + fields, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
for i = 6 + fields, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
redis.call('SET', KEYS[2], ARGV[4])
return 1
""",
    is_number,
)


#: KEYS: the pool's versions, the newest change. ARGV: the pointer's field, the pointer as it was read (= before it,
#: or nothing for none), the version's number, its JSON, the change that it was. Answers 0 when the pointer is
#: another.
_PUT_BACK = script(
    """
local there = redis.call('HGET', KEYS[1], ARGV[1])
local stands = there == ARGV[3] and redis.call('HGET', KEYS[1], ARGV[3]) == ARGV[4]
if not stands and (there and '=' .. there or '') ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4], ARGV[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[5])
return 1
""",
    is_number,
)


class Newest(NamedTuple):
    """What stands there as a pool's newest version: what names it, and its JSON; None for what is not there."""

    pointer: bytes | None
    text: bytes | None


class NotOurs(KvsteerError):
    """A key holds what kvsteer never writes there. The command says which, and what would do."""


class Conflict(KvsteerError):
    """Somebody else changed the pool's policy meanwhile. The command says so; nothing was changed."""


class VersionStore:
    """Reads and writes versions. Every call has a deadline and raises RedisError, OSError or TimeoutError."""

    def __init__(self, settings: RedisSettings) -> None:
        self._prefix = settings.key_prefix
        # Some calls are several round trips; each has the deadline, all together four of them and connecting.
        self._deadline = 4 * settings.deadline + settings.connect_timeout
        self._redis = make_client(settings, "policies")

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def revision(self) -> bytes | None:
        """What changes with every change in any pool; None when there never was one."""
        key = f"{self._prefix}:policies"
        try:
            found: bytes | None = await self._within(self._redis.get(key))
        except ResponseError as error:
            raise AtKey(key, error) from None
        return found

    async def newest(self, pool: str) -> Newest:
        """A pool's newest version, its JSON for `read_version`."""
        try:
            pointer = await self._within(self._redis.hget(self._key(pool), POINTER))
            return Newest(pointer, None if pointer is None else await self._get(pool, pointer))
        except ResponseError as error:
            raise AtKey(self._key(pool), error) from None

    async def glance(self, numbers: Mapping[str, int]) -> dict[str, Newest | AtKey]:
        """Whether pools' versions stand as they did: pool -> the pointer, and JSON of a version of this number.

        One round trip, whatever the number of pools; what Redis says against a pool's key is told in its place.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for pool, number in numbers.items():
                pipe.hmget(self._key(pool), POINTER, str(number))
            answers = await self._within(pipe.execute(raise_on_error=False))
        return {
            pool: AtKey(self._key(pool), said) if isinstance(said, Exception) else Newest(*said)
            for pool, said in zip(numbers, answers, strict=True)
        }

    async def newest_number(self, pool: str) -> int:
        """Number of a pool's newest version; 0 when there is none, or none that can be read."""
        found = await self._within(self._redis.hget(self._key(pool), POINTER))
        return pointed(found or b"")

    async def _get(self, pool: str, number: bytes) -> bytes | None:
        found: bytes | None = await self._within(self._redis.hget(self._key(pool), number))
        return found

    async def standing(self, pool: str) -> Standing:
        """Everything that is kept of a pool.

        Raises:
            NotOurs: the key is no hash.
        """
        try:
            held = await self._within(self._redis.hgetall(self._key(pool)))
        except ResponseError as error:
            if not _is_of_other_type(error):
                raise
            key = self._key(pool)
            raise NotOurs(
                f"the key {key} holds no hash, so somebody else wrote it; rename or delete it, "
                f"for example with: redis-cli RENAME {key} {key}:not-ours"
            ) from None
        return standing_of(held)

    async def history(self, pool: str) -> list[Version]:
        """Every version that is kept and can be read, newest first."""
        return (await self.standing(pool)).versions

    async def add(
        self,
        pool: str,
        entries: list[tuple[Chosen, str, str]],
        *,
        after: int,
        pointer: bytes | None = None,
        restores: int | None = None,
    ) -> Version:
        """Record changes (what, who, why) in turn as the newest versions; the last one, which is returned, counts.

        Args:
            pool: whose policy it is.
            entries: at least one.
            after: number of the newest version that the change was decided on; 0 for none.
            pointer: what named it in Redis, where that is not just its number (`Standing.pointer`).
            restores: what the last one puts back.

        Raises:
            Conflict: another version came meanwhile.
        """
        expected = (b"%d" % after if after else None) if pointer is None else pointer
        return await self._within(self._add(pool, entries, after, expected, restores))

    async def _add(
        self,
        pool: str,
        entries: list[tuple[Chosen, str, str]],
        after: int,
        pointer: bytes | None,
        restores: int | None,
    ) -> Version:
        seconds, micros = await self._redis.time()
        versions = _numbered(entries, after, seconds + micros / 1e6, restores)
        last = versions[-1].number
        fields = [part for v in versions for part in (str(v.number), orjson.dumps(v.as_dict()))]
        gone = [str(number) for number in range(max(after - KEPT + 1, 1), last - KEPT + 1)]
        revision = f"{pool}:{last}@{seconds}.{micros:06}"
        said = [b"" if pointer is None else b"=" + pointer, revision, len(fields), *fields, *gone]
        keys = (self._key(pool), f"{self._prefix}:policies")
        if not await self._redis.eval(_ADD, 2, *keys, POINTER, last, *said):
            raise Conflict
        return versions[-1]

    async def put_back(self, pool: str, version: Version, pointer: bytes | None) -> bool:
        """Write again a version that Redis lost, as the newest; whether it stands there.

        Fenced: nothing is written when `pointer` is not what names the newest any more. So of several gateways that
        write, and of an operator who changes something, one wins, and the others see what it wrote.
        """
        revision = f"{pool}:{version.number}@{version.at:.6f}"
        said = [
            b"" if pointer is None else b"=" + pointer,
            version.number,
            orjson.dumps(version.as_dict()),
            revision,
        ]
        keys = (self._key(pool), f"{self._prefix}:policies")
        return bool(await self._within(self._redis.eval(_PUT_BACK, 2, *keys, POINTER, *said)))

    def lost(self, pool: str) -> AtKey:
        """That a pool's versions are gone, with the key."""
        return AtKey(self._key(pool), Lost())

    async def report(self, gateway_id: str, policies: Mapping[str, Any], ttl: float) -> None:
        """Tell what a gateway uses: pool -> {"version", "when", "refused"}, the last None or with a reason."""
        key = f"{self._prefix}:gateway:{gateway_id}"
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, "policies", orjson.dumps(policies))
            pipe.pexpire(key, int(ttl * 1000))
            with at_key(key):
                await self._within(pipe.execute())

    async def reports(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What every living gateway reported: gateway -> pool -> as in `report`; and what was skipped, in words."""
        return await self._within(self._reports())

    async def _reports(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        found: dict[str, dict[str, Any]] = {}
        skipped: list[str] = []
        start = len(f"{self._prefix}:gateway:")
        async for key in self._redis.scan_iter(match=f"{self._prefix}:gateway:*", count=1000):
            try:
                text = await self._redis.hget(key, "policies")
                if text is not None:
                    found[gateway_name(key[start:])] = reported(text)
            except ResponseError as error:
                if not _is_of_other_type(error):
                    raise
                skipped.append(f"key {quoted(key)}: holds no hash, so it is no gateway's")
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                skipped.append(f"key {quoted(key)}: is no report of this kvsteer's gateways")
            if len(found) + len(skipped) >= _GATEWAYS:
                break
        return found, skipped

    def _key(self, pool: str) -> str:
        return f"{self._prefix}:policy:{pool}"

    async def _within(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._deadline):
            return await call


def _is_of_other_type(error: ResponseError) -> bool:
    return str(error).startswith("WRONGTYPE")


def _numbered(
    entries: list[tuple[Chosen, str, str]], after: int, at: float, restores: int | None
) -> list[Version]:
    last = after + len(entries)
    return [
        Version(
            number=number,
            chosen=chosen,
            who=who,
            at=at,
            why=why,
            restores=restores if number == last else None,
        )
        for number, (chosen, who, why) in enumerate(entries, after + 1)
    ]
