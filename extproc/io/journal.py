"""The journal: one Redis stream by which the gateways of a fleet tell each other what they do.

Key (PREFIX from the settings):

    PREFIX:journal    stream    entries of one field `b`: a batch (core/journal.py). Trimmed by age and length.

The writer sends a batch at once when the last one is `FLUSH` old or was full, else when it is so old, and at least
one every second. The reader asks for all that is new, at most once every `READ_EVERY`, and blocks while there is
nothing. So the number of Redis commands grows with gateways, and not with requests. Nothing else waits for either.

Entries' ids are times of Redis' clock. Differences between them, and between one of them and when it was given to us,
say how long a batch lay in the stream: no gateway's clock is compared with another's.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import structlog
from redis.exceptions import OutOfMemoryError, RedisError

from extproc.config import RedisSettings
from extproc.core.journal import MOST_BYTES, Refused, decode, encode
from extproc.core.outbox import Outbox
from extproc.core.reach import Position, Reach
from extproc.core.shared import Shared
from extproc.io.journal_counts import JournalCounts
from extproc.io.journal_stream import (
    Entry,
    Stream,
    StreamClock,
    entries_of,
    newest_of,
    oldest_of,
    position_of,
    sifted,
)
from extproc.io.redis_bound import TooLarge, bound
from extproc.io.redis_client import make_client

_log = structlog.get_logger("kvsteer.journal")

#: Seconds between two batches under load.
FLUSH = 0.02
#: Seconds between two batches of an idle gateway.
HEARTBEAT = 1.0
#: Shortest time between two reads.
READ_EVERY = 0.01
#: Longest wait of a read, seconds.
_BLOCK = 1.0
#: Entries of one read; at most 64 KiB each as they are written.
_ENTRIES = 64
#: Seconds of work after which the event loop gets its turn.
_SLICE = 0.003
#: Seconds without a good read after which entries may have been cut off unread. The journal keeps more.
_LONG_AGO = 2.0
#: Seconds in which a batch that Redis took must come back, else what is read is not where it was written.
_DEAF = 1.0
#: Waits after a failure.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0


class Writer:
    """Sends what the outbox holds.

    Args:
        settings: where Redis is.
        outbox: whose `wake` is this one's `wake`.
        shared: asks for tables when it missed something, and says when others do.
        counts, stream_clock, clock: what is counted, the stream's time, seconds (monotonic).
    """

    def __init__(
        self,
        settings: RedisSettings,
        outbox: Outbox,
        shared: Shared,
        counts: JournalCounts,
        stream_clock: StreamClock,
        clock: Callable[[], float],
    ) -> None:
        self._stream = Stream(settings, counts, stream_clock, clock)
        self._outbox, self._shared = outbox, shared
        self._counts, self._clock = counts, clock
        self._news = asyncio.Event()
        self._began = float("-inf")
        #: Whether the last batch was taken; None before the first.
        self.up: bool | None = None
        #: Ends `run` also where a client's clean-up of a broken connection loses the cancellation.
        self.closing = False

    def wake(self) -> None:
        """There is news."""
        self._news.set()

    async def run(self) -> None:
        """Send until cancelled."""
        wait = _FIRST_WAIT
        while not self.closing:
            await self._pause()
            if await self.flush():
                wait = _FIRST_WAIT
            else:
                wait = min(wait * 2, _LONGEST_WAIT)
                await asyncio.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311 - spreads, guards nothing

    async def flush(self) -> bool:
        """Send one batch; whether Redis took it. Never raises for Redis' sake."""
        self._began = now = self._clock()
        self._ask()
        data = encode(self._outbox.batch(now))
        if len(data) > MOST_BYTES:
            self._counts.dropped("oversize", 1)
            return True
        self._counts.sending(self._outbox.seq - 1, now)
        try:
            await self._stream.add(data)
        except (RedisError, OSError) as error:
            self._outbox.failed()
            self._tell(False, type(error).__name__)
            if isinstance(error, OutOfMemoryError):
                with contextlib.suppress(RedisError, OSError):
                    await self._stream.make_room()
            return False
        self._counts.sent(self._outbox.seq - 1, len(data), self._clock())
        self._tell(True)
        return True

    async def close(self) -> None:
        """Say that this gateway leaves, and close the connections."""
        self._outbox.leaves = True
        try:
            async with asyncio.timeout(1.0):
                while not await self.flush() or len(self._outbox):
                    if not self.up:
                        break
        except TimeoutError:
            pass  # the others notice its silence
        await self._stream.close()

    async def _pause(self) -> None:
        """Until the next batch is due."""
        due = 0.0 if self._outbox.behind and self.up else self._began + FLUSH - self._clock()
        if due > 0:
            await asyncio.sleep(due)
        self._news.clear()
        if self._outbox.has_news(self._clock()) or self._shared.missed or self._shared.asked:
            return
        self._outbox.idle = True
        try:
            async with asyncio.timeout(max(self._began + HEARTBEAT - self._clock(), 0.0)):
                await self._news.wait()
        except TimeoutError:
            pass
        self._outbox.idle = False

    def _ask(self) -> None:
        if self._shared.missed:
            self._shared.missed, self._outbox.asks = False, True
        if self._shared.asked:
            self._shared.asked = False
            self._outbox.table_wanted(self._began)

    def _tell(self, up: bool, error: str = "") -> None:
        if up != self.up and not (up and self.up is None):
            if up:
                _log.info("journal is written again")
            else:
                _log.warning("journal can't be written; going on alone", error=error)
        self.up = up


