"""What was learned of each engine, as a snapshot carries it: where a new gateway begins, until it sees for itself."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from extproc.core.journal import Count, Engine, same_engine
from extproc.core.pool import Pool
from extproc.core.shared import started_of

#: Most engines of one pool that are told.
_MOST = 4096


class Known(Struct, array_like=True, gc=False):
    """One engine. `kv_tokens`: size of its KV cache, which bounds what the index believes of it."""

    engine: Engine
    kv_tokens: Count


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Annotated[list[Known], Meta(max_length=_MOST)]).decode


def learned(pool: Pool) -> bytes:
    """What is known of a pool's engines."""
    rows = [
        Known(Engine(pool.name, replica.address, started_of(replica)), replica.kv_tokens)
        for replica in pool.replicas[:_MOST]
    ]
    return _encode(rows)


def presume(pool: Pool, data: bytes) -> int:
    """Take over what another gateway learned of engines of which nothing was heard here yet; returns how many.

    What can't be read does nothing.
    """
    try:
        rows = _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return 0
    return sum(_presumed(pool, row) for row in rows)


def _presumed(pool: Pool, row: Known) -> bool:
    replica = pool.get(row.engine.address)
    if replica is None or replica.sample is not None or row.engine.pool != pool.name:
        return False
    if not same_engine(started_of(replica), row.engine.started):
        return False
    pool.presume(replica, row.kv_tokens)
    return True
