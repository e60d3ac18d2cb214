"""What gateways tell each other of a pool's LoRA adapters, through one hash in Redis.

    PREFIX:adapters:POOL   hash   a field for each gateway, by its id: what its requests use and wait for
                                  *        what each replica serves, told by who loads (lease adapters:POOL)
                                  *token   of that lease: a row with a lesser one is not taken

A field's value begins with the moment it was written (Redis TIME, ms) and a bar; JSON follows. Who loads so knows
what must not go; the others know at once what was loaded, and how many loads of the last minute are spent. Who comes
to load hears once what was told before, and only then tells. With Redis gone nobody loads.
"""

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
import structlog
from redis.exceptions import RedisError

from extproc.config import RedisSettings
from extproc.core.adapter_loads import Loading
from extproc.core.adapters import LONGEST_NAME, Adapters
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io.redis_client import make_client
from extproc.io.redis_shape import script

_log = structlog.get_logger("kvsteer.adapters")

#: Seconds the hash lives without a write, and after which what a gateway told counts no more.
_TTL: Final = 60
_FRESH: Final = 5.0
#: Seconds for which loads that were begun count, and most of them (as adapters.loading.per_minute at most).
_MINUTE: Final = 60.0
_MOST_BEGUN: Final = 10_000
#: Most gateways that are listened to, most bytes that one tells, and most of its uses and wishes that it tells.
_GATEWAYS: Final = 64
_MOST_BYTES: Final = 2**20
_MOST_USES: Final = 5000
_MOST_WANTED: Final = 1000

#: KEYS: the hash. ARGV: gateway, what it tells, TTL (s), most fields, the row or "" for none, the lease's token, most
#: bytes of a field. A hash with more fields than can be is begun anew, and one too long is passed over. Answers Redis
#: TIME in ms, and fields and values.
_TRADE = script(
    """
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], now .. '|' .. ARGV[2])
if ARGV[5] ~= '' and (tonumber(redis.call('HGET', KEYS[1], '*token') or '0') or 0) <= tonumber(ARGV[6]) then
  redis.call('HSET', KEYS[1], '*', now .. '|' .. ARGV[5], '*token', ARGV[6])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
local answer = {now}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if redis.call('HSTRLEN', KEYS[1], field) <= tonumber(ARGV[7]) then
    answer[#answer + 1] = field
    answer[#answer + 1] = redis.call('HGET', KEYS[1], field)
  end
end
return answer
""",
    lambda answer: (
        isinstance(answer, list) and len(answer) % 2 == 1 and all(isinstance(it, bytes) for it in answer)
    ),
)

_T = TypeVar("_T")
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
_Address = Annotated[str, msgspec.Meta(max_length=100)]
_Age = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Told(msgspec.Struct):
    """Of one gateway: adapters its requests wait for, and address -> adapter -> seconds since it was last used."""

    wants: Annotated[list[_Name], msgspec.Meta(max_length=_MOST_WANTED)] = []
    uses: dict[_Address, dict[_Name, _Age]] = {}


class _Row(msgspec.Struct):
    """Of who loads.

    Attributes:
        listed: address -> when its engine started (None for unknown), and the adapters it serves of those that come
            and go.
        refused: adapter that engines refuse -> seconds for which it is not tried.
        begun: seconds since each load of the last minute began.
    """

    listed: dict[_Address, tuple[float | None, list[_Name]]] = {}
    refused: dict[_Name, _Age] = {}
    begun: Annotated[list[_Age], msgspec.Meta(max_length=_MOST_BEGUN)] = []


