"""What gateways tell each other, and its form on the wire.

A batch is one MessagePack array of two: the schema's number and, as bytes, the batch itself, so that a reader can
leave what it does not know unread. The batch is an array by position: readers ignore items at the end that they don't
know and take defaults for those that are missing, so an addition needs no new number. What is not an addition gets a
new number, which the release before must already read: gateways of two neighbouring releases understand each other.

There is no text of a request in it: hashes, numbers, addresses, names of pools and models.

Times are ages in seconds, counted back from the moment the batch was made: no clock is compared with another's.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import lt
from struct import Struct as Form
from struct import pack, unpack
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from extproc.core.capacity import TOP
from extproc.core.prompt import Chain
from extproc.core.sample import MOST_RANKS, Sample

#: The schema that is written, and those that are read.
SCHEMA: Final = 1
READ: Final = frozenset({1})
#: Largest batch that is read, in bytes. A writer makes none above half of it.
MOST_BYTES: Final = 2**19
#: Bytes at which a writer closes a batch.
FULL_BYTES: Final = 2**16
#: Most rows of one kind in a batch: a bound on the work that a batch can cause.
MOST_ROWS: Final = 4096
#: Most hashes told of one request: of longer ones the beginning, which is a prefix as well.
MOST_HASHES: Final = 4096
#: Hashes are below this (core/prefix.py), ends too far below 2**32 to matter.
_HASH_END: Final = 2**60
#: Bytes of a hash and its end on the wire.
_PAIR: Final = 12

#: Most tokens, and most work, of one request: a thousand times the longest context there is. Sums of all that others
#: may tell (200,000 requests of 256 gateways) stay below 2**63, which is where JSON ends.
MOST_TOKENS: Final = 10**9
#: Largest number of a sample: counters of 30 years at a million tokens a second; and sizes, as core/fleet.py has it.
_MOST_COUNTED: Final = 1e15
_MOST_SIZE: Final = 10**12
#: Seconds that an engine's start may lie ahead of the reader's clock: its host's may be wrong.
CLOCKS_DIFFER: Final = 86_400.0

Count = Annotated[int, Meta(ge=0, le=2**62)]
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Work = Annotated[float, Meta(ge=0, le=MOST_TOKENS)]
#: Seconds and the like: finite, since NaN and infinity fail every bound.
Amount = Annotated[float, Meta(ge=0, le=1e12)]
Moment = Annotated[float, Meta(ge=0, le=1e12)]
Name = Annotated[str, Meta(max_length=256)]
_Rows = Meta(max_length=MOST_ROWS)
Row = Annotated[int, Meta(ge=0, le=MOST_ROWS)]


class Engine(Struct, array_like=True, frozen=True, gc=False):
    """One incarnation of a replica: `started` is when its engine did by its own word (epoch s), None if unknown."""

    pool: Name
    address: Name
    started: Moment | None = None


class Placed(Struct, array_like=True, gc=False):
    """A request was sent to an engine (a row of `Batch.engines`). `work` in tokens at a prompt's start.

    `told`: its first token will be, so that the clock alone does not call its prompt done.
    """

    key: Count
    engine: Row
    work: Work
    tokens: Tokens
    age: Amount
    chains: Annotated[list[bytes], _Rows] = []
    told: bool = False


class Running(Struct, array_like=True, gc=False):
    """A row of the table: one request in flight, and the prompt work that is left of it."""

    key: Count
    engine: Row
    work: Work
    tokens: Tokens
    age: Amount


class Table(Struct, array_like=True, gc=False):
    """Part `part` of `parts` of everything in flight, as it was before batch `before` (which is this or earlier)."""

    before: Count
    part: Row
    parts: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    rows: Annotated[list[Running], _Rows]


class Forgotten(Struct, array_like=True, gc=False):
    """It turned out that an engine does not hold these hashes."""

    engine: Row
    hashes: bytes


class Sampled(Struct, array_like=True, gc=False):
    """What one scrape said; `values` in the order of FIELDS. Or why it failed, in the collector's word."""

    engine: Row
    age: Amount
    values: Annotated[list[float | int | bool | None], Meta(max_length=64)] = []
    adapters: Annotated[list[Name], Meta(max_length=1024)] | None = None
    models: Annotated[list[Name], Meta(max_length=1024)] = []
    failure: Name = ""
    ranks: Annotated[list[Amount], Meta(max_length=MOST_RANKS)] | None = None


class Troubled(Struct, array_like=True, gc=False):
    """This gateway's breaker for an engine opened, and lets one try in so many seconds; 0: it closed."""

    engine: Row
    seconds: Amount


