"""llama.cpp's llama-server with --metrics. No labels, no histograms.

`prompt_tokens_total` leaves out what came from the cache; builds that count that too tell both. KV use is told
by older builds only, its size by none.
"""

from extproc.core.sample import Sample
from extproc.engines.exposition import Reader
from extproc.engines.following import Last
from extproc.engines.quantities import Ranks, plus, share

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_KV_USED = "llamacpp:kv_cache_usage_ratio"
_COMPUTED = "llamacpp:prompt_tokens_total"
_CACHED = "llamacpp:prompt_tokens_cached_total"
_GENERATED = "llamacpp:tokens_predicted_total"
_PREFILL_SECONDS = "llamacpp:prompt_seconds_total"
#: Seconds of all slots together, so that divided by tokens it is the time per output token.
_DECODE_SECONDS = "llamacpp:tokens_predicted_seconds_total"


class LlamaCpp:
    """Reads llama-server's /metrics."""

    name = "llamacpp"
    adapter_calls = None
    wanted = (
        *(_RUNNING, _WAITING, _KV_USED, _COMPUTED, _CACHED, _GENERATED),
        *(_PREFILL_SECONDS, _DECODE_SECONDS),
    )

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of llama.cpp's."""
        return text.startswith(b"llamacpp:") or b"\nllamacpp:" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        told = Ranks(self._reader.read(text, last))
        cached, generated = told.total(_CACHED), told.total(_GENERATED)
        prompt = plus(told.total(_COMPUTED), cached)
        return Sample(
            at=at,
            running=told.total(_RUNNING),
            waiting=told.total(_WAITING),
            kv_used=share(told.total(_KV_USED)),
            hit_tokens=cached,
            query_tokens=prompt,
            prompt_tokens=prompt,
            generated_tokens=generated,
            tpot_sum=told.total(_DECODE_SECONDS),
            tpot_count=generated,
            prefill_sum=told.total(_PREFILL_SECONDS),
        )