class News:
    """Tells and hears them.

    Args:
        settings: where Redis is.
        pool, adapters, loading: the pool.
        gateway_id: who tells.
        clock: seconds, monotonic.

    Attributes:
        heard_as: token of the lease with which this gateway heard what who loaded before told; 0 for none.
    """

    def __init__(
        self,
        settings: RedisSettings,
        pool: Pool,
        adapters: Adapters,
        loading: Loading,
        gateway_id: str,
        clock: Callable[[], float],
    ) -> None:
        self.key = f"{settings.key_prefix}:adapters:{pool.name}"
        self._pool, self._adapters, self._loading = pool, adapters, loading
        self._id = gateway_id
        self._clock = clock
        self._redis = make_client(settings, "adapters")
        self._up = True
        self.heard_as = 0

    async def trade(self, token: int) -> None:
        """Tell and hear once. `token` of the lease if this gateway loads, else 0. Never raises for Redis' sake."""
        leads = bool(token) and token == self.heard_as
        row = msgspec.json.encode(self._row()).decode() if leads else ""
        told = msgspec.json.encode(self._told()).decode()
        args = (
            self._id,
            told,
            _TTL,
            2 * _GATEWAYS,
            row if len(row) <= _MOST_BYTES else "",
            token,
            _MOST_BYTES,
        )
        try:
            answer = await self._redis.eval(_TRADE, 1, self.key, *args)
        except (RedisError, OSError, TimeoutError) as error:
            if self._up:
                _log.warning(
                    "adapters are not shared, as Redis does not answer",
                    key=self.key,
                    error=type(error).__name__,
                )
            self._up = False
            return
        self._up = True
        self._hear(answer, leads=leads)
        self.heard_as = token

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _told(self) -> _Told:
        """What this gateway's requests use and wait for: the latest uses, if these are many."""
        shown = self._loading.use.shown({r.slot: r for r in self._pool.replicas}, self._clock())
        rows = sorted((age, address, name) for address, names in shown.items() for name, age in names.items())
        uses: dict[str, dict[str, float]] = {}
        for age, address, name in rows[:_MOST_USES]:
            uses.setdefault(address, {})[name] = age
        return _Told(self._loading.missed(self._clock())[:_MOST_WANTED], uses)

    def _row(self) -> _Row:
        managed = self._loading.rules.paths.keys()
        known = ((r, self._adapters.listing(r)) for r in self._pool.replicas)
        listed = {
            r.address: (_started(r), sorted(names & managed)) for r, names in known if names is not None
        }
        now = self._clock()
        begun = [round(max(now - at, 0.0), 3) for at in self._loading.begun(now)]
        return _Row(listed, self._loading.refused(now), begun)

    def _hear(self, answer: list[bytes], *, leads: bool) -> None:
        now_ms, fields = int(answer[0]), dict(zip(answer[1::2], answer[2::2], strict=True))
        wanted: dict[str, tuple[str, ...]] = {}
        for field, value in fields.items():
            age, body = _aged(value, now_ms)
            if field == b"*":
                if not leads and age < _MINUTE and (row := _read(body, _Row)) is not None:
                    self._take(row, age)
                continue
            if age > _FRESH or field == b"*token" or field == self._id.encode():
                continue
            told = _read(body, _Told)
            if told is not None and len(wanted) < _GATEWAYS:
                wanted[field.decode("utf-8", "replace")] = tuple(told.wants)
                self._loading.use.told(field.decode("utf-8", "replace"), told.uses, self._clock() - age)
        self._loading.wanted = wanted

    def _take(self, row: _Row, age: float) -> None:
        """By who loads: the minute's loads, what replicas serve, of the same incarnations, and what they refuse."""
        now = self._clock()
        self._loading.others_began((now - age - it for it in row.begun), now)
        if age > _FRESH:
            return
        for address, (started, names) in row.listed.items():
            replica = self._pool.get(address)
            if replica is not None and started == _started(replica):
                self._adapters.told(replica, names, self._loading.rules.paths.keys())
        for name, seconds in row.refused.items():
            self._loading.rest(name, seconds, now - age)


def _started(replica: Replica) -> float | None:
    return replica.sample.started if replica.sample is not None else None


def _aged(value: bytes, now_ms: int) -> tuple[float, bytes]:
    """Seconds since a field was written, and the rest of it; infinitely old for what is none of ours."""
    stamp, bar, body = value.partition(b"|")
    if not bar or not stamp.isdigit() or len(stamp) > 15:
        return float("inf"), b""
    return max(now_ms - int(stamp), 0) / 1000, body


def _read(body: bytes, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