class Leaving(Struct, array_like=True, gc=False):
    """A replica's own word, said `age` seconds ago: whether it leaves (core/leaving.py)."""

    engine: Row
    age: Amount
    leaves: bool


class Relayed(Struct, array_like=True, gc=False):
    """The first token of another gateway's exchange was seen here."""

    gateway: Name
    boot: Count
    key: Count


class Ratio(Struct, array_like=True, gc=False):
    """Tokens per byte of a model and script as one gateway learned them: a row of core/ratios.py, of a pool."""

    pool: Name
    model: Name
    script: Name
    seen: Count
    start: Amount
    error: Amount
    n: Amount
    z: Amount
    zz: Amount
    u: Amount
    zu: Amount


class Held(Struct, array_like=True, gc=False):
    """A request waits in its gateway for a replica.

    `script`: what its text is in, by which tokens are estimated; `most`: output tokens it allows; None for any.
    """

    key: Count
    pool: Name
    model: Name
    dialect: Name
    size: Count
    token_ids: bool
    age: Amount
    chains: Annotated[list[bytes], _Rows] = []
    script: Name = ""
    most: Tokens | None = None


class Outcome(Struct, array_like=True, gc=False):
    """How a request ended that was told as placed: its prompt tokens, 0 when it was never computed there; those of
    them that came out of the cache, None when nobody says."""

    key: Count
    tokens: Tokens
    cached: Tokens | None = None


class Ruled(Struct, array_like=True, gc=False):
    """What the gateway that judges a pool concluded of an engine's cache (core/truth.Ruling).

    `token` of the lease by which it judges: the greatest one's word counts. `kept` are packed chains.
    """

    engine: Row
    token: Count
    step: Annotated[int, Meta(ge=0, le=TOP)]
    scale: Annotated[float, Meta(ge=0, le=1)]
    emptied: bool = False
    kept: Annotated[list[bytes], _Rows] = []


class Batch(Struct, array_like=True, kw_only=False, gc=False):
    """Everything a gateway has to say at one moment. `boot` is another number each time it starts.

    `asks`: it missed something and wants everybody's table. `leaves`: it stops, and holds nothing any more.
    `tells`: it will say how each request ended.
    """

    gateway: Name
    boot: Count
    seq: Count
    asks: bool = False
    leaves: bool = False
    engines: Annotated[list[Engine], _Rows] = []
    table: Table | None = None
    forgotten: Annotated[list[Forgotten], _Rows] = []
    placed: Annotated[list[Placed], _Rows] = []
    firsts: Annotated[list[Count], _Rows] = []
    ended: Annotated[list[Count], _Rows] = []
    sampled: Annotated[list[Sampled], _Rows] = []
    held: Annotated[list[Held], _Rows] = []
    troubled: Annotated[list[Troubled], _Rows] = []
    relayed: Annotated[list[Relayed], _Rows] = []
    ratios: Annotated[list[Ratio], _Rows] = []
    leaving: Annotated[list[Leaving], _Rows] = []
    tells: bool = False
    outcomes: Annotated[list[Outcome], _Rows] = []
    ruled: Annotated[list[Ruled], _Rows] = []


