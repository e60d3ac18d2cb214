"""Leases in Redis: of many gateways one does a thing (collects a pool's metrics, writes a snapshot).

Keys (PREFIX from the settings, NAME of the lease):

    PREFIX:lease:NAME         hash    holder, token, since (Redis TIME, ms); lives for the lease's TTL
    PREFIX:lease:NAME:token   string  the greatest token that was ever given

A holder renews three times within the TTL. One that dies is followed after the TTL and a moment. `held` is asked
right before acting: it compares a monotonic clock with the moment before the last renewal was sent, plus the TTL,
less a margin. A holder that was paused so notices as soon as it runs again, without asking Redis.

It can still be paused between asking and acting. Therefore each holder gets a token greater than all before it
(Kleppmann, "How to do distributed locking", 2016), and what it writes is fenced: `run` executes a script only while
no greater token was given. Readers of what is no script's work (journal batches) compare tokens: the greatest counts.
Tokens are not below Redis TIME in milliseconds, so that they rise over an emptied Redis too.

With Redis gone nobody holds anything after a TTL; each use says for itself what then happens.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from redis.exceptions import RedisError, ResponseError

from extproc.errors import KvsteerError
from extproc.io import clock
from extproc.io.redis_check import Trouble

_log = structlog.get_logger("kvsteer.leases")

#: Seconds a lease lives without renewal: its takeover is over within two seconds of a death, with room for a call's
#: deadline, and three renewals fit into it.
TTL = 1.2
#: Renewals within a TTL.
_RENEWALS = 3
#: Part of a TTL by which a holder stops early: clocks of two machines differ in speed by far less.
_MARGIN = 0.1
#: Milliseconds the greatest token is remembered: far longer than any holder is paused.
_TOKEN_TTL = 86_400_000
#: What a script refused by the fence begins its error with.
_FENCED = "FENCED"

#: KEYS: lease, token. ARGV: who asks, TTL (ms), TTL of the token (ms), 1 or 0: whether it wants the lease, the
#: greatest token that it remembers. A token that is no whole number below Lua's bound (2^53) is garbage.
#: Answers 1 and the token, or 0, the token, the holder and the milliseconds that are left to it.
_TAKE = """
local function number(text)
  local found = text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
  return found and found < 9007199254740000 and found or 0
end
local held = redis.call('HMGET', KEYS[1], 'holder', 'token')
if ARGV[4] == '0' and (not held[1] or held[1] == ARGV[1]) then
  redis.call('DEL', KEYS[1])
  return {0, '0', '', 0}
