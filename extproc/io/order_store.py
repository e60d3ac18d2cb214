"""Operators' orders as they stand in Redis: read in one round trip and written in one, whatever the number of pools.

Beside the orders a pool's hash (io/operator.py) has two fields of its own:

    *        says that the hash was not lost: with it, an absent order means "undrained"
    *count   N:WORD: how often the hash was written by gateways, and a word of the last write's own

Every gateway remembers the count. One that went backwards, or has another word, shows that Redis came back with an
older state (an RDB file, a failover that lost writes): then what gateways know is newer than what stands there. That
holds only where a gateway reads and writes in turn (io/shared_orders.py sees to it): a read that was sent before its
own write, and taken in after it, would pass for an older state.
"""

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from extproc.io.redis_check import AtKey
from extproc.io.redis_shape import is_text, script

#: Seconds an unheld key lives: the longest deadline is a week, and a fleet may be off for some weeks.
TTL = 30 * 86_400
_MARK, _COUNT = b"*", b"*count"
#: Counts above this are not ours: what Lua's numbers hold exactly, with room.
_MOST_COUNT = 2**52

#: KEYS: the pool's orders. ARGV: the count as it was read, the least count to follow, a word for this write, the TTL,
#: = and the count with its word as they must stand there still (or nothing), how many of the following are fields
#: and values, these, and fields to take away. Answers the new count with its word, or "" when the hash is older than
#: it was when it was read, or was written since though it must not be. Said twice it is as said once.
_WRITE = script(
    f"""
local stands = redis.call('HGET', KEYS[1], '*count') or ''
if string.match(stands, ':(.*)$') == ARGV[3] then return stands end
if ARGV[5] ~= '' and '=' .. stands ~= ARGV[5] then return '' end
local there = tonumber(string.match(stands, '^(%d+):')) or 0
if there >= {_MOST_COUNT} then there = 0 end
if there < tonumber(ARGV[1]) then return '' end
local pairs_end = 6 + tonumber(ARGV[6])
for i = 7, pairs_end, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = pairs_end + 1, #ARGV do
  redis.call('HDEL', KEYS[1], ARGV[i])
end
local stamp = string.format('%.0f', math.max(there, tonumber(ARGV[2])) + 1) .. ':' .. ARGV[3]
redis.call('HSET', KEYS[1], '*', '{{}}', '*count', stamp)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return stamp
""",
    is_text,
)


class Stamp(NamedTuple):
    """The number and the word of a write; 0 and "" where there was none."""

    number: int
    word: bytes


class Standing(NamedTuple):
    """A pool's orders as they were read.

    Attributes:
        orders: field -> JSON.
        is_whole: False when Redis lost the hash, or never had it.
        is_older: whether it is of before what this gateway has seen.
        stamp: of its last write.
        raw: the same as it stands there, whoever wrote it.
    """

    orders: dict[bytes, bytes]
    is_whole: bool
    is_older: bool
    stamp: Stamp
    raw: bytes


class Change(NamedTuple):
    """What is to be written of a pool.

    Attributes:
        read: how the pool was read.
        fields: address -> JSON, or None to take it away.
        is_mending: whether it must not be written when anybody wrote the pool since it was read: nobody asked for
            it, and what was written meanwhile may be what somebody did ask for.
    """

    read: Standing
    fields: Mapping[str, bytes | None]
    is_mending: bool


class OrderStore:
    """Reads and writes, and remembers how far each pool's orders were.

    Args:
        prefix: first part of the keys.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: dict[str, Stamp] = {}

    def key(self, pool: str) -> str:
        """Where a pool's orders stand."""
        return f"{self._prefix}:operator:{pool}"

    async def read(self, redis: Any, pools: list[str], *, refresh: bool) -> dict[str, "Standing | AtKey"]:
        """Each pool's orders, or what Redis says against its key.

        Args:
            redis: client of io/redis_client.py.
            pools: their names.
            refresh: whether the keys' TTL begins anew.

        Raises:
            RedisError, OSError, TimeoutError: as the client, when nothing could be asked.
        """
        async with redis.pipeline(transaction=False) as pipe:
            for pool in pools:
                pipe.hgetall(self.key(pool))
                if refresh:
                    pipe.expire(self.key(pool), TTL)
            answers = await pipe.execute(raise_on_error=False)
        return {
            pool: AtKey(self.key(pool), said) if isinstance(said, Exception) else self._standing(pool, said)
            for pool, said in zip(pools, answers[:: 2 if refresh else 1], strict=True)
        }

    async def write(self, redis: Any, changes: Mapping[str, Change]) -> dict[str, "bool | AtKey"]:
        """Write pools' orders. Which pools were written, or what Redis says against a key.

        Args:
            redis: client of io/redis_client.py.
            changes: pool -> what is to change. Written twice it is as written once.

        Raises:
            RedisError, OSError, TimeoutError: as the client, when nothing could be asked.
        """
        async with redis.pipeline(transaction=False) as pipe:
            for pool, (standing, fields, is_mending) in changes.items():
                least = max(standing.stamp.number, self._seen.get(pool, standing.stamp).number)
                kept = [part for item in fields.items() if item[1] is not None for part in item]
                gone = [field for field, raw in fields.items() if raw is None]
                exactly = b"=" + standing.raw if is_mending else b""
                said = [standing.stamp.number, least, secrets.token_hex(4), TTL, exactly]
                pipe.eval(_WRITE, 1, self.key(pool), *said, len(kept), *kept, *gone)
            answers = await pipe.execute(raise_on_error=False)
        return {pool: self._written(pool, said) for pool, said in zip(changes, answers, strict=True)}

    def _standing(self, pool: str, held: Mapping[bytes, bytes]) -> Standing:
        count = held.get(_COUNT, b"")
        stamp, seen = _stamp(count), self._seen.get(pool, Stamp(0, b""))
        is_whole = _MARK in held
        forked = stamp.number == seen.number and stamp.word != seen.word
        is_older = is_whole and (stamp.number < seen.number or forked)
        if is_whole and not is_older:
            self._seen[pool] = stamp
        orders = {field: raw for field, raw in held.items() if not field.startswith(_MARK)}
        return Standing(orders, is_whole, is_older, stamp, count)

    def _written(self, pool: str, said: Any) -> "bool | AtKey":
        if isinstance(said, Exception):
            return AtKey(self.key(pool), said)
        if not said:
            return False
        self._seen[pool] = _stamp(bytes(said))
        return True


def first_fault(answers: Mapping[str, object]) -> RedisError | None:
    """What Redis said against the first of the keys that it said something against."""
    return next((said for said in answers.values() if isinstance(said, AtKey)), None)


def _stamp(text: bytes) -> Stamp:
    count, _, word = text.partition(b":")
    number = int(count) if count.isdigit() and len(count) < 20 else 0
    return Stamp(number, word[:16]) if 0 < number < _MOST_COUNT else Stamp(0, b"")
