"""The prefix index of each pool as a snapshot in Redis, so that a new gateway is warm within seconds.

Keys (PREFIX from the settings, GEN a random word for each snapshot):

    PREFIX:snapshot:POOL          hash    schema, gen, pieces, pairs, bytes, position (of the journal, MS-N), by
    PREFIX:snapshot:POOL:GEN:N    string  piece N, compressed with zstd (core/index_copy.py)

The holder of the lease `snapshot` writes: first the pieces under a word of their own, then the hash, fenced, so that
a holder that was paused can't put an older snapshot over a newer. The pieces of the former live on for a while, for
those who are reading them. Whoever loads applies the pieces and, by the journal, what came after the position; the
order does not matter. Everything is done in slices of a few milliseconds.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection
from typing import Any

import structlog
import zstandard
from redis.exceptions import RedisError

from extproc.config import RedisSettings
from extproc.core.index_copy import MOST_PIECE, SCHEMA, pieces, restore, runs_of
from extproc.core.pool import Pool
from extproc.core.shared import Position, Shared
from extproc.io.journal import position_of
from extproc.io.lease import Fenced, Lease
from extproc.io.redis_client import make_client

_log = structlog.get_logger("kvsteer.snapshot")

#: Seconds between snapshots: less than the journal keeps at its fullest, so that nothing falls between.
WRITE_EVERY = 15.0
#: Pieces of one pool: a gigabyte uncompressed, far above `index.entries`' default.
_MOST_PIECES = 4096
#: Seconds a snapshot lives (the default of `index.ttl`), and what the next one leaves of it.
_TTL = 1800
_LEFTOVER_TTL = 20
#: zstd's quickest useful level: hashes are random and don't compress, all else does at any level.
_LEVEL = 1
#: Pieces asked for at once.
_READ_AHEAD = 4

_SWAP = """
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""


class Snapshots:
    """Writes and loads.

    Args:
        settings: where Redis is.
        shared: the pools, and what was taken back.
        lease: who writes.
        gateway_id: who this is.
        position: up to where the journal is applied.
        clock: seconds, monotonic.

    Attributes:
        lacking: pools that had no snapshot yet when this gateway looked, so that what others know did not come.
        loaded: pairs that came from snapshots.
        written: pairs in the last snapshot that this gateway wrote.
        stored: bytes of it in Redis.
    """

    def __init__(
        self,
        settings: RedisSettings,
        shared: Shared,
        lease: Lease,
        gateway_id: str,
        position: Callable[[], Position],
        clock: Callable[[], float],
    ) -> None:
        self._prefix = f"{settings.key_prefix}:snapshot"
        self._redis = make_client(settings, "snapshot")
        self._shared, self._lease, self._id = shared, lease, gateway_id
        self._position, self._clock = position, clock
        self.lacking = set(shared.pools)
        self.loaded = self.written = self.stored = 0

    async def write(self) -> None:
        """Write each pool's snapshot, if the lease is held. Never raises for Redis' sake."""
        try:
            for pool in self._shared.pools.values():
                if self._lease.held and len(pool.index):
                    await self._write(pool)
        except Fenced:
            pass  # another gateway writes from now on
        except (RedisError, OSError) as error:
            _log.warning("snapshot not written", error=type(error).__name__)

    async def missing(self) -> bool:
        """Whether this gateway should write one now, since there is none. Never raises for Redis' sake."""
        try:
            for pool in self._shared.pools.values():
                mine = self._lease.held and len(pool.index)
                if mine and await self._redis.hget(self._key(pool.name), "gen") is None:
                    return True
        except (RedisError, OSError):
            pass  # what can't be asked can't be written either
        return False

    async def load(self, names: Collection[str] | None = None) -> int:
        """Load each pool's snapshot, or those named; the pairs that were new. Never raises for Redis' sake."""
        found = 0
        try:
            for pool in self._shared.pools.values():
                if names is None or pool.name in names:
                    found += await self._load(pool)
        except (RedisError, OSError) as error:
            _log.warning("snapshot not loaded; the index warms with traffic", error=type(error).__name__)
        self.loaded += found
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _write(self, pool: Pool) -> None:
        gen, position = secrets.token_hex(6), self._position()
        pairs, count, stored = len(pool.index), 0, 0
        compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        for piece in pieces(pool, self._clock()):
            data = compress(piece)
            await self._redis.set(self._piece(pool.name, gen, count), data, ex=_TTL)
            count, stored = count + 1, stored + len(data)
            if count >= _MOST_PIECES or not self._lease.held:
                break
        fields = {
            "schema": SCHEMA, "gen": gen, "pieces": count, "pairs": pairs, "bytes": stored,
            "position": f"{position[0]}-{position[1]}", "by": self._id,
        }  # fmt: skip
        flat = [item for pair in fields.items() for item in pair]
        before = await self._redis.hmget(self._key(pool.name), "gen", "pieces")
        try:
            await self._lease.run(_SWAP, [self._key(pool.name)], [_TTL, *flat])
        except Fenced:
            await self._leave(pool.name, gen, count)
            raise
        await self._leave(pool.name, *_read_gen(before))
        self.lacking.discard(pool.name)
        self.written, self.stored = pairs, stored

    async def _leave(self, pool: str, gen: str, count: int) -> None:
        """A snapshot is not the newest any more."""
        for start in range(0, count, 256):
            async with self._redis.pipeline(transaction=False) as pipe:
                for number in range(start, min(start + 256, count)):
                    pipe.expire(self._piece(pool, gen, number), _LEFTOVER_TTL)
                await pipe.execute()

    async def _load(self, pool: Pool) -> int:
        said: dict[bytes, bytes] = await self._redis.hgetall(self._key(pool.name))
        gen, count = _read_gen([said.get(b"gen"), said.get(b"pieces")])
        if said.get(b"schema") != str(SCHEMA).encode() or not gen:
            return 0
        try:
            position = position_of(said.get(b"position", b"0-0"))
        except ValueError:
            return 0
        self.lacking.discard(pool.name)
        found = 0
        for start in range(0, count, _READ_AHEAD):
            keys = [self._piece(pool.name, gen, n) for n in range(start, min(start + _READ_AHEAD, count))]
            for data in await self._redis.mget(keys):
                found += await self._apply(data, position)
        return found

    async def _apply(self, data: bytes | None, position: Position) -> int:
        found = 0
        for run in runs_of(_expanded(data)):
            found += restore(self._shared, run, position, self._clock())
            await asyncio.sleep(0)
        return found

    def _key(self, pool: str) -> str:
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


def _read_gen(said: list[Any]) -> tuple[str, int]:
    """Word and number of pieces out of the hash; what is not of their form is none."""
    gen, count = said
    if not isinstance(gen, bytes) or not isinstance(count, bytes) or not count.isdigit() or len(count) > 5:
        return "", 0
    if not gen.isalnum() or len(gen) > 32:
        return "", 0
    return gen.decode(), min(int(count), _MOST_PIECES)
