"""A bounded memory for policies: what was not used for a while goes, and what was used longest ago goes first."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")

#: Outdated entries looked for at each new one: more go than come.
_SWEEP = 2


class Recent(Generic[V]):
    """Values by 60-bit hash.

    Args:
        most: entries kept, at least 1.
        ttl: seconds after which an entry that was not used is forgotten.
    """

    __slots__ = ("_entries", "_most", "_ttl")

    def __init__(self, most: float, ttl: float) -> None:
        self._most = int(most)
        self._ttl = ttl
        self._entries: OrderedDict[int, tuple[float, V]] = OrderedDict()  # when last used, in that order

    def __len__(self) -> int:
        """Entries held, outdated ones among them."""
        return len(self._entries)

    def get(self, key: int, now: float) -> V | None:
        """What is known of `key`, which counts as a use; None when nothing is."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        used, value = entry
        if now - used > self._ttl:
            del self._entries[key]
            return None
        self._entries[key] = (now, value)
        self._entries.move_to_end(key)
        return value

    def put(self, key: int, value: V, now: float) -> None:
        """Remember `value`; what is outdated or beyond the bound goes."""
        entries = self._entries
        entries[key] = (now, value)
        entries.move_to_end(key)
        for _ in range(_SWEEP):
            oldest = next(iter(entries))
            if len(entries) <= self._most and now - entries[oldest][0] <= self._ttl:
                return
            del entries[oldest]
