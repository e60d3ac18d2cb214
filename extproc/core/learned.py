"""What was learned of engines and answers, as a snapshot carries it: where a new gateway begins.

Of an engine it counts until that engine is heard here. Lengths of answers are added once to what was seen here, as if
the answers had come through this gateway. Of tokens per byte the row with more prompts behind it counts.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from extproc.core.capacity import TOP
from extproc.core.holdings import started_of
from extproc.core.journal import Amount, Count, Engine, Name, Ratio, same_engine
from extproc.core.output import Told
from extproc.core.pool import Pool
from extproc.core.shared import row_of

#: Most engines of one pool, models, and kinds and sizes of one model that are told: some 300 KB at the very most.
_ENGINES = 4096
_MODELS = 64
_KINDS = 16
_SIZES = 16
_RATIOS = 256

_Sums = tuple[Amount, Amount]


class Known(Struct, array_like=True, gc=False):
    """One engine: tokens of its KV cache, sequences at once, prompt work and output tokens a second; 0 is unknown.

    `step` and `scale` are what was concluded of its cache (core/announced.Ruling).
    """

    engine: Engine
    kv_tokens: Count
    max_running: Count = 0
    prefill: Amount = 0.0
    decode: Amount = 0.0
    step: Annotated[int, Meta(ge=0, le=TOP)] = TOP
    scale: Annotated[float, Meta(ge=0, le=1)] = 1.0


class Kind(Struct, array_like=True, gc=False):
    """Answers to one kind of request for a model, and by size of the prompt (core/output.py)."""

    kind: Name
    sums: _Sums
    sizes: Annotated[list[_Sums], Meta(max_length=_SIZES)]


class Lengths(Struct, array_like=True, gc=False):
    """Answers of one model."""

    model: Name
    sums: _Sums
    kinds: Annotated[list[Kind], Meta(max_length=_KINDS)]


class Learned(Struct, array_like=True, gc=False):
    """All of a pool. Items that a later release adds at the end are ignored."""

    engines: Annotated[list[Known], Meta(max_length=_ENGINES)]
    lengths: Annotated[list[Lengths], Meta(max_length=_MODELS)] = []
    ratios: Annotated[list[Ratio], Meta(max_length=_RATIOS)] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Learned).decode


def learned(pool: Pool) -> bytes:
    """What is known of a pool's engines and answers."""
    truth = pool.feedback.truth if pool.feedback is not None else None
    ruled = {slot: (said.step, said.scale) for slot, said in truth.rulings()} if truth is not None else {}
    engines = [
        Known(
            Engine(pool.name, replica.address, started_of(replica)),
            replica.kv_tokens,
            replica.max_running,
            *replica.estimates,
            *ruled.get(replica.slot, (TOP, 1.0)),
        )
        for replica in pool.replicas[:_ENGINES]
    ]
    lengths = [
        Lengths(model, sums, [Kind(*kind) for kind in kinds[:_KINDS]])
        for model, sums, kinds in pool.output.told(_MODELS)
    ]
    ratios = [Ratio(pool.name, *row) for row in pool.ratios.export()[-_RATIOS:]]
    return _encode(Learned(engines, lengths, ratios))


def presume(pool: Pool, data: bytes, *, lengths: bool = True) -> int:
    """Take over what another gateway learned; returns of how many engines. What can't be read does nothing.

    Args:
        pool: of this gateway.
        data: of `learned`, by anybody.
        lengths: whether lengths of answers are taken too: once only, else they'd count twice.
    """
    try:
        said = _decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return 0
    if lengths:
        pool.output.hear([_told(row) for row in said.lengths])
    if (
        pool.feedback is not None
    ):  # of two gateways' rows the one with more prompts wins, however often it comes
        pool.ratios.restore(row_of(row) for row in said.ratios if row.pool == pool.name)
    return sum(_presumed(pool, row) for row in said.engines)


def _told(row: Lengths) -> Told:
    return row.model, row.sums, [(kind.kind, kind.sums, kind.sizes) for kind in row.kinds]


def _presumed(pool: Pool, row: Known) -> bool:
    replica = pool.get(row.engine.address)
    if replica is None or row.engine.pool != pool.name:
        return False
    if not same_engine(started_of(replica), row.engine.started):
        return False
    if pool.feedback is not None:
        pool.feedback.truth.presume(replica.slot, row.step, row.scale)
    if replica.sample is not None:
        return False
    pool.presume(replica, row.kv_tokens, row.max_running, row.prefill, row.decode)
    return True
