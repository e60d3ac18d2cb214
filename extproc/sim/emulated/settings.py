"""What an emulated engine is: one dataclass; every field is also an option of `kvsteer engine`."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from extproc.errors import ConfigError


def _about(text: str, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"help": text, "low": low, "high": high}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One emulated replica. The speeds are those of a 70 B model on eight GPUs unless said otherwise.

    Raises:
        ConfigError: a value is out of its range; the message names the field and the range.
    """

    name: str = field(default="r1", metadata=_about("identity, sent back as x-engine-id"))
    host: str = field(default="127.0.0.1", metadata=_about("address to listen on"))
    port: int = field(default=0, metadata=_about("port to listen on; 0 takes a free one", 0, 65535))
    model: str = field(default="demo-model", metadata=_about("model name that is served"))
    adapters: tuple[str, ...] = field(default=(), metadata=_about("LoRA adapters that are loaded"))
    max_loras: int = field(
        default=4, metadata=_about("adapters computed with at once; another one has to wait", 1, 10_000)
    )
    adapter_load_ms: float = field(
        default=0.0, metadata=_about("time a step takes longer for each adapter it has to load, ms", 0)
    )
    adapter_register_ms: float = field(
        default=0.0, metadata=_about("time that loading an adapter by HTTP takes, ms", 0)
    )
    runtime_adapters: bool = field(
        default=False, metadata=_about("adapters can be loaded and unloaded by POST /v1/load_lora_adapter")
    )

    ranks: int = field(
        default=1,
        metadata=_about("data-parallel ranks behind the address, each with a queue and a cache", 1, 64),
    )

    prefill_speed: float = field(default=20_000.0, metadata=_about("prompt tokens computed a second", 0.001))
    attention_double_at: int = field(
        default=0, metadata=_about("position at which a prompt token costs twice as much; 0 = flat", 0)
    )
    step_ms: float = field(default=10.0, metadata=_about("time of a step that makes tokens, ms", 0.001))
    sequence_ms: float = field(
        default=0.05, metadata=_about("more time of a step for each sequence that gets a token, ms", 0)
    )
    step_budget: int = field(default=8192, metadata=_about("tokens a step may compute (chunked prefill)", 1))
    max_running: int = field(default=128, metadata=_about("sequences running at once", 1))
    max_queued: int = field(
        default=0, metadata=_about("sequences waiting before requests get a 503; 0 = no limit", 0)
    )
    speed: float = field(default=1.0, metadata=_about("everything runs this many times as fast", 0.001))

    kv_tokens: int = field(default=262_144, metadata=_about("KV cache in tokens", 2))
    reported_kv_tokens: int = field(
        default=0, metadata=_about("KV cache in tokens that metrics claim; 0 = the truth", 0)
    )
    block_size: int = field(default=16, metadata=_about("tokens in a KV block", 1, 65_536))
    cache_generated: bool = field(
        default=True, metadata=_about("blocks filled by generated text can be hit by a later prompt")
    )

    transfer_speed: float = field(
        default=200_000.0,
        metadata=_about("prompt tokens a second that come over from the replica that computed them", 1),
    )

    bytes_per_token: float = field(
        default=4.0, metadata=_about("UTF-8 bytes of the rendered prompt that make a token", 1, 1000)
    )
    image_tokens: int = field(
        default=576, metadata=_about("tokens of an image, a sound or a file", 1, 10_000)
    )
    max_model_len: int = field(default=131_072, metadata=_about("tokens of prompt and output together", 2))
    default_output_tokens: int = field(
        default=64, metadata=_about("output tokens when the request sets no limit", 1)
    )
    natural_output_tokens: int = field(
        default=0,
        metadata=_about("answers end by themselves after 0.5 to 1.5 times this; 0 = at their limit", 0),
    )
    tokens_per_chunk: int = field(default=1, metadata=_about("output tokens in an SSE chunk", 1, 100_000))
    embedding_size: int = field(default=32, metadata=_about("numbers in an embedding", 1, 100_000))

    max_body: int = field(default=64 * 2**20, metadata=_about("largest request body, bytes", 1))
    prompt_tokens_details: bool = field(
        default=True, metadata=_about("usage says how many prompt tokens were cached")
    )
    live_gauges: bool = field(
        default=False, metadata=_about("gauges are those of the moment, not of the last finished step")
    )
    echo_headers: bool = field(
        default=False, metadata=_about("answers carry x-received-sha256 and x-received-headers")
    )
    stop_timeout: float = field(
        default=2.0, metadata=_about("seconds that running responses get when the engine stops", 0, 3600)
    )

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            _check(entry.name, getattr(self, entry.name), entry.metadata)
        if self.kv_tokens < 2 * self.block_size:
            raise ConfigError(
                f"kv_tokens: {self.kv_tokens} is less than two blocks of {self.block_size}; give more"
            )

    @property
    def total_blocks(self) -> int:
        """KV blocks; one of them is never used, as in vLLM (its null block)."""
        return self.kv_tokens // self.block_size

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.total_blocks - 1

    @property
    def longest(self) -> int:
        """Tokens of prompt and output that one request may have: the model's limit or the whole KV cache."""
        return min(self.max_model_len, self.usable_blocks * self.block_size)


def _check(name: str, value: object, rules: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    low, high = rules["low"], rules["high"]
    if low is not None and not value >= low:
        raise ConfigError(f"{name}: {value} is too small; give at least {low}")
    if high is not None and not value <= high:
        raise ConfigError(f"{name}: {value} is too large; give at most {high}")
