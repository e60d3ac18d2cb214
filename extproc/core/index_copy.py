"""A pool's prefix index as pieces that go over the wire, newest first, and back.

A piece holds runs: hashes of one engine that were last used in one epoch, with their weights. Hashes are eight bytes,
weights two, little-endian; a million pairs are 10 MB before compression.
"""

from array import array
from collections.abc import Iterator
from struct import pack
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from extproc.core.holdings import started_of
from extproc.core.journal import Amount, Engine, same_engine
from extproc.core.pool import Pool
from extproc.core.reach import Position
from extproc.core.shared import Shared

#: Schema of pieces; others are not read.
SCHEMA: Final = 1
#: Most bytes of a piece, uncompressed, and pairs in a run: ten bytes a pair.
MOST_PIECE: Final = 2**18
_RUN: Final = 4096
#: Pairs in a run as it is written and taken in at once: about a millisecond of work.
_STEP: Final = 1024
_HASH_END: Final = 2**60
_SWAPPED: Final = pack("=H", 1) != pack("<H", 1)


class Run(Struct, array_like=True, gc=False):
    """Hashes of one engine, used `age` seconds before the dump or later, `back` epochs from its newest."""

    engine: Engine
    back: Annotated[int, Meta(ge=0, le=13)]
    age: Amount
    hashes: Annotated[bytes, Meta(max_length=8 * _RUN)]
    weights: Annotated[bytes, Meta(max_length=2 * _RUN)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Annotated[list[Run], Meta(max_length=4096)]).decode


def pieces(pool: Pool, now: float) -> Iterator[bytes]:
    """The index in pieces of at most `MOST_PIECE` bytes; replicas that join or leave meanwhile do no harm."""
    runs: list[Run] = []
    size = 0
    for run in _runs(pool, now):
        added = len(run.hashes) + len(run.weights) + 320
        if size + added > MOST_PIECE:
            yield _encode(runs)
            runs, size = [], 0
        runs.append(run)
        size += added
    if runs:
        yield _encode(runs)


def _runs(pool: Pool, now: float) -> Iterator[Run]:
    for replica in pool.replicas:
        if pool.get(replica.address) is not replica:
            continue
        engine = Engine(pool.name, replica.address, started_of(replica))
        for back, age, hashes, weights in pool.index.dump(replica.slot, now):
            for start in range(0, len(hashes), _STEP):
                part = slice(start, start + _STEP)
                yield Run(engine, back, age, _bytes(hashes[part]), _bytes(weights[part]))


def runs_of(piece: bytes) -> list[Run]:
    """The runs of a piece, in steps of a millisecond's work; none when it is not one."""
    try:
        found = _decode(piece) if len(piece) <= MOST_PIECE else []
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    return [step for run in found for step in _steps(run)]


def _steps(run: Run) -> list[Run]:
    """A run in parts; one that is not whole stays as it is, for `restore` to refuse."""
    pairs = len(run.weights) // 2
    if pairs <= _STEP or len(run.hashes) != 8 * pairs:
        return [run]
    return [
        Run(
            run.engine,
            run.back,
            run.age,
            run.hashes[8 * at : 8 * (at + _STEP)],
            run.weights[2 * at : 2 * (at + _STEP)],
        )
        for at in range(0, pairs, _STEP)
    ]


def restore(shared: Shared, run: Run, position: Position, now: float) -> int:
    """Take a run in, as of a position in the journal; returns the pairs that were new."""
    pool = shared.pools.get(run.engine.pool)
    replica = pool.get(run.engine.address) if pool is not None else None
    if pool is None or replica is None or not same_engine(started_of(replica), run.engine.started):
        shared.stranger(run.engine)
        return 0
    if len(run.hashes) != 4 * len(run.weights) or len(run.hashes) % 8 or not run.hashes:
        return 0
    hashes, weights = _numbers("Q", run.hashes), _numbers("H", run.weights)
    if max(hashes) >= _HASH_END or len(set(hashes)) < len(hashes):
        return 0
    gone = shared.taken_back(run.engine, position)
    if gone:
        kept = [(key, weight) for key, weight in zip(hashes, weights, strict=True) if key not in gone]
        hashes, weights = array("Q", [k for k, _ in kept]), array("H", [w for _, w in kept])
    return pool.index.restore(replica.slot, run.back, run.age, hashes, weights, now)


def _bytes(numbers: "array[int]") -> bytes:
    if _SWAPPED:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(kind: str, data: bytes) -> "array[int]":
    numbers: array[int] = array(kind)
    numbers.frombytes(data)
    if _SWAPPED:
        numbers.byteswap()
    return numbers
