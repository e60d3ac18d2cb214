"""The journal's stream as a key in Redis: entries are added and cut off here, and its clock is read.

Kept are 60 s of batches, less when they take more than 64 MiB, never below 5 s. By age that is done with each batch,
and now and then by number too: where Redis' clock was set back ids stand still, and by them nothing is old.

A stream whose last id is far ahead of Redis' clock (somebody added one) gives all that follow that same time, and the
greatest id of all none after it. Then the key is deleted and begun anew, by a script that looks for itself: it does
so once, whoever else asks. The gateways find that ids fell, and begin anew with a snapshot.
"""

from collections.abc import Callable
from typing import Any, Final

import structlog
from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.core.journal import MOST_BYTES
from extproc.core.reach import Position
from extproc.io.journal_counts import JournalCounts
from extproc.io.redis_client import make_client

_log = structlog.get_logger("kvsteer.journal")

#: An entry's id, and its fields.
Entry = tuple[bytes, dict[bytes, bytes] | None]

#: Seconds of batches kept, less when they take more than so many bytes; never more than so many entries.
_KEEP = 60.0
_KEEP_LEAST = 5.0
_KEEP_BYTES = 2**26
_KEEP_ENTRIES = 50_000
#: Seconds between two cuts by number, and between two looks at Redis' clock while ids stand still.
_CUT_EVERY = 5.0
#: Seconds for which ids may stand still.
_STILL = 1.0
#: Milliseconds by which ids may be ahead of Redis' clock: a day; what a clock that was set back by hand differs by.
_AHEAD: Final = 86_400_000
#: Milliseconds by which an id may be below one that Redis' TIME gave.
_SET_BACK: Final = 1_000
#: What Redis says of a stream after whose last id there is none.
_EXHAUSTED: Final = "exhausted"

#: KEYS: the stream. ARGV: a batch, and by how many ms ids may be ahead. Answers the id, and 1 if the stream was begun
#: anew.
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local added = redis.pcall('XADD', KEYS[1], '*', 'b', ARGV[1])
if type(added) == 'table' then
  if not string.find(added.err, 'exhausted', 1, true) then
    return added
  end
elseif tonumber(string.match(added, '^%d+')) <= now + tonumber(ARGV[2]) then
  return {added, 0}
end
redis.call('DEL', KEYS[1])
return {redis.call('XADD', KEYS[1], '*', 'b', ARGV[1]), 1}
"""


#: KEYS: the stream. ARGV: XRANGE or XREVRANGE, and from where to where. Answers the id of the first entry there, for
#: an entry may be of any size.
_EDGE = """
local found = redis.call(ARGV[1], KEYS[1], ARGV[2], ARGV[3], 'COUNT', 1)
return found[1] and found[1][1]
"""

#: KEYS: the stream. ARGV: the id after which to read, most entries, most bytes. Answers entries, empty where larger.
_SIFT = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
for _, entry in ipairs(found) do
  for _, part in ipairs(entry[2]) do
    if #part > tonumber(ARGV[3]) then
      entry[2] = {}
      break
    end
  end
end
return found
"""

#: What stands for an entry that was too large to be fetched: it is too large as well (core/journal.py).
_TOO_LARGE: Final = bytes(MOST_BYTES + 1)


class StreamClock:
    """How long an entry has been in the stream, in seconds, by Redis' clock and ours, each for itself.

    An id given by Redis at its time t came to us at our time u: Redis' clock is at least t - u ahead of ours. The
    greatest such difference of the last minute or two is nearly the true one. Of one stream ids only rise, so one
    that is lower is another stream's, or its clock was set back: then all begins anew.
    """

    def __init__(self) -> None:
        self._offsets = [float("-inf"), float("-inf")]
        self._since = 0.0
        self._newest = 0

    def saw(self, position: Position, now: float) -> None:
        """An id was given to us at `now`."""
        if position[0] < self._newest - _SET_BACK:
            self._offsets = [float("-inf"), float("-inf")]
        self._newest = position[0]
        if now - self._since > 60.0:
            self._since = now
            self._offsets = [float("-inf"), self._offsets[0]]
        self._offsets[0] = max(self._offsets[0], position[0] / 1000 - now)

    def time(self, now: float) -> int:
        """The id, in milliseconds, that an entry added now would get, or a little less; 0 when no id was seen."""
        offset = max(self._offsets)
        return int((now + offset) * 1000) if offset > float("-inf") else 0

    def age(self, position: Position, now: float) -> float:
        """Seconds since an entry was added; at least 0."""
        offset = max(self._offsets)
        return max(now + offset - position[0] / 1000, 0.0) if offset > float("-inf") else 0.0


