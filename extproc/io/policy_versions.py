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
from typing import Any, NamedTuple, TypeVar

import orjson
from redis.exceptions import ResponseError

from extproc.config import PolicySettings, RedisSettings, ShadowSettings
from extproc.core.policies import check_policy
from extproc.errors import KvsteerError
from extproc.io.redis_check import AtKey
from extproc.io.redis_client import make_client

#: Versions of a pool that are kept.
KEPT = 100
#: Longest texts taken, in characters.
MOST_WHY, MOST_WHO = 300, 128
#: Field of a pool's hash that names the newest version.
_POINTER = b"newest"
#: Gateways whose reports are read, a bound on what one command fetches.
_GATEWAYS = 1000

T = TypeVar("T")

#: KEYS: the pool's versions, the newest change. ARGV: the pointer's field, the new newest number, the pointer
#: expected (= before it, or nothing for none), the new change, how many of the following are fields and values,
#: these, and fields to take away. Answers 0 when the pointer is another.
_ADD = """
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
"""


class BadVersion(KvsteerError):
    """A version can't be used: it is garbled, or names what this kvsteer does not have. The gateway keeps its own."""


class NotOurs(KvsteerError):
    """A key holds what kvsteer never writes there. The command says which, and what would do."""


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


#: Highest number of a version: what JSON readers everywhere can hold, with room for those that follow it.
_MOST_NUMBER = 2**52
#: Times of versions are below this: the year 10000, which no calendar of ours can write.
_MOST_TIME = 253_402_300_800.0


def _number(value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value < _MOST_NUMBER:
        raise ValueError
    return value


def _time(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST_TIME:  # type: ignore[operator]
        raise ValueError
    return float(value)  # type: ignore[arg-type]


def _text(value: object, most: int) -> str:
    """One line that a terminal and a log can take."""
    if type(value) is not str:
        raise TypeError
    return "".join(letter if letter.isprintable() else "?" for letter in value[:most])


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
        restores = found.get("restores")
        return Version(
            number=_number(found["version"]),
            chosen=chosen,
            who=_text(found["who"], MOST_WHO),
            at=_time(found["when"]),
            why=_text(found["why"], MOST_WHY),
            restores=None if restores is None else _number(restores),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadVersion(f"it can't be read ({type(error).__name__})") from None


class Standing(NamedTuple):
    """How a pool's versions stand in Redis.

    Attributes:
        number: of the newest, readable or not; 0 when there is none. The next one is the number after it.
        newest: the version with that number, or the last readable one before it; None when there is none.
        versions: all that can be read, highest number first.
        pointer: what names the newest, as it is in Redis; a change is refused when that changed meanwhile.
        skipped: what somebody else wrote there, in words.
    """

    number: int
    newest: Version | None
    versions: list[Version]
    pointer: bytes | None
    skipped: list[str]

    @property
    def is_current(self) -> bool:
        """Whether `newest` is what gateways are told to use; False when that can't be read."""
        return self.newest is not None and self.newest.number == self.number


def standing_of(held: Mapping[bytes, bytes]) -> Standing:
    """Sort out a pool's hash, whatever somebody wrote into it."""
    versions, skipped, highest = [], [], 0
    pointer = held.get(_POINTER)
    for field, text in held.items():
        if field == _POINTER:
            continue
        number = _pointed(field)
        highest = max(highest, number)
        try:
            version = read_version(text)
        except BadVersion as error:
            skipped.append(f"version {quoted(field)}: {error}")
            continue
        if version.number == number:
            versions.append(version)
        else:
            skipped.append(f"version {quoted(field)}: it says that it is {version.number}")
    versions.sort(key=lambda version: -version.number)
    number = _pointed(pointer or b"")
    if pointer is not None and not number:
        skipped.append(f"the number of the newest version: {quoted(pointer)} is none")
    number = number or highest
    newest = next((version for version in versions if version.number <= number), None)
    return Standing(number, newest, versions, pointer, skipped)


def _pointed(text: bytes) -> int:
    """The number that a field or the pointer names; 0 for what kvsteer never writes."""
    number = int(text) if text.isdigit() and len(text) < 20 else 0
    return number if 0 < number < _MOST_NUMBER and text == b"%d" % number else 0


def quoted(text: bytes) -> str:
    """Bytes that somebody else wrote, short and printable."""
    return ascii(text[:40])[1:] + ("..." if len(text) > 40 else "")


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

    async def newest(self, pool: str) -> bytes | None:
        """JSON of a pool's newest version, for `read_version`; None when it has none."""
        try:
            number = await self._within(self._redis.hget(self._key(pool), _POINTER))
            return None if number is None else await self._get(pool, number)
        except ResponseError as error:
            raise AtKey(self._key(pool), error) from None

    async def newest_number(self, pool: str) -> int:
        """Number of a pool's newest version; 0 when there is none, or none that can be read."""
        found = await self._within(self._redis.hget(self._key(pool), _POINTER))
        return _pointed(found or b"")

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
        if not await self._redis.eval(_ADD, 2, *keys, _POINTER, last, *said):
            raise Conflict
        return versions[-1]

    async def put_back(self, pool: str, version: Version, after: int) -> None:
        """Write again a version that Redis lost, as the newest; nothing when `after` is the newest no more."""
        revision = f"{pool}:{version.number}@{version.at:.6f}"
        said = [b"=%d" % after, revision, 2, str(version.number), orjson.dumps(version.as_dict())]
        keys = (self._key(pool), f"{self._prefix}:policies")
        await self._within(self._redis.eval(_ADD, 2, *keys, _POINTER, version.number, *said))

    async def report(self, gateway_id: str, policies: Mapping[str, Any], ttl: float) -> None:
        """Tell what a gateway uses: pool -> {"version", "when", "refused"}, the last None or with a reason."""
        key = f"{self._prefix}:gateway:{gateway_id}"
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, "policies", orjson.dumps(policies))
            pipe.pexpire(key, int(ttl * 1000))
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
                    found[_gateway_name(key[start:])] = _reported(text)
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


def _gateway_name(text: bytes) -> str:
    name = text.decode()
    if not name.isprintable():
        raise ValueError
    return name


def _reported(text: bytes) -> dict[str, Any]:
    """A gateway's report. Raises one of the usual errors for what has another form."""
    return {str(pool): _of_pool(said) for pool, said in orjson.loads(text).items()}


def _of_pool(said: dict[str, Any]) -> dict[str, Any]:
    when, refused = said["when"], said["refused"]
    return {
        "version": _number(said["version"], 0),
        "when": None if when is None else _time(when),
        "refused": None
        if refused is None
        else {
            "version": _number(refused["version"], 0),
            "when": _time(refused["when"]),
            "reason": _text(refused["reason"], MOST_WHY),
        },
    }


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
