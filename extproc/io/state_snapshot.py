"""The prefix index of each pool as a snapshot in Redis, so that a new gateway is warm within seconds.

Keys (PREFIX from the settings, GEN a random word for each snapshot):

    PREFIX:snapshot:POOL          hash    schema, gen, pieces, pairs, bytes, position (of the journal, MS-N), by,
                                          learned (core/learned.py)
    PREFIX:snapshot:POOL:GEN:N    string  piece N, compressed with zstd (core/index_copy.py)

The holder of the lease `snapshot:POOL` writes: first the pieces under a word of their own, then the hash, fenced, so
that a holder that was paused can't put an older snapshot over a newer. The pieces of the former live on for a while,
for those who are reading them. Whoever loads applies the pieces and, by the journal, what came after the position;
the order does not matter. Everything is done in slices of a few milliseconds. When is io/snapshot_duty.py's business.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import zstandard
from redis.exceptions import RedisError

from extproc.config import RedisSettings
from extproc.core.index_copy import MOST_PIECE, SCHEMA, pieces, restore, runs_of
from extproc.core.learned import learned, presume
from extproc.core.pool import Pool
from extproc.core.reach import Position
from extproc.core.shared import Shared
from extproc.io.journal_stream import oldest_of, position_of
from extproc.io.lease import Fenced, Lease
from extproc.io.redis_check import at_key
from extproc.io.redis_client import make_client

#: Pieces of one pool: a gigabyte uncompressed, far above `index.entries`' default.
_MOST_PIECES = 4096
#: Seconds a snapshot lives (the default of `index.ttl`), and what the next one leaves of it.
_TTL = 1800
_LEFTOVER_TTL = 20
#: zstd's quickest useful level: hashes are random and don't compress, all else does at any level.
_LEVEL = 1
#: Pieces asked for at once.
_READ_AHEAD = 4

_FIELDS = ("schema", "gen", "pieces", "position")

_SWAP = """
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""


class Head(NamedTuple):
    """What is told of the newest snapshot. `gen` is "" when it can't be read: of another schema, or garbled."""

    gen: str
    pieces: int
    position: Position


