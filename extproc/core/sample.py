"""One neutral reading of an engine's metrics. Every engine file turns its own names into this."""

from dataclasses import dataclass
from typing import Final

#: Most data-parallel ranks of one engine that are told apart; the largest known deployments have some hundreds.
MOST_RANKS: Final = 1024


@dataclass(slots=True, kw_only=True)
class Sample:
    """What one scrape said of one replica. None means unknown, which is never the same as zero.

    Nobody changes one. It is not frozen, as that would make each of its fields a call at every scrape.
    """

    #: When it was read, in seconds of the gateway's monotonic clock.
    at: float
    #: Sequences being computed now.
    running: float | None = None
    #: Requests the engine holds but does not compute yet.
    waiting: float | None = None
    #: Requests that each data-parallel rank holds, computed or not, in the order of the ranks; None where there are
    #: not several, numbered from 0, or one does not tell.
    ranks: tuple[float, ...] | None = None
    #: Share of KV blocks held by live requests, 0..1.
    kv_used: float | None = None
    #: KV cache size in tokens, summed over data-parallel ranks.
    kv_capacity: int | None = None
    #: Tokens per KV block.
    block_size: int | None = None
    #: Most sequences the engine computes at once.
    max_running: int | None = None
    #: Cumulative prompt tokens found in the prefix cache, and looked up in it.
    hit_tokens: float | None = None
    query_tokens: float | None = None
    #: Cumulative prompt tokens (cached ones included) and generated tokens.
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    #: Cumulative sum (seconds) and count of time to first token, and of time per output token.
    ttft_sum: float | None = None
    ttft_count: float | None = None
    tpot_sum: float | None = None
    tpot_count: float | None = None
    #: Cumulative seconds requests spent in prefill, and how many did.
    prefill_sum: float | None = None
    prefill_count: float | None = None
    #: LoRA adapters in use or asked for now, sorted; None when the engine does not tell.
    adapters: tuple[str, ...] | None = None
    #: Most LoRA adapters the engine computes with at once.
    max_adapters: int | None = None
    #: What the pool's own metric says of a second's cost (`pools[].factor`).
    factor: float | None = None
    #: Whether the engine was put to sleep: it answers health checks, reports no load, and computes nothing.
    asleep: bool | None = None
    #: Model names the engine reports for itself.
    models: tuple[str, ...] = ()
    #: When the engine process started, in seconds since the epoch.
    started: float | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of load, cache or work done: as good as no sample."""
        return (
            self.running is self.waiting is self.kv_used is self.kv_capacity is None
            and self.query_tokens is self.prompt_tokens is self.generated_tokens is self.ttft_count is None
        )

    def again(self, at: float) -> "Sample":
        """The same, told at another time."""
        other = object.__new__(Sample)  # naming 27 arguments takes four times as long as setting 27 slots
        other.at = at
        other.running = self.running
        other.waiting = self.waiting
        other.ranks = self.ranks
        other.kv_used = self.kv_used
        other.kv_capacity = self.kv_capacity
        other.block_size = self.block_size
        other.max_running = self.max_running
        other.hit_tokens = self.hit_tokens
        other.query_tokens = self.query_tokens
        other.prompt_tokens = self.prompt_tokens
        other.generated_tokens = self.generated_tokens
        other.ttft_sum = self.ttft_sum
        other.ttft_count = self.ttft_count
        other.tpot_sum = self.tpot_sum
        other.tpot_count = self.tpot_count
        other.prefill_sum = self.prefill_sum
        other.prefill_count = self.prefill_count
        other.adapters = self.adapters
        other.max_adapters = self.max_adapters
        other.factor = self.factor
        other.asleep = self.asleep
        other.models = self.models
        other.started = self.started
        return other
