"""vLLM: the V1 engine's names (0.9 to 0.32 and on), and those of 0.6 to 0.8 where they differ.

Data-parallel ranks are the label `engine`. Counts, counters and histograms are added over ranks and models;
the share of KV cache in use is their mean. `cache_config_info` is special: `num_gpu_blocks` is already the
sum over ranks and stands on each rank's series, `kv_cache_size_tokens` (0.24 on) is of one rank.
"""

import math
from collections.abc import Sequence
from typing import Any

from extproc.core.sample import Sample
from extproc.engines.adapter_calls import ALREADY, REFUSED, AdapterCalls, usual
from extproc.engines.exposition import Reader, Reading, Series
from extproc.engines.following import Last
from extproc.engines.quantities import (
    Ranks,
    agreed,
    capacity,
    plus,
    share,
    single,
    whole_number,
    without_copies,
)

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
#: V0 only: requests thrown out of the batch whose KV cache waits in host memory.
_SWAPPED = "vllm:num_requests_swapped"
#: The second name is deprecated since 0.9.
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries")
_OLD_HITS = "vllm:gpu_prefix_cache_hits_total"
_OLD_QUERIES = "vllm:gpu_prefix_cache_queries_total"
_PROMPT = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
_GENERATED = ("vllm:generation_tokens_total", "vllm:generation_tokens")
_TTFT = "vllm:time_to_first_token_seconds"
_TTFT_SUM, _TTFT_COUNT = f"{_TTFT}_sum", f"{_TTFT}_count"
#: Both are observed at every token; the second is the older name, gone with 0.16.
_TPOT = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_TPOT_SUM, _TPOT_COUNT = (tuple(f"{name}_{end}" for name in _TPOT) for end in ("sum", "count"))
_PREFILL = "vllm:request_prefill_time_seconds"
_PREFILL_SUM, _PREFILL_COUNT = f"{_PREFILL}_sum", f"{_PREFILL}_count"
_CACHE = "vllm:cache_config_info"
_ADAPTERS = "vllm:lora_requests_info"
_SLEEP = "vllm:engine_sleep_state"
_STARTED = "process_start_time_seconds"

#: In 0.8 the counters of the prefix cache count blocks; their help text says so.
_COUNTS_BLOCKS = b"in terms of number of queried blocks"


def _error(body: dict[str, Any] | None) -> str:
    """What an answer of vLLM's API says is wrong; "" for one that is not its API's, as unknown paths get."""
    error = body.get("error") if body else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""


def _loaded(status: int, body: dict[str, Any] | None) -> str:
    """Of 0.32: 200; 400 where it is loaded already; 404 for files that are not there; other 400 for bad ones."""
    said = _error(body)
    if status == 400 and "already been loaded" in said:
        return ALREADY
    return REFUSED if said and status in (400, 404) else usual(status)


def _unloaded(status: int, body: dict[str, Any] | None) -> str:
    """200; 404 (older: 400) where there is none of the name."""
    return ALREADY if status in (400, 404) and "cannot be found" in _error(body) else usual(status)


class Vllm:
    """Reads vLLM's /metrics."""

    name = "vllm"
    #: There only with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True.
    adapter_calls = AdapterCalls(
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", loaded=_loaded, unloaded=_unloaded
    )
    wanted = (
        *(_RUNNING, _WAITING, _SWAPPED, *_KV_USED),
        *(*_HITS, *_QUERIES, _OLD_HITS, _OLD_QUERIES, *_PROMPT, *_GENERATED),
        *(_TTFT_SUM, _TTFT_COUNT, *_TPOT_SUM, *_TPOT_COUNT, _PREFILL_SUM, _PREFILL_COUNT),
        *(_CACHE, _ADAPTERS, _SLEEP, _STARTED),
    )

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of vLLM's."""
        return text.startswith(b"vllm:") or b"\nvllm:" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        reading = self._reader.read(text, last)
        ranks = Ranks(reading, "engine")
        block_size = reading.once(_CACHE, "block_size", lambda: _block_size(reading))
        unit = block_size if _OLD_HITS in reading and _COUNTS_BLOCKS in text else 1
        return Sample(
            at=at,
            running=ranks.total(_RUNNING),
            waiting=plus(ranks.total(_WAITING), ranks.optional(_SWAPPED)),
            ranks=ranks.each(_RUNNING, _WAITING),
            kv_used=share(ranks.mean(*_KV_USED)),
            kv_capacity=reading.once(_CACHE, "capacity", lambda: _kv_capacity(reading, ranks, block_size)),
            block_size=block_size,
            hit_tokens=_cached(ranks, _HITS, _OLD_HITS, unit),
            query_tokens=_cached(ranks, _QUERIES, _OLD_QUERIES, unit),
            prompt_tokens=ranks.total(*_PROMPT),
            generated_tokens=ranks.total(*_GENERATED),
            ttft_sum=ranks.total(_TTFT_SUM),
            ttft_count=ranks.total(_TTFT_COUNT),
            tpot_sum=ranks.total(*_TPOT_SUM),
            tpot_count=ranks.total(*_TPOT_COUNT),
            prefill_sum=ranks.total(_PREFILL_SUM),
            prefill_count=ranks.total(_PREFILL_COUNT),
            adapters=reading.once(_ADAPTERS, "names", lambda: _adapters(reading.series(_ADAPTERS))),
            max_adapters=reading.once(_ADAPTERS, "most", lambda: _most_adapters(reading)),
            asleep=reading.once(_SLEEP, "asleep", lambda: _asleep(reading.series(_SLEEP))),
            models=tuple(sorted(reading.label_values("model_name"))),
            started=single(reading.series(_STARTED)),
        )


def _cached(ranks: Ranks, names: tuple[str, ...], old_name: str, unit: int | None) -> float | None:
    """A counter of the prefix cache in tokens; `unit` is how many tokens the old counter counts as one."""
    tokens = ranks.total(*names)
    if tokens is not None or unit is None:
        return tokens
    counted = ranks.total(old_name)
    return None if counted is None else counted * unit


def _block_size(reading: Reading) -> int | None:
    return agreed(_int_label(one, "block_size") for one in reading.series(_CACHE))


def _kv_capacity(reading: Reading, ranks: Ranks, block_size: int | None) -> int | None:
    infos = without_copies(reading.series(_CACHE))
    sizes = [_int_label(one, "kv_cache_size_tokens") for one in infos]
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes) and ranks.covers(infos):
        return capacity(sum(known))
    blocks = agreed(_int_label(one, "num_gpu_blocks") for one in infos)
    return capacity(blocks, block_size)


def _int_label(one: Series, label: str) -> int | None:
    return whole_number(one.labels.get(label))


def _adapters(series: Sequence[Series]) -> tuple[str, ...] | None:
    """The adapters of the newest series: every combination ever seen stays, its value is when that was."""
    if not series or any(math.isnan(one.value) for one in series):
        return None
    newest = max(one.value for one in series)
    names: set[str] = set()
    for one in series:
        if one.value == newest:
            for label in ("running_lora_adapters", "waiting_lora_adapters"):
                names.update(name.strip() for name in one.labels.get(label, "").split(","))
    return tuple(sorted(names - {""}))


def _most_adapters(reading: Reading) -> int | None:
    return agreed(_int_label(one, "max_lora") for one in reading.series(_ADAPTERS))


def _asleep(series: Sequence[Series]) -> bool | None:
    """Asleep means that no rank is awake; at sleep level 0 all three states are 0."""
    awake = [one.value for one in series if one.labels.get("sleep_state") == "awake"]
    if not awake or any(math.isnan(value) for value in awake):
        return None
    return max(awake) == 0
