"""SGLang (0.4 to 0.5.23): `/metrics` with --enable-metrics, or the JSON of `/v1/loads`.

Two kinds of series: the scheduler's have `dp_rank` (with data parallelism) and the ranks inside one executing
group (`tp_rank`, `pp_rank`, `moe_ep_rank`), which all tell the same, so one of them is taken; the tokenizer's
have none of these. A `priority` label other than "" marks a part of a total that is there as well.

Prompt and output tokens: the tokenizer counts a request when it has ended, the scheduler while it works, so the
scheduler's counters are read where the version has them. Its output counter lacks each request's first token.
"""

from collections.abc import Sequence
from typing import Any

from extproc.core.sample import Sample
from extproc.engines import json_body
from extproc.engines.adapter_calls import ALREADY, REFUSED, AdapterCalls, usual
from extproc.engines.exposition import Reader, Reading, Series
from extproc.engines.following import Last
from extproc.engines.quantities import (
    Ranks,
    agreed,
    capacity,
    having,
    plus,
    quotient,
    share,
    whole_number,
    without_copies,
)

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
#: Requests whose grammar is compiled before they may queue; held, not computed.
_GRAMMAR = "sglang:num_grammar_queue_reqs"
#: The fullest pool, rounded to 0.01; and the pool of full attention, exact. Of the two the larger is meant.
_USAGE = "sglang:token_usage"
_FULL_USAGE = "sglang:full_token_usage"
_USED = "sglang:num_used_tokens"
_CAPACITY = "sglang:max_total_num_tokens"
_PAGE = "sglang:page_size"
#: Label `mode`: input (computed), device_hit, host_hit, storage_hit.
_PREFILL_TOKENS = "sglang:prefill_effective_tokens_total"
#: Label `mode`: prefill_compute, prefill_cache, decode.
_LIVE_TOKENS = "sglang:realtime_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_PROMPT = "sglang:prompt_tokens_total"
_GENERATED = "sglang:generation_tokens_total"
_TTFT = "sglang:time_to_first_token_seconds"
_TPOT = ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")
_STAGE = "sglang:per_stage_req_latency_seconds"
_ADAPTER_SLOTS = "sglang:lora_pool_slots_total"

#: Ranks inside one executing group, the outermost first.
_INNER_RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")
_NOT_IDENTITY = frozenset({"pid", "priority", *_INNER_RANKS})

_DEVICE_HIT = having("mode", "device_hit")
_FURTHER_HIT = having("mode", "host_hit", "storage_hit")
_COMPUTED = having("mode", "input")
_DECODED = having("mode", "decode")
_PREFILL = having("stage", "prefill_forward")


def _complaint(status: int, body: dict[str, Any] | None) -> str:
    """What SGLang says is wrong, in small letters: it answers 400 with `success` false and `error_message`."""
    said = body.get("error_message") if body and status == 400 else None
    return said.lower() if isinstance(said, str) else ""


def _loaded(status: int, body: dict[str, Any] | None) -> str:
    said = _complaint(status, body)
    if "already" in said:
        return ALREADY
    return REFUSED if said else usual(status)


def _unloaded(status: int, body: dict[str, Any] | None) -> str:
    said = _complaint(status, body)
    return (
        ALREADY if "not found" in said or "does not exist" in said or "not loaded" in said else usual(status)
    )


