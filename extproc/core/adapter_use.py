"""Which LoRA adapters are in use where: by this gateway's requests, and by what other gateways tell of theirs.

An adapter is unloaded only where nobody uses it, and of those the one that was used longest ago.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

from extproc.core.fleet import Replica

#: Replica's address -> adapter -> seconds since a request of it was last in flight there.
Ages = Mapping[str, Mapping[str, float]]

#: Seconds after which what a gateway told is forgotten, if it tells no more.
_FORGET: Final = 600.0
#: Most gateways, and most uses of one, that are listened to.
_MOST_GATEWAYS: Final = 64
_MOST_USES: Final = 20_000


class Use:
    """Who uses what."""

    def __init__(self) -> None:
        #: Slot of a replica -> adapter -> when a request of it was last in flight.
        self._last: dict[int, dict[str, float]] = {}
        #: Slot -> adapter -> requests in flight.
        self._flying: dict[int, dict[str, int]] = {}
        #: Request in flight -> where and with what.
        self._requests: dict[int, tuple[int, str]] = {}
        #: Gateway -> when it told, and then address -> adapter -> when a request was last in flight.
        self._others: dict[str, tuple[float, dict[str, dict[str, float]]]] = {}

    def began(self, key: int, slot: int, name: str, now: float) -> None:
        """Request `key` goes to a replica with an adapter; `ended` is to be told."""
        self.ended(key, now)
        self._requests[key] = slot, name
        flying = self._flying.setdefault(slot, {})
        flying[name] = flying.get(name, 0) + 1
        self.touched(slot, name, now)

    def ended(self, key: int, now: float) -> None:
        """It is over. Unknown keys are ignored."""
        slot, name = self._requests.pop(key, (-1, ""))
        flying = self._flying.get(slot)
        if flying is None or name not in flying:
            return
        flying[name] -= 1
        if not flying[name]:
            del flying[name]
        self.touched(slot, name, now)

    def touched(self, slot: int, name: str, now: float) -> None:
        """It was used now, or as good as used: a loaded one is not the first to go."""
        self._last.setdefault(slot, {})[name] = now

    def left(self, slot: int) -> None:
        """The incarnation of this slot is gone."""
        self._last.pop(slot, None)
        self._flying.pop(slot, None)

    def forget(self, slot: int, name: str) -> None:
        """It is not loaded there any more."""
        self._last.get(slot, {}).pop(name, None)

    def last(self, replica: Replica, name: str, now: float) -> float:
        """When a request for it was last in flight there, of any gateway: `now` for one that is; -inf for never."""
        if name in self._flying.get(replica.slot, ()):
            return now
        told = [uses.get(replica.address, {}).get(name, -inf) for _, uses in self._others.values()]
        return max(self._last.get(replica.slot, {}).get(name, -inf), *told, -inf)

    def lately(self, name_since: float, now: float) -> set[str]:
        """Adapters that were in flight somewhere within so many seconds."""
        since = now - name_since
        found = {name for flying in self._flying.values() for name in flying}
        tables = [
            *self._last.values(),
            *(table for _, uses in self._others.values() for table in uses.values()),
        ]
        return found | {name for table in tables for name, at in table.items() if at >= since}

    def shown(self, replicas: Mapping[int, Replica], now: float) -> dict[str, dict[str, float]]:
        """What to tell other gateways, of replicas by their slots."""
        found: dict[str, dict[str, float]] = {}
        for slot, names in self._last.items():
            if slot in replicas:
                flying = self._flying.get(slot, {})
                found[replicas[slot].address] = {
                    name: 0.0 if name in flying else round(max(now - at, 0.0), 3)
                    for name, at in names.items()
                }
        return found

    def told(self, gateway: str, ages: Ages, now: float) -> None:
        """Another gateway tells of its requests, all that it knows: it replaces what it told before."""
        if gateway not in self._others and len(self._others) >= _MOST_GATEWAYS:
            return
        uses = {address: {name: now - age for name, age in names.items()} for address, names in ages.items()}
        if sum(map(len, uses.values())) <= _MOST_USES:
            self._others[gateway] = now, uses

    def expire(self, now: float) -> None:
        """Forget gateways that tell no more."""
        for gateway in [it for it, (heard, _) in self._others.items() if now - heard > _FORGET]:
            del self._others[gateway]
