"""Endpoints that registered themselves in Redis (the keys are described in registration.py).

Read once a second by one script call: what has not expired by Redis' own clock, whatever the clocks here say.
When Redis comes back after a failure it may have lost what it held, and engines register again one by one; the
first answer is therefore told as doubtful, and nobody leaves by it until the grace period is over.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import structlog

from extproc.config import RedisSettings
from extproc.core.membership import LIMIT, Endpoint
from extproc.io.discovery.base import Failed, Found, SourceFailed, poll
from extproc.io.discovery.file_forms import plain_endpoint
from extproc.io.discovery.registration import calls, connect, registration_keys

_log = structlog.get_logger("kvsteer.discovery")

#: Seconds between two looks: a third of what a missed heartbeat costs anyway.
_EVERY = 1.0
#: Longest details of a registration that are read, in bytes.
_LONGEST = 64 * 1024

#: KEYS: set, details. ARGV: most registrations. Answers address, details, address, details ...
#: Details are fetched by the thousand, as Lua unpacks only some thousand values at once.
_READ = """
local time = redis.call('TIME')
local now = string.format('%.3f', time[1] + time[2] / 1000000)
local alive = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'LIMIT', 0, ARGV[1])
local answer = {}
for start = 1, #alive, 1000 do
  local some = {unpack(alive, start, math.min(start + 999, #alive))}
  local details = redis.call('HMGET', KEYS[2], unpack(some))
  for i, address in ipairs(some) do
    answer[#answer + 1] = address
    answer[#answer + 1] = details[i] or ''
  end
end
return answer
"""

_Entry = tuple[bytes, bytes]


class RedisSource:
    """Reads the registrations of a pool.

    Args:
        settings: where Redis is, its prefix and deadline.
        pool: name of the pool.
        every: seconds between two looks.
        limit: most registrations read.
    """

    name = "redis"

    def __init__(
        self, settings: RedisSettings, pool: str, *, every: float = _EVERY, limit: int = LIMIT
    ) -> None:
        self._settings = settings
        self._keys = registration_keys(settings.key_prefix, pool)
        self._every = every
        self._limit = limit
        self._known: dict[_Entry, Endpoint] = {}
        self._spoilt: set[_Entry] = set()
        self._said: tuple[Endpoint, ...] = ()

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """The registrations, at each look."""
        client = connect(self._settings)
        failed = False
        try:
            async with aclosing(poll(lambda: self._look(client), lambda: self._every)) as answers:
                async for answer in answers:
                    yield replace(answer, doubtful=failed) if isinstance(answer, Found) else answer
                    failed = isinstance(answer, Failed)
        finally:
            await client.aclose()

    async def _look(self, client: Any) -> Found:
        async with calls(self._settings.deadline):
            flat: list[bytes] = await client.eval(_READ, 2, *self._keys, self._limit + 1)
        entries = list(zip(flat[::2], flat[1::2], strict=True))
        known: dict[_Entry, Endpoint] = {}
        spoilt: dict[_Entry, str] = {}
        for entry in entries:
            try:
                known[entry] = self._known.get(entry) or _endpoint(*entry)
            except ValueError as error:
                spoilt[entry] = str(error)
        self._tell(spoilt)
        if spoilt and not known:
            raise SourceFailed("unreadable", f"no registration can be read; one says: {min(spoilt.values())}")
        if known != self._known or len(known) != len(self._said):
            self._said = tuple(known.values())
        self._known = known
        return Found(self._said)

    def _tell(self, spoilt: dict[_Entry, str]) -> None:
        """Say once what is wrong with a registration; the others go on."""
        news = [reason for entry, reason in spoilt.items() if entry not in self._spoilt]
        if news:
            _log.warning("registrations can't be read", key=self._keys[0], count=len(spoilt), one=min(news))
        self._spoilt = set(spoilt)


def _endpoint(address: bytes, details: bytes) -> Endpoint:
    """A registration. Raises ValueError with what is wrong with it."""
    where = f"registration {address[:80]!r}"
    if len(details) > _LONGEST:
        raise ValueError(f"{where}: its details are longer than {_LONGEST} bytes")
    try:
        told = orjson.loads(details) if details else {}
    except orjson.JSONDecodeError:
        raise ValueError(f"{where}: its details are no JSON") from None
    if not isinstance(told, dict):
        raise ValueError(f"{where}: its details are no JSON object")  # noqa: TRY004 - one kind of error for all
    return plain_endpoint({**told, "address": address.decode("utf-8", "replace")}, where)