class Sglang:
    """Reads SGLang's /metrics and /v1/loads."""

    name = "sglang"
    #: Needs --enable-lora. It waits for requests of an adapter to end before it unloads it.
    adapter_calls = AdapterCalls(
        "/load_lora_adapter", "/unload_lora_adapter", loaded=_loaded, unloaded=_unloaded
    )
    wanted = (
        *(_RUNNING, _WAITING, _GRAMMAR, _USAGE, _FULL_USAGE, _USED, _CAPACITY, _PAGE),
        *(_PREFILL_TOKENS, _LIVE_TOKENS, _CACHED, _PROMPT, _GENERATED, _ADAPTER_SLOTS),
        *(f"{name}_{end}" for name in (_TTFT, *_TPOT, _STAGE) for end in ("sum", "count")),
    )

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of SGLang's, or is its loads."""
        if text.lstrip()[:1] == b"{":
            return b'"loads"' in text and b'"num_running_reqs"' in text
        return text.startswith(b"sglang:") or b"\nsglang:" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        if text.lstrip()[:1] == b"{":
            return _from_loads(json_body.load(text), at)
        reading = self._reader.read(text, last)
        ranks = Ranks(reading, "dp_rank", one_of_each_group)
        hits, queries = _prefix_cache(reading, ranks)
        prefilled = _PREFILL_TOKENS in reading
        return Sample(
            at=at,
            running=ranks.total(_RUNNING),
            waiting=plus(ranks.total(_WAITING), ranks.optional(_GRAMMAR)),
            ranks=ranks.each(_RUNNING, _WAITING),
            kv_used=_kv_used(ranks),
            kv_capacity=capacity(ranks.total(_CAPACITY)),
            block_size=agreed(whole_number(one.value) for one in reading.series(_PAGE)),
            hit_tokens=hits,
            query_tokens=queries,
            prompt_tokens=queries if prefilled else ranks.total(_PROMPT),
            generated_tokens=_generated(reading, ranks),
            ttft_sum=ranks.total(f"{_TTFT}_sum"),
            ttft_count=ranks.total(f"{_TTFT}_count"),
            tpot_sum=ranks.total(*(f"{name}_sum" for name in _TPOT)),
            tpot_count=ranks.total(*(f"{name}_count" for name in _TPOT)),
            prefill_sum=ranks.total(f"{_STAGE}_sum", where=_PREFILL),
            prefill_count=ranks.total(f"{_STAGE}_count", where=_PREFILL),
            max_adapters=agreed(whole_number(one.value) for one in reading.series(_ADAPTER_SLOTS)),
            models=tuple(sorted(reading.label_values("model_name"))),
        )


def one_of_each_group(series: Sequence[Series]) -> list[Series]:
    """The series of the first inner rank of each executing group, priorities left out.

    With attention data parallelism rank 1's scheduler has no tp_rank 0, hence the lowest and not 0.
    """
    first: dict[frozenset[tuple[str, str]], tuple[tuple[int, ...], Series]] = {}
    for one in without_copies([one for one in series if not one.labels.get("priority")]):
        group = frozenset(item for item in one.labels.items() if item[0] not in _NOT_IDENTITY)
        order = tuple(whole_number(one.labels.get(label)) or 0 for label in _INNER_RANKS)
        if group not in first or order < first[group][0]:
            first[group] = (order, one)
    return [one for _, one in first.values()]


def _kv_used(ranks: Ranks) -> float | None:
    told = [value for name in (_USAGE, _FULL_USAGE) if (value := share(ranks.mean(name))) is not None]
    return max(told) if told else share(quotient(ranks.total(_USED), ranks.total(_CAPACITY)))


def _prefix_cache(reading: Reading, ranks: Ranks) -> tuple[float | None, float | None]:
    """Tokens found, and tokens looked up. The names decide which counters, so that none ever goes back."""
    if _PREFILL_TOKENS not in reading:
        return ranks.total(_CACHED), ranks.total(_PROMPT)
    hits = plus(
        ranks.total(_PREFILL_TOKENS, where=_DEVICE_HIT), ranks.optional(_PREFILL_TOKENS, where=_FURTHER_HIT)
    )
    return hits, plus(hits, ranks.total(_PREFILL_TOKENS, where=_COMPUTED))


def _generated(reading: Reading, ranks: Ranks) -> float | None:
    if _LIVE_TOKENS in reading:
        return ranks.total(_LIVE_TOKENS, where=_DECODED)
    return ranks.total(_GENERATED)


def _from_loads(body: object, at: float) -> Sample:
    """The sample in the JSON of /v1/loads: one entry for each data-parallel rank."""
    listed = body.get("loads") if isinstance(body, dict) else None
    loads = [json_body.group(entry) for entry in listed] if isinstance(listed, list) else []

    def total(key: str) -> float | None:
        return plus(*(json_body.number(load.get(key)) for load in loads)) if loads else None

    return Sample(
        at=at,
        running=total("num_running_reqs"),
        waiting=total("num_waiting_reqs"),
        kv_used=share(quotient(total("token_usage"), len(loads))),
        kv_capacity=capacity(total("max_total_num_tokens")),
        max_running=whole_number(total("max_running_requests")),
    )
