"""Whether this gateway scrapes a replica itself, or hears of it from the gateway that holds the pool's lease.

Unknown is not zero: a gateway scrapes until a fresh sample of just this replica came from another, and again as soon
as none came for a while. With Redis or the holder gone, and where the holder can't reach a replica that others can,
every gateway so scrapes for itself; nothing has to notice the fault first.
"""

from collections.abc import Callable

#: Intervals within which a sample of another gateway spares the own scrape: one may be lost, two are a fault.
_FRESH_INTERVALS = 2.5


class ScrapeDuty:
    """The collector's `lease`, for one pool.

    Args:
        held: whether this gateway holds the pool's lease now.
        interval: seconds between two scrapes of a replica.
        clock: seconds, monotonic.
    """

    def __init__(self, held: Callable[[], bool], interval: float, clock: Callable[[], float]) -> None:
        self._held = held
        self._fresh = _FRESH_INTERVALS * interval
        self._clock = clock
        self._heard: dict[str, float] = {}

    def heard(self, address: str, age: float = 0.0) -> None:
        """Another gateway's sample of a replica came in, taken `age` seconds ago."""
        at = self._clock() - max(0.0, age)
        self._heard[address] = max(at, self._heard.get(address, at))

    def keep_only(self, addresses: set[str]) -> None:
        """Forget replicas that left."""
        for address in self._heard.keys() - addresses:
            del self._heard[address]

    def __call__(self, _pool: str, address: str) -> bool:
        """Whether to scrape the replica now."""
        if self._held():
            return True
        at = self._heard.get(address)
        return at is None or self._clock() - at > self._fresh
