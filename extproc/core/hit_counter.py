"""Hits that an engine counts for itself, against predictions whose usage was silent.

What it counted between two samples is compared with what was predicted of the prompts that ended in between. Others'
traffic is in the count too, so it can look better than it is, never worse.
"""

from typing import Final

#: Share of the tokens predicted between two samples below which the engine's counter calls the cache cold, and the
#: prompts that must have ended in such times in a row, after others of which most came, to call it emptied.
_COLD: Final = 0.5
_COLD_PROMPTS: Final = 4


class HitCounter:
    """The counter of one engine, and what was predicted since its last sample."""

    __slots__ = ("_count", "_credit", "_is_cold", "_predicted", "cold", "last")

    def __init__(self) -> None:
        self.last: float | None = None
        #: Prompts of the last samples in a row by which too little had come of what was predicted.
        self.cold = 0
        self._predicted = 0.0  # tokens predicted of prompts that ended since the last sample
        self._count = 0
        self._credit = 0.0  # hits counted that no prompt has claimed: it may still be answered
        self._is_cold = False  # found so, and nothing has come of it since

    def predict(self, tokens: float) -> None:
        """A prompt ended of which so many tokens were predicted."""
        self._predicted += tokens
        self._count += 1

    def found_cold(self, was_warm: bool) -> bool:
        """Whether the last samples say that a cache which had been warm before the last one was emptied."""
        self._is_cold = bool(self.cold) and (self._is_cold or (was_warm and self.cold >= _COLD_PROMPTS))
        return self._is_cold

    def cleared(self) -> None:
        """Nothing is believed to be in the cache any more."""
        self.cold, self._is_cold = 0, False

    def sampled(self, hits: float | None) -> tuple[float, float, int] | None:
        """Tokens predicted and come since the last sample and prompts they are of; None when it says nothing."""
        before, self.last = self.last, hits
        predicted, count = self._predicted, self._count
        if before is None or hits is None or hits < before:
            self._predicted, self._count, self._credit = 0.0, 0, 0.0
            return None
        self._credit += hits - before
        if not count:
            return None
        self._predicted, self._count = 0.0, 0
        came = min(self._credit, predicted)
        # A prompt's hits are counted when it is read, before it ends. What is kept for those is bounded, or others'
        # traffic would pay for everything to come.
        self._credit = min(self._credit - came, predicted)
        self.cold = self.cold + count if came < _COLD * predicted else 0
        return predicted, came, count
