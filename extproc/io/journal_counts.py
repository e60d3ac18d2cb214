"""What the journal counts, as plain numbers; metrics read them when scraped."""

from bisect import bisect_left
from collections import OrderedDict

from extproc.core.journal import Batch

#: From 1 ms to 10 s.
DELAYS = (0.001, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0, 10.0)
#: Own batches whose return is waited for.
_AWAITED = 1024
#: Seconds over which the stream's rate is averaged.
_SPAN = 5.0


class JournalCounts:
    """Counts of one gateway.

    Attributes:
        delays: own batches by how long after they were made they came back from Redis, by `DELAYS`; no clocks are
            compared.
        stream_rate, stream_batches: bytes and batches a second that all gateways write.
    """

    def __init__(self, name: str, boot: int) -> None:
        self._me = (name, boot)
        self._awaited: OrderedDict[int, float] = OrderedDict()
        self.delays = [0] * (len(DELAYS) + 1)
        self.delay_sum = 0.0
        self.delay_last = 0.0
        self.batches = {"out": 0, "in": 0}
        self.bytes = {"out": 0, "in": 0}
        self.refusals: dict[str, int] = {}
        self.drops: dict[str, int] = {"oversize": 0}  # what rises from nothing has no rate
        self._recent = (0, 0.0)  # batches that came back since `lately` was asked, and the seconds that took
        self.stream_rate = self.stream_batches = 0.0
        self._unechoed: float | None = None
        self._rate_at = 0.0
        self._rate_bytes = self._rate_batches = 0

    def is_own(self, batch: Batch) -> bool:
        """Whether a batch is this gateway's."""
        return (batch.gateway, batch.boot) == self._me

    def sending(self, seq: int, now: float) -> None:
        """A batch was made at `now`."""
        self._awaited[seq] = now
        if len(self._awaited) > _AWAITED:
            self._awaited.popitem(last=False)

    def sent(self, seq: int, size: int, now: float) -> None:
        """Redis took a batch; it may have come back already."""
        if self._unechoed is None and seq in self._awaited:
            self._unechoed = now
        self.batches["out"] += 1
        self.bytes["out"] += size

    def echoed(self, seq: int, now: float) -> None:
        """An own batch came back."""
        self._unechoed = None
        made = self._awaited.pop(seq, None)
        if made is not None:
            self.delay_last = now - made
            self.delays[bisect_left(DELAYS, now - made)] += 1
            self.delay_sum += now - made
            self._recent = self._recent[0] + 1, self._recent[1] + now - made

    def lately(self) -> float | None:
        """Seconds after which own batches came back, on average since this was last asked; None when none did."""
        (count, seconds), self._recent = self._recent, (0, 0.0)
        return seconds / count if count else None

    def deaf_for(self, now: float) -> float:
        """Seconds since Redis took a batch of ours after which none came back; 0 when all do."""
        return 0.0 if self._unechoed is None else now - self._unechoed

    def received(self, size: int, now: float) -> None:
        """Something came out of the stream."""
        self.batches["in"] += 1
        self.bytes["in"] += size
        self._rate_bytes += size
        self._rate_batches += 1
        took = now - self._rate_at
        if took >= _SPAN:
            self.stream_rate, self.stream_batches = self._rate_bytes / took, self._rate_batches / took
            self._rate_at, self._rate_bytes, self._rate_batches = now, 0, 0

    def refused(self, reason: str) -> None:
        """It could not be used."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def dropped(self, kind: str, count: int) -> None:
        """News that will never be sent."""
        self.drops[kind] = self.drops.get(kind, 0) + count
