"""NVIDIA Triton with the TensorRT-LLM backend: port 8002, `/metrics`.

One process may hold several models; every series has `model` and `version`. Counts are added over them, KV use
is all blocks in use of all blocks there are. Triton 25.03 and on tells who waits; before, what is active and not
scheduled waits.
"""

from extproc.core.sample import Sample
from extproc.engines.exposition import Reader, Reading
from extproc.engines.following import Last
from extproc.engines.quantities import Ranks, agreed, capacity, having, quotient, share, whole_number

#: Label `request_type`: active, scheduled, waiting, max, context.
_REQUESTS = "nv_trt_llm_request_metrics"
#: Label `kv_cache_block_type`: max, used, free, tokens_per, fraction.
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_PROMPT = "nv_llm_input_token_len_sum"
_GENERATED = "nv_llm_output_token_len_sum"


class Triton:
    """Reads the TensorRT-LLM part of Triton's /metrics."""

    name = "triton"
    adapter_calls = None
    wanted = (_REQUESTS, _BLOCKS, _PROMPT, _GENERATED)

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of the TensorRT-LLM backend's."""
        return text.startswith(b"nv_trt_llm_") or b"\nnv_trt_llm_" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        reading = self._reader.read(text, last)
        names = _model_names(reading)
        of_these = having("model", *names)  # ensembles around a model count its tokens once more
        models = Ranks(reading, "model", ranks=names)
        used = models.total(_BLOCKS, where=having("kv_cache_block_type", "used"))
        most = models.total(_BLOCKS, where=having("kv_cache_block_type", "max"))
        return Sample(
            at=at,
            running=models.total(_REQUESTS, where=having("request_type", "scheduled")),
            waiting=_waiting(models),
            kv_used=share(quotient(used, most)),
            kv_capacity=_kv_capacity(reading),
            block_size=agreed(_by_model(reading, "tokens_per").values()),
            max_running=whole_number(models.total(_REQUESTS, where=having("request_type", "max"))),
            prompt_tokens=models.total(_PROMPT, where=of_these),
            generated_tokens=models.total(_GENERATED, where=of_these),
            models=tuple(sorted(names)),
        )


def _waiting(models: Ranks) -> float | None:
    waiting = models.total(_REQUESTS, where=having("request_type", "waiting"))
    if waiting is not None:
        return waiting
    active = models.total(_REQUESTS, where=having("request_type", "active"))
    scheduled = models.total(_REQUESTS, where=having("request_type", "scheduled"))
    return max(0.0, active - scheduled) if active is not None and scheduled is not None else None


def _by_model(reading: Reading, kind: str) -> dict[tuple[str, str], int | None]:
    """Blocks, or tokens in a block, by model and version."""
    return {
        (one.labels.get("model", ""), one.labels.get("version", "")): whole_number(one.value)
        for one in reading.series(_BLOCKS)
        if one.labels.get("kv_cache_block_type") == kind
    }


def _kv_capacity(reading: Reading) -> int | None:
    blocks, sizes = _by_model(reading, "max"), _by_model(reading, "tokens_per")
    if not blocks or blocks.keys() != sizes.keys():
        return None
    total = 0
    for model, most in blocks.items():
        size = sizes[model]
        if most is None or size is None:
            return None
        total += most * size
    return capacity(total)


def _model_names(reading: Reading) -> set[str]:
    names = {one.labels.get("model") for name in (_REQUESTS, _BLOCKS) for one in reading.series(name)}
    return {name for name in names if name}