class Snapshots:
    """Writes and loads.

    Args:
        settings: where Redis is.
        shared: the pools, and what was taken back.
        leases: who writes each pool's.
        gateway_id: who this is.
        position: up to where the journal is applied.
        clock: seconds, monotonic.

    Attributes:
        loaded: pairs that came from snapshots.
        written: pairs in the last snapshot that this gateway wrote.
        stored: bytes of it in Redis.
    """

    def __init__(
        self,
        settings: RedisSettings,
        shared: Shared,
        leases: Mapping[str, Lease],
        gateway_id: str,
        position: Callable[[], Position],
        clock: Callable[[], float],
    ) -> None:
        self._prefix = f"{settings.key_prefix}:snapshot"
        self._journal = f"{settings.key_prefix}:journal"
        self._lease = f"{settings.key_prefix}:lease:snapshot"
        self._redis = make_client(settings, "snapshot")
        self._shared, self._leases, self._id = shared, leases, gateway_id
        self._position, self._clock = position, clock
        self._presumed: set[str] = set()  # pools whose lengths of answers were taken over
        self._refused: dict[
            str, tuple[Any, Any]
        ] = {}  # pool -> schema and name of a snapshot that can't be read
        self.loaded = self.written = self.stored = 0
        #: Called once for each snapshot that can't be read, with its schema as it is told.
        self.on_refused: Callable[[str], None] = lambda _schema: None

    async def head(self, pool: str) -> Head | None:
        """What is told of a pool's newest snapshot; None when there is none. Raises RedisError."""
        with at_key(self.key(pool)):
            said = await self._redis.hmget(self.key(pool), *_FIELDS)
        if said[1] is None:
            return None
        head = _head_of(*said)
        if not head.gen and self._refused.get(pool) != (said[0], said[1]):
            self._refused[pool] = said[0], said[1]
            self.on_refused((said[0] or b"").decode("ascii", "replace")[:8])
        return head

    async def oldest(self) -> Position | None:
        """The oldest entry of the journal that is kept; None for none. Raises RedisError."""
        with at_key(self._journal):
            return await oldest_of(self._redis, self._journal)

    async def presume(self, pool: Pool) -> None:
        """Take over what the writer of the newest snapshot learned of engines and answers. Raises RedisError."""
        with at_key(self.key(pool.name)):
            said, data = await self._redis.hmget(self.key(pool.name), "schema", "learned")
        if data and said == str(SCHEMA).encode():
            presume(pool, data, lengths=pool.name not in self._presumed)
            self._presumed.add(pool.name)

    async def take(self, pool: Pool, head: Head) -> tuple[int, bool]:
        """Load a snapshot; the pairs that were new, and whether all of it was there. Raises RedisError."""
        await self.presume(pool)
        found, is_all = 0, True
        for start in range(0, head.pieces, _READ_AHEAD):
            numbers = range(start, min(start + _READ_AHEAD, head.pieces))
            for data in await self._redis.mget([self._piece(pool.name, head.gen, n) for n in numbers]):
                runs = runs_of(_expanded(data))
                is_all = is_all and bool(runs)
                for run in runs:
                    found += restore(self._shared, run, head.position, self._clock())
                    await asyncio.sleep(0)
        self.loaded += found
        return found, is_all

    async def load(self, names: Collection[str] | None = None) -> int:
        """Load each pool's snapshot, or those named; the pairs that were new. Never raises for Redis' sake."""
        found = 0
        try:
            for pool in self._shared.pools.values():
                head = await self.head(pool.name) if names is None or pool.name in names else None
                found += (await self.take(pool, head))[0] if head is not None and head.gen else 0
        except (RedisError, OSError):
            pass
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def write(self, pool: Pool) -> Position | None:
        """Write a pool's snapshot while the lease is held; its position, None when the lease was lost on the way.

        Raises:
            RedisError: as the client; there may be pieces then that nobody reads, and their TTL takes away.
        """
        gen, position = secrets.token_hex(6), self._position()
        pairs, count, stored, lease = len(pool.index), 0, 0, self._leases[pool.name]
        compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        for piece in pieces(pool, self._clock()):
            data = compress(piece)
            await self._redis.set(self._piece(pool.name, gen, count), data, ex=_TTL)
            count, stored = count + 1, stored + len(data)
            if count >= _MOST_PIECES or not lease.held:
                break
        fields = {
            "schema": SCHEMA, "gen": gen, "pieces": count, "pairs": pairs, "bytes": stored,
            "position": f"{position[0]}-{position[1]}", "by": self._id, "learned": learned(pool),
        }  # fmt: skip
        if not lease.held or not await self._swap(pool.name, gen, count, fields):
            await self._leave(pool.name, gen, count)
            return None
        self.written, self.stored = pairs, stored
        return position

    async def _swap(self, pool: str, gen: str, count: int, fields: dict[str, Any]) -> bool:
        """Make a snapshot the newest; whether nobody else holds the lease by now."""
        key = self.key(pool)
        with at_key(key):
            before = await self._redis.hmget(key, *_FIELDS)
        try:
            with at_key(f"{self._lease}:{pool}:token"):  # the only one that this reads
                await self._leases[pool].run(
                    _SWAP, [key], [_TTL, *(item for pair in fields.items() for item in pair)]
                )
        except Fenced:
            return False
        former = _head_of(*before)
        await self._leave(pool, former.gen, former.pieces)
        return True

    async def _leave(self, pool: str, gen: str, count: int) -> None:
        """A snapshot is not the newest any more."""
        for start in range(0, count, 256):
            async with self._redis.pipeline(transaction=False) as pipe:
                for number in range(start, min(start + 256, count)):
                    pipe.expire(self._piece(pool, gen, number), _LEFTOVER_TTL)
                await pipe.execute()

    def key(self, pool: str) -> str:
        """Where a pool's newest snapshot is told of."""
        return f"{self._prefix}:{pool}"

    def _piece(self, pool: str, gen: str, number: int) -> str:
        return f"{self._prefix}:{pool}:{gen}:{number}"


def _expanded(data: bytes | None) -> bytes:
    """A piece as it was before compression; empty when it is none, or grows beyond its bound."""
    if data is None or len(data) > MOST_PIECE + 2**12:
        return b""
    try:
        if not 0 < zstandard.frame_content_size(data) <= MOST_PIECE:
            return b""
        return zstandard.ZstdDecompressor().decompress(data)  # as large as the frame says, or an error
    except zstandard.ZstdError:
        return b""


def _head_of(schema: bytes | None, gen: bytes | None, count: bytes | None, position: bytes | None) -> Head:
    """The hash of a snapshot, by anybody; what is not of its form names no pieces."""
    try:
        at = position_of(position or b"0-0")
    except ValueError:
        at, schema = (0, 0), None
    if schema != str(SCHEMA).encode() or not gen or not gen.isalnum() or len(gen) > 32:
        return Head("", 0, at)
    if not count or not count.isdigit() or len(count) > 5:
        return Head("", 0, at)
    return Head(gen.decode(), min(int(count), _MOST_PIECES), at)
