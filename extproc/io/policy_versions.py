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
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import redis.asyncio
from redis.exceptions import WatchError

from extproc.config import PolicySettings, RedisSettings, ShadowSettings
from extproc.core.policies import check_policy
from extproc.errors import KvsteerError

#: Versions of a pool that are kept.
KEPT = 100
#: Longest texts taken, in characters.
MOST_WHY, MOST_WHO = 300, 128
#: Gateways whose reports are read, a bound on what one command fetches.
_GATEWAYS = 1000

T = TypeVar("T")


class BadVersion(KvsteerError):
    """A version can't be used: it is garbled, or names what this kvsteer does not have. The gateway keeps its own."""


class Conflict(KvsteerError):
    """Somebody else changed the pool's policy meanwhile. The command says so; nothing was changed."""


@dataclass(slots=True, frozen=True)
class Chosen:
    """How a pool chooses: its policy, and a shadow policy if that has a name."""

    policy: PolicySettings
    shadow: ShadowSettings

    def check(self) -> None:
        """Raise ValueError, with the reason, when this kvsteer can't choose so."""
        check_policy(self.policy.name, self.policy.settings)
        if self.shadow.name:
            check_policy(self.shadow.name, self.shadow.settings)


@dataclass(slots=True, frozen=True, kw_only=True)
class Version:
    """One change. `restores` is the version whose content was put back; `at` is in seconds of Redis' clock."""

    number: int
    chosen: Chosen
    who: str
    at: float
    why: str
    restores: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it is kept and shown."""
        return {
            "version": self.number,
            "policy": self.chosen.policy.model_dump(),
            "shadow": self.chosen.shadow.model_dump(),
            "who": self.who,
            "when": self.at,
            "why": self.why,
            "restores": self.restores,
        }


#: Highest number of a version: what JSON readers everywhere can hold.
_MOST_NUMBER = 2**53


def _number(value: object) -> int:
    if type(value) is not int or not 0 < value < _MOST_NUMBER:
        raise ValueError
    return value


def read_version(text: bytes) -> Version:
    """A version out of its JSON; keys that are not known here are ignored.

    Raises:
        BadVersion: with the reason.
    """
    try:
        found = orjson.loads(text)
        chosen = Chosen(
            PolicySettings.model_validate(found["policy"]),
            ShadowSettings.model_validate(found.get("shadow") or {}),
        )
        return Version(
            number=_number(found["version"]),
            chosen=chosen,
            who=str(found["who"])[:MOST_WHO],
            at=float(found["when"]),
            why=str(found["why"])[:MOST_WHY],
            restores=found.get("restores"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadVersion(f"it can't be read ({type(error).__name__})") from None


class VersionStore:
    """Reads and writes versions. Every call has a deadline and raises RedisError, OSError or TimeoutError."""

    def __init__(self, settings: RedisSettings) -> None:
        self._prefix = settings.prefix
        # Connecting takes a few round trips; each has the deadline, all together four of them.
        self._deadline = 4 * settings.deadline
        self._redis: Any = redis.asyncio.Redis.from_url(
            settings.url,
            socket_timeout=settings.deadline,
            socket_connect_timeout=settings.deadline,
            health_check_interval=0,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def revision(self) -> bytes | None:
        """What changes with every change in any pool; None when there never was one."""
        found: bytes | None = await self._within(self._redis.get(f"{self._prefix}:policies"))
        return found

    async def newest(self, pool: str) -> bytes | None:
        """JSON of a pool's newest version, for `read_version`; None when it has none."""
        number = await self._within(self._redis.hget(self._key(pool), "newest"))
        return None if number is None else await self.get(pool, number)

    async def get(self, pool: str, number: int | bytes) -> bytes | None:
        """JSON of one version; None when it is not kept."""
        found: bytes | None = await self._within(self._redis.hget(self._key(pool), number))
        return found

    async def history(self, pool: str) -> list[Version]:
        """Every version that is kept and can be read, newest first."""
        held = await self._within(self._redis.hgetall(self._key(pool)))
        versions = []
        for field, text in held.items():
            if field != b"newest":
                try:
                    versions.append(read_version(text))
                except BadVersion:
                    continue  # of another kvsteer: it can't be put back from here either
        return sorted(versions, key=lambda version: -version.number)

    async def add(
        self, pool: str, entries: list[tuple[Chosen, str, str]], *, after: int, restores: int | None = None
    ) -> Version:
        """Record changes (what, who, why) in turn as the newest versions; the last one, which is returned, counts.

        Args:
            pool: whose policy it is.
            entries: at least one.
            after: number of the newest version that the change was decided on; 0 for none.
            restores: what the last one puts back.

        Raises:
            Conflict: another version came meanwhile.
        """
        return await self._within(self._add(pool, entries, after, restores))

    async def _add(
        self, pool: str, entries: list[tuple[Chosen, str, str]], after: int, restores: int | None
    ) -> Version:
        key = self._key(pool)
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(key)
            if (await pipe.hget(key, "newest") or b"0") != b"%d" % after:
                raise Conflict
            seconds, micros = await pipe.time()
            versions = _numbered(entries, after, seconds + micros / 1e6, restores)
            last = versions[-1].number
            fields = {str(version.number): orjson.dumps(version.as_dict()) for version in versions}
            gone = [str(number) for number in range(max(after - KEPT + 1, 1), last - KEPT + 1)]
            pipe.multi()
            pipe.hset(key, mapping={"newest": str(last), **fields})
            if gone:
                pipe.hdel(key, *gone)
            pipe.set(f"{self._prefix}:policies", f"{pool}:{last}@{seconds}.{micros:06}")
            try:
                await pipe.execute()
            except WatchError:
                raise Conflict from None
        return versions[-1]

    async def report(self, gateway_id: str, policies: Mapping[str, Any], ttl: float) -> None:
        """Tell what a gateway uses: pool -> {"version", "when", "refused"}, the last None or with a reason."""
        key = f"{self._prefix}:gateway:{gateway_id}"
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, "policies", orjson.dumps(policies))
            pipe.pexpire(key, int(ttl * 1000))
            await self._within(pipe.execute())

    async def reports(self) -> dict[str, dict[str, Any]]:
        """What every living gateway reported: gateway -> pool -> as in `report`."""
        return await self._within(self._reports())

    async def _reports(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        start = len(f"{self._prefix}:gateway:")
        async for key in self._redis.scan_iter(match=f"{self._prefix}:gateway:*", count=1000):
            text = await self._redis.hget(key, "policies")
            if text is not None:
                found[key[start:].decode()] = _reported(text)
            if len(found) >= _GATEWAYS:
                break
        return found

    def _key(self, pool: str) -> str:
        return f"{self._prefix}:policy:{pool}"

    async def _within(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._deadline):
            return await call


def _reported(text: bytes) -> dict[str, Any]:
    """A gateway's report; what is not of the right form is as good as none."""
    try:
        pools = orjson.loads(text)
        return {
            pool: {"version": said["version"], "when": said["when"], "refused": said["refused"]}
            for pool, said in pools.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


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
