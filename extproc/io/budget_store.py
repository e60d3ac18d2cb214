"""Leases of pools' budgets and rates in Redis: one Lua call a trade, the rule of core/admission/board.py.

A hash for each pool, `PREFIX:admission:POOL`, with the fields

    total, basis        tokens, and what the KV caches may hold by which they were found
    changed             when that was last changed (Redis TIME, ms)
    refilled            up to when rates were refilled
    level:TENANT        tokens of its rate that are left
    gateway:ID          JSON: when it was last heard, its last trade's number and the rates that gave, and its rows

A server that lost everything, since it was started anew, goes on from the total, the rows and the levels that
gateways last knew and offer with each trade: no rate begins anew, and the first one back gets no more than its part.

A trade has a number, so that one that is sent twice, since a connection broke, draws once. What does not parse is
dropped, as if that gateway had never said anything: it says it again at its next trade.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
import orjson
from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.core.admission.board import BURST, TTL, Asked, Standing
from extproc.core.admission.shares import Row
from extproc.core.admission.tenants import Tenant
from extproc.io.redis_bound import bound
from extproc.io.redis_client import make_client

#: Milliseconds after which a pool nobody trades in is forgotten.
_FORGOTTEN: Final = 3_600_000

#: KEYS: the pool's hash. ARGV: gateway, number of the trade, JSON of the tenants and what is asked, the total where
#: none stands, a total that is proposed ("" for none), least ms between two changes, ms after which a gateway is
#: dead, the seconds of a rate that stay here at most, the key's TTL in ms, whether rates begin full, the bases of
#: the total where none stands and of the one that is proposed.
_TRADE = """
local key, me = KEYS[1], 'gateway:' .. ARGV[1]
local asked = cjson.decode(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function number(text) return tonumber(text or '') or 0 end
local function parsed(text)
  local ok, value = pcall(cjson.decode, text)
  if ok and type(value) == 'table' and type(value.rows) == 'table' then return value end
end

local total = number(redis.call('HGET', key, 'total'))
local basis = number(redis.call('HGET', key, 'basis'))
if total <= 0 then total, basis = tonumber(ARGV[4]), tonumber(ARGV[11]) end
local is_new = redis.call('EXISTS', key) == 0
local changed = 0
if ARGV[5] ~= '' and now - number(redis.call('HGET', key, 'changed')) >= tonumber(ARGV[6]) then
  total, basis, changed = tonumber(ARGV[5]), tonumber(ARGV[12]), 1
  redis.call('HSET', key, 'changed', string.format('%.0f', now))
end

local rows, held, all, used, others, mine = {}, {}, 0, 0, 0, nil
local flat = redis.call('HGETALL', key)
for i = 1, #flat, 2 do
  if string.sub(flat[i], 1, 8) == 'gateway:' then
    local it = parsed(flat[i + 1])
    if flat[i] == me then
      mine = it
    elseif not it or not (now - number(it.seen) <= tonumber(ARGV[7])) then
      redis.call('HDEL', key, flat[i])
    else
      rows[string.sub(flat[i], 9)] = it.rows
      others = others + 1
      for name, row in pairs(it.rows) do
        local hold = type(row) == 'table' and number(row[5]) or 0
        held[name] = (held[name] or 0) + hold
        all = all + hold
        used = used + (type(row) == 'table' and number(row[1]) or 0)
      end
    end
  end
end

if all > total then all = math.max(used, total * others / (others + 1)) end

local refilled = number(redis.call('HGET', key, 'refilled'))
local passed = refilled > 0 and math.max(now - refilled, 0) / 1000 or 0
redis.call('HSET', key, 'refilled', string.format('%.0f', math.max(now, refilled)), 'total', tostring(total),
  'basis', tostring(basis))
local left, again = total - all, mine and mine.number == tonumber(ARGV[2])
for _, it in ipairs(asked) do left = left - it.row[1] end
local holds, rates, my_rows, levels = {}, {}, {}, {}
for _, it in ipairs(asked) do
  local row = it.row
  local hold = math.min(row[5], row[1] + math.max(left, 0))
  if it.cap >= 0 then hold = math.min(hold, it.cap - (held[it.name] or 0)) end
  hold = math.max(row[1], hold)
  left = left - (hold - row[1])
  row[5] = hold
  holds[it.name], my_rows[it.name] = hold, row
  if it.per_minute < 0 then
    rates[it.name] = math.max(it.rate, 0)
  else
    local field, speed = 'level:' .. it.name, it.per_minute / 60
    local most = speed * tonumber(ARGV[8])
    local level = tonumber(redis.call('HGET', key, field) or '')
    if not level then level = it.level >= 0 and it.level or ARGV[10] == '1' and is_new and most or 0 end
    level = math.min(level + speed * passed, most)
    if again then
      rates[it.name] = type(mine.given) == 'table' and number(mine.given[it.name]) or 0
    elseif it.rate > 0 then
      rates[it.name] = math.min(it.rate, math.max(level, 0))
      level = level - rates[it.name]
    else
      rates[it.name], level = 0, math.min(level - it.rate, most)
    end
    redis.call('HSET', key, field, tostring(level))
    levels[it.name] = math.max(level, 0)
  end
end
rows[ARGV[1]] = my_rows
redis.call('HSET', key, me, cjson.encode({
  seen = now, number = tonumber(ARGV[2]), given = rates, rows = my_rows
}))
redis.call('PEXPIRE', key, ARGV[9])
return cjson.encode({
  total = total, basis = basis, changed = changed, holds = holds, rates = rates, rows = rows, levels = levels
})
"""

#: KEYS: the pool's hash. ARGV: the gateway that leaves.
_LEAVE = "return redis.call('HDEL', KEYS[1], 'gateway:' .. ARGV[1])"

#: Of a row; one of another version may have more.
_FIELDS: Final = len(Row._fields)

_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class _Said(msgspec.Struct):
    """The script's answer."""

    total: _Amount
    basis: _Amount
    changed: int
    holds: dict[str, _Amount]
    rates: dict[str, _Amount]
    levels: dict[str, _Amount]
    rows: dict[str, dict[str, Annotated[list[_Amount], msgspec.Meta(min_length=5)]]]


class BudgetStore:
    """Trades for one gateway, and counts them.

    Args:
        settings: of Redis.
        gateway: how this process is known, unlike any other; it comes into a field's name.
    """

    def __init__(self, settings: RedisSettings, gateway: str) -> None:
        self._client: Any = bound(make_client(settings, "admission"), settings.protocol)
        self._prefix = settings.key_prefix
        self._gateway = gateway
        self._number = 0
        self._fresh = True

    @property
    def gateway(self) -> str:
        """As given."""
        return self._gateway

    def key(self, pool: str) -> str:
        """Where a pool's leases stand."""
        return f"{self._prefix}:admission:{pool}"

    async def trade(
        self,
        pool: str,
        tenants: tuple[Tenant, ...],
        asked: Mapping[str, Asked],
        *,
        total: tuple[float, float],
        proposed: tuple[float, float] | None = None,
        every: float = 0.0,
    ) -> tuple[Standing, bool]:
        """Say what is used and wanted, and get what may be spent; and whether the proposed total holds now.

        Args:
            pool: its name.
            tenants: with their caps.
            asked: by tenant's name.
            total: and its basis, tokens, where none stands in Redis.
            proposed: the same to change to.
            every: least seconds between two changes.

        Raises:
            RedisError: as the client, and for an answer that makes no sense.
        """
        self._number += 1
        said = await self._client.eval(
            _TRADE, 1, self.key(pool), self._gateway, self._number, orjson.dumps(_form(tenants, asked)), total[0],
            "" if proposed is None else proposed[0], int(every * 1000), int(TTL * 1000), BURST, _FORGOTTEN,
            int(self._fresh), total[1], 0 if proposed is None else proposed[1],
        )  # fmt: skip
        try:
            told = msgspec.json.decode(said, type=_Said)
        except (msgspec.MsgspecError, TypeError):
            raise ResponseError(f"the leases at {self.key(pool)} make no sense; delete the key") from None
        self._fresh = False
        rows = {
            gateway: {name: Row(*row[:_FIELDS]) for name, row in of_tenants.items()}
            for gateway, of_tenants in told.rows.items()
        }
        return Standing(told.total, told.basis, told.holds, told.rates, rows, told.levels), bool(told.changed)

    async def leave(self, pool: str) -> None:
        """Free what this gateway leased of a pool. Raises RedisError."""
        await self._client.eval(_LEAVE, 1, self.key(pool), self._gateway)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _form(tenants: tuple[Tenant, ...], asked: Mapping[str, Asked]) -> list[dict[str, Any]]:
    """What is asked, as the script reads it; -1 stands for no cap."""
    return [
        {
            "name": tenant.name,
            "cap": _or_none(tenant.in_flight),
            "per_minute": _or_none(tenant.per_minute),
            "row": list(asked[tenant.name].row),
            "rate": asked[tenant.name].rate,
            "level": asked[tenant.name].level,
        }
        for tenant in tenants
        if tenant.name in asked
    ]


def _or_none(cap: float) -> float:
    return -1.0 if cap == float("inf") else cap