class Stream:
    """The key, for one that writes.

    Args:
        settings: where Redis is.
        counts, stream_clock, clock: what is counted, the stream's time, seconds (monotonic).
    """

    def __init__(
        self,
        settings: RedisSettings,
        counts: JournalCounts,
        stream_clock: StreamClock,
        clock: Callable[[], float],
    ) -> None:
        self._key = f"{settings.key_prefix}:journal"
        self._redis = make_client(settings, "journal-out")
        self._counts, self._stream_clock, self._clock = counts, stream_clock, clock
        self._last = 0
        self._moved = self._noted = self._cut = self._looked = float("-inf")

    async def add(self, data: bytes) -> None:
        """Add a batch, and cut off what is too old or too much. Raises RedisError."""
        try:
            name = await self._redis.xadd(self._key, {b"b": data}, **self._cutting())
        except ResponseError as error:
            if _EXHAUSTED not in str(error):
                raise
            name = await self._renewed(data)
        self._note(position_of(name))
        if self._stands_still() and self._clock() - self._looked > _CUT_EVERY:
            self._looked = self._clock()
            seconds, _ = await self._redis.time()
            if self._last > int(seconds) * 1000 + _AHEAD:
                self._note(position_of(await self._renewed(data)))  # told twice, which does no harm

    async def make_room(self) -> None:
        """Cut: a full Redis refuses XADD and the cut with it, which would stay so if it is the journal that fills it.

        Raises:
            RedisError: as the client.
        """
        oldest = self._stream_clock.time(self._clock()) - int(_KEEP_LEAST * 1000)
        if self._stands_still():
            most = max(int(self._counts.stream_batches * _KEEP_LEAST), 1)
            await self._redis.xtrim(self._key, maxlen=most, approximate=False)
        elif oldest > 0:
            await self._redis.xtrim(self._key, minid=oldest, approximate=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _note(self, position: Position) -> None:
        """An id was given."""
        now = self._clock()
        if position[0] != self._last:
            self._moved, self._last = now, position[0]
        self._noted = now
        self._stream_clock.saw(position, now)

    def _stands_still(self) -> bool:
        """Whether ids were given for a while, and all with one time."""
        return self._noted - self._moved > _STILL

    def _cutting(self) -> dict[str, Any]:
        """What XADD is to cut off: by age, and now and then by number."""
        now = self._clock()
        if now - self._cut > _CUT_EVERY:
            self._cut = now
            return {"maxlen": self._most(), "approximate": True}
        keep = min(_KEEP, max(_KEEP_BYTES / max(self._counts.stream_rate, 1.0), _KEEP_LEAST))
        oldest = self._last - int(keep * 1000)
        return {"minid": oldest, "approximate": True} if oldest > 0 else {}

    def _most(self) -> int:
        """Entries that fit into the bytes at the size they have now, though never less than the shortest time's."""
        batches, rate = self._counts.stream_batches, self._counts.stream_rate
        fit = _KEEP_BYTES * batches / rate if rate else _KEEP_ENTRIES
        return max(min(int(max(fit, batches * _KEEP_LEAST)), _KEEP_ENTRIES), 1)

    async def _renewed(self, data: bytes) -> bytes:
        """Add a batch by the script that begins the stream anew where it must; the id."""
        name, is_new = await self._redis.eval(_RENEW, 1, self._key, data, _AHEAD)
        if int(is_new):
            _log.warning(
                "the journal's last id was far ahead of Redis' time, so that nothing could follow it; the journal was"
                " deleted and begun anew. Somebody else writes to it, or Redis' clock was set back",
                key=self._key,
            )
        return bytes(name)


async def oldest_of(redis: Any, key: str) -> Position | None:
    """The id of a stream's oldest entry; None for none. Raises RedisError."""
    name = await redis.eval(_EDGE, 1, key, "XRANGE", "-", "+")
    return position_of(name) if name else None


async def newest_of(redis: Any, key: str) -> Position | None:
    """The id of a stream's newest entry; None for none. Raises RedisError."""
    name = await redis.eval(_EDGE, 1, key, "XREVRANGE", "+", "-")
    return position_of(name) if name else None


async def sifted(redis: Any, key: str, after: str, most: int) -> list[Entry]:
    """Entries after an id, at most so many; of those that are too large to be a batch nothing comes but that.

    Redis itself copies them for the script, so this is for when XREAD found one. Raises RedisError.
    """
    found = await redis.eval(_SIFT, 1, key, after, most, MOST_BYTES)
    return [
        (name, dict(zip(said[::2], said[1::2], strict=True)) or {b"b": _TOO_LARGE}) for name, said in found
    ]


def entries_of(found: Any) -> list[Entry]:
    """Entries of one stream out of what XREAD gives: with RESP3 a dict that wraps them once more."""
    entries = next(iter(found.values())) if isinstance(found, dict) else found[0][1]
    return [entry for part in entries for entry in part] if isinstance(entries[0], list) else list(entries)


def position_of(name: bytes | str) -> Position:
    """An entry's id as numbers."""
    milliseconds, _, number = (name.decode() if isinstance(name, bytes) else name).partition("-")
    return int(milliseconds), int(number or 0)
