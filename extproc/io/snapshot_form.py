"""What a snapshot's JSON must look like before a core is made of it: every field with its type and bounds.

Strict, since anybody may have edited the file; keys that are not known here are ignored.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from extproc.config import PolicySettings, ShadowSettings

#: Bounds of what is only shown, counted or compared.
_MOST = 1e15
Number = Annotated[float, Field(allow_inf_nan=False, ge=-_MOST, le=_MOST)]
Amount = Annotated[float, Field(allow_inf_nan=False, ge=0, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=int(_MOST))]
#: What is divided by: so far from 0 that no quotient is infinite.
Divisor = Annotated[float, Field(allow_inf_nan=False, ge=1e-6, le=_MOST)]
Whole = Annotated[int, Field(ge=1, le=int(_MOST))]
Share = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1)]
Name = Annotated[str, Field(max_length=256)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SampleForm(_Form):
    """The last sample; `age` in seconds."""

    age: Number
    running: Amount | None
    waiting: Amount | None
    kv_used: Amount | None
    kv_capacity: Count | None
    max_running: Count | None


class BooksForm(_Form):
    """What was sent and is not over."""

    requests: Count
    tokens: Count
    backlog_seconds: Amount


class ReplicaForm(_Form):
    """One replica's numbers as decisions read them."""

    replica: Annotated[Name, Field(min_length=1)]
    incarnation: Count
    fresh_for: Number | None
    barred: Name | None
    share: Share
    headroom: Share | None
    lean: Number = 0.0
    cost: Divisor = 1.0
    bias: Divisor = 1.0
    prefill_speed: Divisor
    decode_speed: Divisor
    max_running: Whole
    kv_tokens: Whole
    occupancy: Amount
    crowded: bool
    kv_load: Amount
    context: Amount
    books: BooksForm
    sample: SampleForm | None


class WeightsForm(_Form):
    """Of the headroom score."""

    kv: Amount
    running: Amount
    waiting: Amount
    window: Annotated[int, Field(ge=1, le=10_000)]
    horizon: Amount
    shift: Share = 0.5


class TraitsForm(_Form):
    """What holds for every replica of a pool; None is infinity."""

    prefill_speed: Divisor
    prefill_doubling: Divisor | None
    decode_speed: Divisor
    max_running: Whole
    kv_tokens: Whole
    output_tokens: Whole
    stale_after: Divisor | None
    kv_ceiling: Amount
    floor: Amount
    slow_floor: Amount
    weights: WeightsForm


class PoolForm(_Form):
    """One pool."""

    name: Name
    models: Annotated[list[Name], Field(max_length=10_000)]
    policy: PolicySettings
    policy_version: Count
    shadow: ShadowSettings | None
    rho: Amount
    traits: TraitsForm
    replicas: Annotated[list[ReplicaForm], Field(max_length=10_000)]


class LimitsForm(_Form):
    """What one request may cost to read."""

    max_depth: Whole
    max_parts: Whole
    max_members: Whole


class RulesForm(_Form):
    """What the operator decided about requests."""

    unreadable_passes: bool
    unknown_model_passes: bool
    fallbacks: Annotated[int, Field(ge=0, le=1000)]
    body: Whole
    expanded_body: Whole
    limits: LimitsForm


class SnapshotForm(_Form):
    """All of it. `at` in seconds since the epoch."""

    gateway: Name
    at: Number
    rules: RulesForm
    pools: Annotated[list[PoolForm], Field(min_length=1, max_length=1000)]