end
if held[1] == ARGV[1] and number(held[2]) > 0 and held[2] == redis.call('GET', KEYS[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return {1, held[2]}
end
if held[1] and held[1] ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return {0, held[2] or '0', held[1], left}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = math.max(number(redis.call('GET', KEYS[2])), number(ARGV[5]))
local token = string.format('%.0f', math.max(now, last + 1))
redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', token, 'since', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, token}
"""

#: KEYS: lease. ARGV: who gives it up.
_GIVE_UP = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""

#: Stands before every fenced script. KEYS[1]: token. ARGV[1]: the writer's own.
_FENCE = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('{_FENCED} another holder has a greater token')
end
"""


class Fenced(KvsteerError):
    """No fault: somebody else was given the lease since; nothing was written."""


class Lease:
    """One lease, as one gateway sees it.

    Args:
        client: of io/redis_client.py; shared by all leases of a gateway.
        prefix: first part of the keys (`settings.key_prefix`).
        name: what is leased, such as `collector:POOL`.
        gateway_id: who asks; two processes of one id are told apart.
        ttl: seconds.
        clock: seconds, monotonic.
        turns: taken for each call, where many leases share the client's connections.

    Attributes:
        name: as given.
        holder: gateway id of whom Redis last named as holder; "" for nobody or not known.
        token: ours, of the last time this gateway got the lease; 0 before.
        trouble: whether Redis refuses it again and again.
        willing: whether this gateway wants the lease now; one it does not want it gives up, for others to have.
    """

    def __init__(
        self,
        client: Any,
        prefix: str,
        name: str,
        gateway_id: str,
        *,
        ttl: float = TTL,
        clock: Callable[[], float] = clock.monotonic,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self.name = name
        self.holder = ""
        self.token = 0
        self._redis = client
        self._keys = (f"{prefix}:lease:{name}", f"{prefix}:lease:{name}:token")
        self._me = f"{gateway_id}#{secrets.token_hex(4)}"
        self._ttl = ttl
        self._clock = clock
        self._turns = turns or asyncio.Semaphore()
        self._until = -float("inf")
        self._was_held = False
        self._released = False
        self.willing: Callable[[], bool] = lambda: True
        self.trouble = Trouble(f"lease {name}")

    @property
    def held(self) -> bool:
        """Whether this gateway holds it at this moment. Ask right before acting; it costs a look at the clock."""
        return self._clock() < self._until

    @property
    def remaining(self) -> float:
        """Seconds for which it is held without another renewal; 0 when it is not held."""
        return max(0.0, self._until - self._clock())

    async def keep(self) -> None:
        """Take and renew it until cancelled or released. Never raises for Redis' sake."""
        while not self._released:
            wait = await self.attempt()
            self._tell()
            await asyncio.sleep(wait)

    async def attempt(self) -> float:
        """Ask for it once, or renew it; returns the seconds to the next attempt."""
        async with self._turns:
            return await self._ask()

    async def _ask(self) -> float:
        every = self._ttl / _RENEWALS
        asked, willing = self._clock(), self.willing()
        args = (self._me, int(self._ttl * 1000), _TOKEN_TTL, int(willing), self.token)
        try:
            answer = await self._redis.eval(_TAKE, 2, *self._keys, *args)
        except (RedisError, OSError, TimeoutError) as error:
            self.trouble.failed(error, " or ".join(self._keys))
            self.holder = self.holder if self.held else ""
            return every
        self.trouble.works()
        if int(answer[0]) == 1 and not self._released:
            self.token = int(answer[1])
            self.holder = _gateway(self._me)
            self._until = asked + self._ttl * (1 - _MARGIN)
            return max(0.0, asked + every - self._clock())
        self._until = -float("inf")
        self.holder = _gateway(answer[2].decode("utf-8", "replace")) if len(answer) > 2 else ""
        left = max(0, int(answer[3])) / 1000 if len(answer) > 3 and willing else every
        return min(every, left + 0.01)  # a moment after it ends, so that it has ended

    async def release(self) -> None:
        """Give it up, so that another has it at once. For good: make another to take it again."""
        self._released = True
        self._until = -float("inf")
        with contextlib.suppress(RedisError, OSError, TimeoutError):  # else it ends by itself
            async with self._turns:
                await self._redis.eval(_GIVE_UP, 1, self._keys[0], self._me)
        self._tell()

    async def run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Execute a Lua script fenced by our token; returns its answer.

        Args:
            script: its own keys begin at KEYS[2], its arguments at ARGV[2]: the first are the fence's.
            keys: with the settings' `key_prefix`.
            args: texts, bytes or numbers.

        Raises:
            Fenced: somebody else got the lease since, or this gateway never had it.
            RedisError: as the client.
        """
        if not self.token:
            raise Fenced(f"the lease {self.name} was never held here")
        numkeys = 1 + len(keys)
        try:
            return await self._redis.eval(_FENCE + script, numkeys, self._keys[1], *keys, self.token, *args)
        except ResponseError as error:
            if str(error).startswith(_FENCED):
                self._until = -float("inf")
                raise Fenced(f"the lease {self.name} went to another gateway; nothing was written") from None
            raise

    async def write(self, key: str, value: bytes, ttl: float) -> None:
        """SET a key for `ttl` seconds, fenced. Raises as `run`."""
        script = "redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) return 1"
        await self.run(script, [key], [value, int(ttl * 1000)])

    def shown(self) -> dict[str, Any]:
        """For /state: times in seconds."""
        return {
            "lease": self.name,
            "held": self.held,
            "holder": self.holder or None,
            "token": self.token or None,
            "remaining": round(self.remaining, 3),
        }

    def _tell(self) -> None:
        held = self.held
        if held != self._was_held:
            _log.info("lease taken" if held else "lease gone", lease=self.name, token=self.token)
        self._was_held = held


def _gateway(holder: str) -> str:
    """The gateway's id, of a holder's name."""
    return holder.rpartition("#")[0][:64]
