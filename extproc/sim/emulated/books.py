"""What an engine counts: the numbers behind /metrics and /_truth. No clock, no I/O."""

from bisect import bisect_left
from dataclasses import dataclass, field

#: Upper bounds of vLLM 0.32's histograms, read off its /metrics.
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0,
    5000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0,
)  # fmt: skip
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)

#: Adapter mixes that are remembered; vLLM remembers all, but nothing here is unbounded.
_MAX_MIXES = 1000


class Histogram:
    """A Prometheus histogram: `counts[i]` observations at most `bounds[i]`, not cumulative; the rest last."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


@dataclass(slots=True, frozen=True)
class Gauges:
    """The state at one moment: sequences, and the held share of the KV cache (0..1)."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


@dataclass(slots=True)
class Books:
    """All counters of one engine life; a restart makes new ones. Tokens, sequences and seconds."""

    gauges: Gauges = field(default_factory=Gauges)  # as of the last finished step

    queried_tokens: int = 0  # prompt tokens looked up in the cache, at admission
    hit_tokens: int = 0
    prompt_tokens: int = 0  # of prompts that are done, the cached part included
    cached_tokens: int = 0
    computed_tokens: int = 0  # prompt tokens computed, at the end of each step
    generated_tokens: int = 0
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "cancelled"), 0))
    queue_rejections: int = 0
    requests: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (
                "received",
                "completed",
                "cancelled",
                "refused",
                "failed",
                "hung",
                "reset",
                "prefilled",
                "prefill_failed",
            ),
            0,
        )
    )
    chunks: int = 0  # SSE chunks sent

    first_token: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN))
    token_gap: Histogram = field(default_factory=lambda: Histogram(_TOKEN_GAP))
    time_per_token: Histogram = field(default_factory=lambda: Histogram(_TOKEN_GAP))
    latency: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    queue: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    inference: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prefill: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    decode: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prompt_sizes: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    output_sizes: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    step_sizes: Histogram = field(default_factory=lambda: Histogram(_STEP_TOKENS))

    #: (running, waiting) adapters as comma lists -> when this mix was last seen, seconds of the loop clock.
    mixes: dict[tuple[str, str], float] = field(default_factory=dict)

    def saw_mix(self, running: set[str], waiting: set[str], at: float) -> None:
        """Note which adapters run and wait at the end of a step."""
        mix = ",".join(sorted(running)), ",".join(sorted(waiting))
        self.mixes.pop(mix, None)
        self.mixes[mix] = at
        if len(self.mixes) > _MAX_MIXES:
            del self.mixes[next(iter(self.mixes))]
