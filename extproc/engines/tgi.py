"""Text Generation Inference (2 and 3). No labels, no prefix cache, no time to first token, no adapters.

KV use is what the running batch may grow to, of what fits: an upper bound, as TGI reserves before it computes.
"""

from extproc.core.sample import Sample
from extproc.engines.exposition import Reader
from extproc.engines.following import Last
from extproc.engines.quantities import Ranks, capacity, quotient, share

_RUNNING = "tgi_batch_current_size"
_WAITING = "tgi_queue_size"
_RESERVED = "tgi_batch_current_max_tokens"
#: Set once at the start, since version 3.
_CAPACITY = "tgi_batch_max_total_tokens"
_PROMPT = "tgi_request_input_length_sum"
_GENERATED = "tgi_request_generated_tokens_sum"
#: Mean time per token of each request.
_TPOT = "tgi_request_mean_time_per_token_duration"


class Tgi:
    """Reads TGI's /metrics."""

    name = "tgi"
    adapter_calls = None
    wanted = (_RUNNING, _WAITING, _RESERVED, _CAPACITY, _PROMPT, _GENERATED, f"{_TPOT}_sum", f"{_TPOT}_count")

    def __init__(self) -> None:
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether the body has a series of TGI's."""
        return text.startswith(b"tgi_") or b"\ntgi_" in text

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        told = Ranks(self._reader.read(text, last))
        most = told.total(_CAPACITY)
        return Sample(
            at=at,
            running=told.total(_RUNNING),
            waiting=told.total(_WAITING),
            kv_used=share(quotient(told.total(_RESERVED), most)),
            kv_capacity=capacity(most),
            prompt_tokens=told.total(_PROMPT),
            generated_tokens=told.total(_GENERATED),
            tpot_sum=told.total(f"{_TPOT}_sum"),
            tpot_count=told.total(f"{_TPOT}_count"),
        )