class Reader:
    """Applies what others say. Arguments as of `Writer`.

    Args:
        reach: told of entries that were read, and of gaps.

    Attributes:
        last: the position up to which everything was applied.
        up: whether the last read reached Redis; None before the first.
    """

    def __init__(
        self,
        settings: RedisSettings,
        shared: Shared,
        counts: JournalCounts,
        stream_clock: StreamClock,
        clock: Callable[[], float],
        reach: Reach,
    ) -> None:
        self._key = f"{settings.key_prefix}:journal"
        self._redis = bound(make_client(settings, "journal-in", patience=_BLOCK), settings.protocol)
        self._shared, self._counts = shared, counts
        self._stream_clock, self._clock = stream_clock, clock
        self._reach = reach
        self._warned: set[str] = set()
        self._read = self._emptied = float(
            "-inf"
        )  # when the last was sent that succeeded; that left nothing unread
        self._moved = float("-inf")  # when it last connected anew
        self.last: Position = (0, 0)
        self.up: bool | None = None
        #: As the writer's.
        self.closing = False

    async def run(self) -> None:
        """Read until cancelled."""
        wait = _FIRST_WAIT
        while not self.closing:
            began = self._clock()
            try:
                is_all = await self._round()
            except (RedisError, OSError):
                self.up = False
                await self._check_lost()
                wait = min(wait * 2, _LONGEST_WAIT)
                await asyncio.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311 - as above
                continue
            if self.up is False:
                await self._check_lost()
            self.up, wait = True, _FIRST_WAIT
            self._read, self._emptied = began, began if is_all else self._emptied
            if is_all:
                await self._mind_echo()
            await asyncio.sleep(max(began + READ_EVERY - self._clock(), 0.0) if is_all else 0.0)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _round(self) -> bool:
        """Read once, and take it in; whether that was all there is."""
        is_long_ago = self._clock() - self._read > _LONG_AGO
        if is_long_ago:
            await self._know_time()
        position = f"{self.last[0]}-{self.last[1]}"
        entries = await self._entries(position)
        if is_long_ago:
            await self._check_cut()
        if not entries:
            await self._check_lost()
            return True
        began = self._clock()
        for name, fields in entries:
            self.last = position_of(name)
            self._reach.read(self.last)
            self._take(fields, self.last)
            if self._clock() - began > _SLICE:
                await asyncio.sleep(0)
                began = self._clock()
        return len(entries) < _ENTRIES

    async def _entries(self, after: str) -> list[Entry]:
        """What is new, at once or when there is something."""
        try:
            found = await self._redis.xread({self._key: after}, count=_ENTRIES, block=int(_BLOCK * 1000))
        except TooLarge:
            return await sifted(self._redis, self._key, after, _ENTRIES)
        return entries_of(found) if found else []

    async def _know_time(self) -> None:
        """Before old entries are read: without the time of Redis they would pass for new ones."""
        seconds, micros = await self._redis.time()
        self._stream_clock.saw((int(seconds) * 1000 + int(micros) // 1000, 0), self._clock())

    async def _mind_echo(self) -> None:
        """Own batches are taken, and don't come back: read from another server.

        This is the former one, a replica now, that lags or is cut off. A write there would be refused; a read is
        answered as ever.
        """
        now, reconnect = self._clock(), self._redis.guard.reconnect
        if reconnect is None or min(self._counts.deaf_for(now), now - self._moved) < _DEAF:
            return
        self._moved = now
        _log.warning("what is written to the journal does not come back; reading through a new connection")
        with contextlib.suppress(RedisError, OSError):
            await reconnect()

    async def _check_cut(self) -> None:
        """After a while without a read: what was read last may be cut off by now, and more with it."""
        if self.last == (0, 0):
            return
        oldest = await oldest_of(self._redis, self._key)
        if oldest is None or oldest > self.last:
            self._reach.gap()

    def _age(self, position: Position, now: float) -> float:
        """Seconds that an entry was in the stream: by the time of Redis, at most since nothing was left unread.

        So a Redis whose time jumped makes nothing old that is new.
        """
        return min(self._stream_clock.age(position, now), max(now - self._emptied, 0.0))

    async def _check_lost(self) -> None:
        """A Redis that was emptied, or is another, gives smaller ids than we wait for: then begin anew."""
        try:
            newest = await newest_of(self._redis, self._key)
        except (RedisError, OSError):
            return
        if newest is None or newest < self.last:
            self._shared.missed = self._shared.missed or newest is not None
            if self.last != (0, 0):
                self.last = (0, 0)
                self._reach.gap()

    def _take(self, fields: dict[bytes, bytes] | None, position: Position) -> None:
        data = (fields or {}).get(b"b", b"")
        self._counts.received(len(data), self._clock())
        try:
            batch = decode(data)
        except Refused as refused:
            self._counts.refused(refused.reason)
            if refused.reason not in self._warned:
                self._warned.add(refused.reason)
                _log.warning(
                    "a batch in the journal can't be used and is passed over; only the first is told",
                    reason=refused.reason,
                )
            return
        now = self._clock()
        if self._counts.is_own(batch):
            self._counts.echoed(batch.seq, now)
        self._shared.hear(batch, position, now, self._age(position, now))
