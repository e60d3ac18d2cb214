"""What a fleet should be like (S1): how many replicas a pool needs soon, and which would be missed least.

Demand is what is carried, what waits, and what was refused lately; it is extrapolated by its own slope for as long as
a replica takes to come up. A pool should carry `TARGET` of what it bears, half way between where its budget is
relaxed and tightened.
"""

import math
from typing import Final

from extproc.core.admission.meter import Reading
from extproc.core.pool import Pool

#: Share of its capacity that a pool should carry.
TARGET: Final = 0.65
#: Seconds that growth is looked ahead: about what a model server takes to load weights and warm up.
AHEAD: Final = 120.0
#: Seconds over which demand and its slope are averaged.
_SPAN: Final = 30.0


class Trend:
    """A pool's demand in tokens and its growth in tokens a second, both averaged."""

    __slots__ = ("_at", "demand", "growth")

    def __init__(self) -> None:
        self.demand = self.growth = 0.0
        self._at: float | None = None

    def look(self, demand: float, now: float) -> None:
        """Take in what is carried, waits and was refused in the last seconds, tokens."""
        if self._at is None or now <= self._at:
            self.demand, self._at = demand, now
            return
        keep = math.exp(min(self._at - now, 0.0) / _SPAN)
        mean = self.demand * keep + demand * (1 - keep)
        self.growth = self.growth * keep + (mean - self.demand) / (now - self._at) * (1 - keep)
        self.demand, self._at = mean, now

    def replicas(self, reading: Reading) -> int:
        """How many replicas the pool should have; as many as it has where nothing is known of what they bear."""
        if not reading.replicas or reading.capacity <= 0:
            return reading.replicas
        soon = max(self.demand, self.demand + self.growth * AHEAD, 0.0)
        return max(math.ceil(soon / (reading.capacity / reading.replicas * TARGET)), 1)


def coldest_first(pool: Pool) -> list[str]:
    """Addresses in the order in which replicas would be missed least: those with the least believed cached."""
    return [replica.address for replica in sorted(pool.replicas, key=lambda it: pool.index.count(it.slot))]
