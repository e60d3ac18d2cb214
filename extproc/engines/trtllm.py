"""TensorRT-LLM's `trtllm-serve`: `/prometheus/metrics`, or the JSON array of `/metrics`.

The array holds the statistics of the iterations since it was last read, by anybody: reading takes them away, so
a second reader sees few or none, and an empty array tells nothing at all. Prefer the Prometheus path. Version
1.1 has histograms only there. Names that begin with `trtllm:` are a simulator's, not this engine's.
"""

from extproc.core.sample import Sample
from extproc.engines import json_body
from extproc.engines.exposition import Reader, Reading
from extproc.engines.following import Last
from extproc.engines.quantities import Ranks, agreed, capacity, plus, quotient, share, whole_number

_RUNNING = "trtllm_num_requests_running"
_WAITING = "trtllm_num_requests_waiting"
_KV_USED = "trtllm_kv_cache_utilization"
_MAX_BLOCKS = "trtllm_kv_cache_max_blocks"
_USED_BLOCKS = "trtllm_kv_cache_used_blocks"
_BLOCK_SIZE = "trtllm_kv_cache_tokens_per_block"
_REUSED = "trtllm_kv_cache_reused_blocks_total"
_MISSED = "trtllm_kv_cache_missed_blocks_total"
_PROMPT = "trtllm_prompt_tokens_total"
_CACHED = "trtllm_prompt_cached_tokens_total"
_GENERATED = "trtllm_generation_tokens_total"
_TTFT = "trtllm_time_to_first_token_seconds"
_TPOT = "trtllm_time_per_output_token_seconds"
_PREFILL = "trtllm_request_prefill_time_seconds"
#: The batch size as tuned at run time, and as built.
_MAX_BATCH = ("trtllm_max_batch_size_runtime", "trtllm_max_batch_size_static")


class TrtLlm:
    """Reads both kinds of metrics that trtllm-serve has."""

    name = "trtllm"
    adapter_calls = None
    wanted = (
        *(_RUNNING, _WAITING, _KV_USED, _MAX_BLOCKS, _USED_BLOCKS, _BLOCK_SIZE, _REUSED, _MISSED),
        *(_PROMPT, _CACHED, _GENERATED, *_MAX_BATCH),
        *(f"{name}_{end}" for name in (_TTFT, _TPOT, _PREFILL) for end in ("sum", "count")),
    )

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of TensorRT-LLM's, or is its array of iterations."""
        start = text.lstrip()
        if start[:1] == b"[":
            return not start.strip(b"[] \t\r\n") or b'"numActiveRequests"' in start
        return text.startswith(b"trtllm_") or b"\ntrtllm_" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        if text.lstrip()[:1] == b"[":
            return _from_iterations(json_body.load(text), at)
        reading = self._reader.read(text, last)
        told = Ranks(reading)
        block_size = agreed(whole_number(one.value) for one in reading.series(_BLOCK_SIZE))
        max_blocks = told.total(_MAX_BLOCKS)
        hits, queries = _prefix_cache(reading, told, block_size)
        return Sample(
            at=at,
            running=told.total(_RUNNING),
            waiting=told.total(_WAITING),
            kv_used=_kv_used(told.mean(_KV_USED), told.total(_USED_BLOCKS), max_blocks),
            kv_capacity=capacity(max_blocks, block_size),
            block_size=block_size,
            max_running=whole_number(told.total(*_MAX_BATCH)),
            hit_tokens=hits,
            query_tokens=queries,
            prompt_tokens=told.total(_PROMPT),
            generated_tokens=told.total(_GENERATED),
            ttft_sum=told.total(f"{_TTFT}_sum"),
            ttft_count=told.total(f"{_TTFT}_count"),
            tpot_sum=told.total(f"{_TPOT}_sum"),
            tpot_count=told.total(f"{_TPOT}_count"),
            prefill_sum=told.total(f"{_PREFILL}_sum"),
            prefill_count=told.total(f"{_PREFILL}_count"),
            models=tuple(sorted(reading.label_values("model_name"))),
        )


def _kv_used(ratio: float | None, used: float | None, most: float | None) -> float | None:
    told = share(quotient(used, most))
    return told if told is not None else share(ratio)


def _prefix_cache(reading: Reading, told: Ranks, size: int | None) -> tuple[float | None, float | None]:
    """Tokens found and looked up: counted as such, or from blocks. The names decide which."""
    if _CACHED in reading:
        return told.total(_CACHED), told.total(_PROMPT)
    return _block_tokens(told.total(_REUSED), told.total(_MISSED), size)


def _block_tokens(
    reused: float | None, missed: float | None, size: int | None
) -> tuple[float | None, float | None]:
    looked_up = plus(reused, missed)
    if reused is None or looked_up is None or size is None:
        return None, None
    return reused * size, looked_up * size


def _from_iterations(body: object, at: float) -> Sample:
    """The sample in the newest iteration of the array."""
    newest = json_body.group(body[-1]) if isinstance(body, list) and body else {}
    cache = json_body.group(newest, "kvCacheStats")
    used, most = json_body.number(cache.get("usedNumBlocks")), json_body.number(cache.get("maxNumBlocks"))
    block_size = whole_number(json_body.number(cache.get("tokensPerBlock")))
    reused, missed = json_body.number(cache.get("reusedBlocks")), json_body.number(cache.get("missedBlocks"))
    hits, queries = _block_tokens(reused, missed, block_size)
    batch = [json_body.number(newest.get(f"maxBatchSize{kind}")) for kind in ("Runtime", "Static")]
    return Sample(
        at=at,
        running=json_body.number(newest.get("numActiveRequests")),
        waiting=json_body.number(newest.get("numQueuedRequests")),
        kv_used=share(quotient(used, most)),
        kv_capacity=capacity(most, block_size),
        block_size=block_size,
        max_running=whole_number(next((size for size in batch if size is not None), None)),
        hit_tokens=hits,
        query_tokens=queries,
    )
