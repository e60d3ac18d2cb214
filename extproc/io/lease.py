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

import re
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
#: A holder: a gateway's id (settings/tree.py), and letters that tell processes apart.
_HOLDER = re.compile(r"([A-Za-z0-9_.-]{1,64})#[0-9a-fA-F]{1,16}")
#: What a script refused by the fence begins its error with.
_FENCED = "FENCED"

#: KEYS: lease, token. ARGV: who asks, TTL (ms), TTL of the token (ms), 1 or 0: whether it wants the lease, the
#: greatest token that it remembers. A token that is no whole number below Lua's bound (2^53) is garbage. A holder
#: that no gateway can be (`_HOLDER`) holds nothing, and one that never ends, or far too late, is given a TTL.
#: Answers 1 and the token, or 0, the token, the holder and the milliseconds that are left to it.
_TAKE = """
local function number(text)
  local found = text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
  return found and found < 9007199254740000 and found or 0
end
local held = redis.call('HMGET', KEYS[1], 'holder', 'token')
if held[1] and not (#held[1] <= 81 and string.match(held[1], '^[%w_.-]+#%x+$')) then
  held[1] = false
end
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
  if left < 0 or left > 10 * ARGV[2] then
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

    Attributes:
        name: as given.
        holder: gateway id of whom Redis last named as holder; "" for nobody or not known.
        token: ours, of the last time this gateway got the lease; 0 before.
        trouble: whether Redis refuses it again and again.
        willing: whether this gateway wants the lease now; one it does not want it gives up, for others to have.
        due: when it is to be asked for again.
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
    ) -> None:
        self.name = name
        self.holder = ""
        self.token = 0
        self._redis = client
        self._keys = (f"{prefix}:lease:{name}", f"{prefix}:lease:{name}:token")
        self._me = f"{gateway_id}#{secrets.token_hex(4)}"
        self._ttl = ttl
        self._clock = clock
        self._until = self.due = self._asked = -float("inf")
        self._wanted = True
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

    async def attempt(self) -> None:
        """Ask for it once, or renew it. Never raises for Redis' sake."""
        try:
            answer = await self._redis.eval(*self.question())
        except (RedisError, OSError, TimeoutError) as error:
            answer = error
        self.answered(answer)

    def question(self) -> tuple[Any, ...]:
        """What EVAL is given to take or renew it; `answered` is to be told what it says."""
        self._asked, self._wanted = self._clock(), self.willing()
        args = (self._me, int(self._ttl * 1000), _TOKEN_TTL, int(self._wanted), self.token)
        return _TAKE, 2, *self._keys, *args

    def answered(self, answer: Any) -> None:
        """What Redis said to the last question, or why it said nothing: an exception."""
        every = self._ttl / _RENEWALS
        self.due = max(self._asked + every, self._clock())
        if isinstance(answer, Exception):
            self.trouble.failed(answer, " or ".join(self._keys))
            self.holder = self.holder if self.held else ""
            self._tell()
            return
        self.trouble.works()
        if int(answer[0]) == 1 and not self._released:
            self.token, self.holder = int(answer[1]), gateway_of(self._me)
            self._until = self._asked + self._ttl * (1 - _MARGIN)
        else:
            self._lost(answer, every)
        self._tell()

    def _lost(self, answer: list[Any], every: float) -> None:
        """Somebody else holds it, for some time yet, or nobody does."""
        self._until = -float("inf")
        self.holder = gateway_of(answer[2].decode("utf-8", "replace")) if len(answer) > 2 else ""
        left = max(0, int(answer[3])) / 1000 if len(answer) > 3 and self._wanted else every
        self.due = self._clock() + min(every, left + 0.01)  # a moment after it ends, so that it has ended

    def give_up(self) -> tuple[Any, ...]:
        """What EVAL is given so that another has it at once; it is over here with that. For good."""
        self._released = True
        self._until = -float("inf")
        self._tell()
        return _GIVE_UP, 1, self._keys[0], self._me

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


def gateway_of(holder: str) -> str:
    """The gateway's id, of a holder's name; "" for a name that no gateway has, whoever wrote it."""
    found = _HOLDER.fullmatch(holder)
    return found[1] if found else ""
