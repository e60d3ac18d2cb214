"""What a pool's replicas are taken to be, until their engines say otherwise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.bias import Cold, Factor
from extproc.core.breaker import BreakerSettings
from extproc.core.headroom import Weights
from extproc.core.lifecycle import WarmUp


@dataclass(slots=True, frozen=True, kw_only=True)
class Traits:
    """What holds for every replica of a pool until an engine says otherwise. Tokens, seconds, tokens/s.

    `prefill_speed` is that of a prompt's first tokens; at position `prefill_doubling` one takes twice as long.
    """

    prefill_speed: float = 8000.0
    prefill_doubling: float = math.inf
    decode_speed: float = 2000.0
    max_running: int = 256
    kv_tokens: int = 500_000
    output_tokens: int = 256
    #: Whether engines' counters of finished prompts correct what is believed of the prompt work left.
    counters: bool = True
    stale_after: float = 15.0
    kv_ceiling: float = 0.97
    floor: float = 0.15
    slow_floor: float = 0.25
    weights: Weights = field(default_factory=Weights)
    warm_up: WarmUp = field(default_factory=WarmUp)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    cold: Cold = field(default_factory=Cold)
    #: Address -> what a second of that replica costs, for those that differ from the others' 1.
    costs: Mapping[str, float] = field(default_factory=dict)
    #: How a metric enters that; None where no metric does.
    factor: Factor | None = None
