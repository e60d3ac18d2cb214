"""The books as vLLM 0.32 shows them at /metrics: same names, labels, types and units."""

from collections.abc import Callable, Iterator

from extproc.sim.emulated.books import Books, Gauges, Histogram
from extproc.sim.emulated.settings import EngineSettings

_COUNTERS: tuple[tuple[str, str, Callable[[Books], int]], ...] = (
    (
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda b: b.queried_tokens,
    ),
    ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", lambda b: b.hit_tokens),
    ("num_preemptions", "Cumulative number of preemption from the engine.", lambda _: 0),
    ("prompt_tokens", "Number of prefill tokens processed.", lambda b: b.prompt_tokens),
    ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", lambda b: b.cached_tokens),
    ("generation_tokens", "Number of generation tokens processed.", lambda b: b.generated_tokens),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[Books], Histogram]], ...] = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda b: b.prompt_sizes),
    ("request_generation_tokens", "Number of generation tokens processed.", lambda b: b.output_sizes),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda b: b.step_sizes),
    (
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda b: b.first_token,
    ),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda b: b.token_gap),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda b: b.time_per_token,
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda b: b.latency),
    (
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        lambda b: b.queue,
    ),
    (
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda b: b.inference,
    ),
    (
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        lambda b: b.prefill,
    ),
    (
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        lambda b: b.decode,
    ),
)


def exposition(
    settings: EngineSettings, books: Books, gauges: Gauges, started: float, wall: float, rank: int = 0
) -> str:
    """The text of /metrics, of one data-parallel rank.

    `started` is the engine's start in Unix seconds, `wall` what to add to the loop's clock to get them.
    """
    lines = [
        *_family(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge"
        ),
        f"process_start_time_seconds {started!r}",
        *_gauges(settings, gauges),
        *_counters(settings, books),
        *_histograms(settings, books),
        *_adapters(settings, books, wall),
        *_cache_config(settings),
    ]
    text = "\n".join(lines) + "\n"
    return text.replace(_FIRST_RANK, f'engine="{rank}"') if rank else text


#: A label with quotes that no escaped value has.
_FIRST_RANK = 'engine="0"'


def _family(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _labels(settings: EngineSettings) -> str:
    return f'{_FIRST_RANK},model_name="{_escaped(settings.model)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _gauges(settings: EngineSettings, gauges: Gauges) -> Iterator[str]:
    labels = _labels(settings)
    yield from _family("vllm:num_requests_running", "Number of requests in model execution batches.", "gauge")
    yield f"vllm:num_requests_running{{{labels}}} {gauges.running}.0"
    yield from _family("vllm:num_requests_waiting", "Number of requests waiting to be processed.", "gauge")
    yield f"vllm:num_requests_waiting{{{labels}}} {gauges.waiting}.0"
    yield from _family(
        "vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.", "gauge"
    )
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {gauges.waiting}.0'
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0'
    yield from _family("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "gauge")
    yield f"vllm:kv_cache_usage_perc{{{labels}}} {gauges.kv_usage!r}"


def _counters(settings: EngineSettings, books: Books) -> Iterator[str]:
    labels = _labels(settings)
    for name, text, value in _COUNTERS:
        yield from _family(f"vllm:{name}_total", text, "counter")
        yield f"vllm:{name}_total{{{labels}}} {value(books)}.0"
    success, model = "vllm:request_success_total", _escaped(settings.model)
    yield from _family(success, "Count of successfully processed requests.", "counter")
    # A cancelled request shows up nowhere: vLLM 0.32 leaves `abort` at 0 when a client goes away.
    for reason in ("stop", "length", "abort", "error", "repetition"):
        count = books.ends.get(reason, 0)
        yield f'{success}{{engine="0",finished_reason="{reason}",model_name="{model}"}} {count}.0'
    rejections = "vllm:admission_rejections_total"
    yield from _family(rejections, "Number of admission attempts rejected by a queue limit.", "counter")
    yield f'{rejections}{{model_name="{model}",reason="max_num_queued_reqs"}} {books.queue_rejections}.0'


def _histograms(settings: EngineSettings, books: Books) -> Iterator[str]:
    model = _escaped(settings.model)
    for name, text, pick in _HISTOGRAMS:
        histogram, full, total = pick(books), f"vllm:{name}", 0
        yield from _family(full, text, "histogram")
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            yield f'{full}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {total}.0'
        yield f'{full}_count{{engine="0",model_name="{model}"}} {total}.0'
        yield f'{full}_sum{{engine="0",model_name="{model}"}} {float(histogram.sum)!r}'


def _adapters(settings: EngineSettings, books: Books, wall: float) -> Iterator[str]:
    """Every mix seen stays; the value is when, so the newest is the one that holds (as in vLLM)."""
    if not (settings.adapters or settings.runtime_adapters):
        return
    yield from _family("vllm:lora_requests_info", "Running stats on lora requests.", "gauge")
    for (running, waiting), at in books.mixes.items():
        lists = f'running_lora_adapters="{_escaped(running)}",waiting_lora_adapters="{_escaped(waiting)}"'
        yield f'vllm:lora_requests_info{{max_lora="{settings.max_loras}",{lists}}} {at + wall!r}'


def _cache_config(settings: EngineSettings) -> Iterator[str]:
    tokens = settings.reported_kv_tokens or settings.kv_tokens
    blocks = tokens // settings.block_size
    name = "vllm:cache_config_info"
    yield from _family(name, "Information of the LLMEngine CacheConfig", "gauge")
    yield (
        f'{name}{{block_size="{settings.block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'kv_cache_max_concurrency="{tokens / settings.max_model_len}",'
        f'kv_cache_size_tokens="{blocks * settings.block_size}",num_cpu_blocks="None",'
        f'num_gpu_blocks="{blocks * settings.ranks}",num_gpu_blocks_override="None",sliding_window="None"}} 1.0'
    )