class Refused(ValueError):
    """Bytes are no batch that can be used; `reason` is one of a closed set."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


#: Why a batch is refused, or that it was a snapshot, or a sample: labels of a metric.
REASONS: Final = ("too_large", "malformed", "schema", "snapshot", "no_room", "not_collector")

_encoder = msgspec.msgpack.Encoder()
_outer = msgspec.msgpack.Decoder(tuple[int, bytes])
_inner = msgspec.msgpack.Decoder(Batch)


def encode(batch: Batch) -> bytes:
    """A batch as it goes into the stream."""
    return _encoder.encode((SCHEMA, _encoder.encode(batch)))


def decode(data: bytes) -> Batch:
    """A batch out of bytes of anybody's making: nothing is executed, and no more work done than its size warrants.

    Raises:
        Refused: with the reason.
    """
    if len(data) > MOST_BYTES:
        raise Refused("too_large")
    try:
        schema, inner = _outer.decode(data)
        if schema not in READ:
            raise Refused("schema")
        batch = _inner.decode(inner)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Refused("malformed") from None
    if not _engines_exist(batch):
        raise Refused("malformed")
    return batch


def _engines_exist(batch: Batch) -> bool:
    """Whether every row names an engine of the batch, and a table was not made after it."""
    rows: list[int] = [row.engine for row in batch.placed]
    rows += [row.engine for row in batch.forgotten]
    rows += [row.engine for row in batch.sampled]
    rows += [row.engine for row in batch.troubled]
    rows += [row.engine for row in batch.leaving]
    rows += [row.engine for row in batch.ruled]
    rows += [row.engine for row in batch.table.rows] if batch.table else []
    table = batch.table
    return max(rows, default=-1) < len(batch.engines) and (
        table is None or (table.part < table.parts and table.before <= batch.seq)
    )


# -- hashes ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _form(count: int) -> Form:
    """The form of a chain of so many hashes; to read it from its words takes longer than to use it."""
    return Form(f"<{count}Q{count}I")


def pack_chain(chain: Chain, most: int = MOST_HASHES) -> bytes:
    """A chain, or its first `most` hashes: all hashes, then all ends."""
    hashes, ends = chain.hashes, chain.ends
    if len(hashes) > most:
        hashes, ends = hashes[:most], ends[:most]
    return _form(len(hashes)).pack(*hashes, *ends)


def pack_chains(chains: list[Chain], most: int) -> list[bytes]:
    """Chains of a request, so many hashes of them at most."""
    if len(chains) == 1:
        return [pack_chain(chains[0], most)]
    found = []
    for chain in chains:
        if most <= 0:
            break
        found.append(pack_chain(chain, most))
        most -= len(chain.hashes)
    return found


def unpack_chain(data: bytes) -> Chain | None:
    """A chain out of bytes; None when they are none."""
    count = len(data) // _PAIR
    if not count or len(data) % _PAIR:
        return None
    numbers = _form(count).unpack(data)
    hashes, ends = list(numbers[:count]), list(numbers[count:])
    if max(hashes) >= _HASH_END or not ends[0] or not all(map(lt, ends, ends[1:])):
        return None
    return Chain(hashes, ends)


def pack_hashes(hashes: Sequence[int]) -> bytes:
    """Hashes alone."""
    return pack(f"<{len(hashes)}Q", *hashes)


def unpack_hashes(data: bytes) -> list[int]:
    """Hashes out of bytes; none when the bytes are not whole."""
    return list(unpack(f"<{len(data) // 8}Q", data)) if not len(data) % 8 else []


# -- samples -----------------------------------------------------------------------------------------------

#: Fields of a sample as `Sampled.values` has them. New ones are added at the end.
FIELDS: Final = (
    "running", "waiting", "kv_used", "kv_capacity", "block_size", "max_running", "hit_tokens", "query_tokens",
    "prompt_tokens", "generated_tokens", "ttft_sum", "ttft_count", "tpot_sum", "tpot_count", "prefill_sum",
    "prefill_count", "max_adapters", "asleep", "started", "factor",
)  # fmt: skip
#: Most adapters and models of a replica that are told.
_NAMES: Final = 64
_WHOLE = frozenset({"kv_capacity", "block_size", "max_running", "max_adapters"})


def told(engine: int, sample: Sample, age: float) -> Sampled:
    """A sample as it is told to others."""
    return Sampled(
        engine,
        age,
        [getattr(sample, name) for name in FIELDS],
        None if sample.adapters is None else list(sample.adapters[:_NAMES]),
        list(sample.models[:_NAMES]),
        ranks=None if sample.ranks is None else list(sample.ranks),
    )


def heard(row: Sampled, now: float, epoch: float = float("inf")) -> Sample | None:
    """The sample that a row tells of; None when it is none, or none that an engine can have given.

    Args:
        row: of a batch.
        now: when the batch was made, on our clock.
        epoch: seconds since 1970, by our clock: no engine started a day later.
    """
    values = dict(zip(FIELDS, row.values, strict=False))
    for name, value in values.items():
        if value is not None and not _fits(name, value):
            return None
    if (values.get("started") or 0.0) > epoch + CLOCKS_DIFFER:
        return None
    adapters = None if row.adapters is None else tuple(row.adapters)
    ranks = tuple(row.ranks) if row.ranks and len(row.ranks) > 1 else None
    numbers: dict[str, float | int | bool | None] = values
    names = tuple(row.models)
    return Sample(at=now - row.age, adapters=adapters, models=names, ranks=ranks, **numbers)  # type: ignore[arg-type]


def _fits(name: str, value: float) -> bool:
    if name == "asleep":
        return type(value) is bool
    if name in _WHOLE:
        return type(value) is int and 0 <= value <= _MOST_SIZE
    return type(value) is not bool and 0 <= value <= _MOST_COUNTED


def same_engine(mine: float | None, theirs: float | None) -> bool:
    """Whether two start times (epoch s) can be those of one process: unknown fits anything (Pool.observe)."""
    return mine is None or theirs is None or abs(mine - theirs) <= 1.0
