"""The other gateways that are heard: each from one of its starts to its end, and only so many at once.

When there are as many as may be, one with something in flight takes the place of the one that has nothing and was
silent for longest: to miss an idle gateway costs least. Where all have something, the newcomer is passed over until
one falls silent. Either way it is counted.
"""

from collections.abc import Iterator
from typing import Final

from extproc.core.flights import WINDOW, Charges, Flights, Seen
from extproc.core.journal import Batch

#: Seconds without a batch after which a gateway counts as gone; each sends one every second.
SILENCE: Final = 3.0
#: Most other gateways.
MOST: Final = 256

#: A gateway's name, and the number of its start.
Name = tuple[str, int]


class Peer:
    """Another gateway, from one of its starts to its end.

    Attributes:
        heard: when its last batch came, on our clock.
        gone: it said that it stops.
        tells: it says how its requests ended, so it can judge what caches hold.
    """

    __slots__ = ("flights", "gone", "heard", "name", "seen", "tells")

    def __init__(self, name: str, flights: Flights, now: float) -> None:
        self.name = name
        self.flights = flights
        self.seen = Seen()
        self.heard = now
        self.gone = self.tells = False


class Peers(dict[Name, Peer]):
    """All that are heard.

    Args:
        charges: where what they have in flight is charged.

    Attributes:
        passed_over: batches of gateways for which there was no room, and gateways that made room for others.
    """

    def __init__(self, charges: Charges) -> None:
        super().__init__()
        self._charges = charges
        self.passed_over = 0

    @property
    def can_judge(self) -> bool:
        """Whether any of them learns from how requests end, and stays."""
        return any(peer.tells and not peer.gone for peer in self.values())

    def of(self, batch: Batch, made: float) -> Peer | None:
        """Whose batch it is, made at `made` (our clock); None when there is no room for another."""
        key = (batch.gateway, batch.boot)
        peer = self.get(key)
        if peer is None and (len(self) < MOST or self._makes_room(batch)):
            peer = self[key] = Peer(batch.gateway, Flights(self._charges), made)
        return peer

    def silent(self, now: float) -> Iterator[str]:
        """Drop those that fell silent, with all they had; their names."""
        for key in [key for key, peer in self.items() if now - peer.heard > SILENCE]:
            self.pop(key).flights.clear()
            yield key[0]

    def _makes_room(self, batch: Batch) -> bool:
        self.passed_over += 1
        if not batch.placed and not (batch.table and batch.table.rows):
            return False
        idle = [(peer.heard, key) for key, peer in self.items() if not len(peer.flights)]
        if idle:
            self.pop(min(idle)[1]).flights.clear()
        return bool(idle)


def missing(newest: int, number: int) -> int:
    """Batches that never came between the newest and this one; where the numbering jumped, it is one."""
    between = number - newest - 1
    if newest < 0 or between <= 0:
        return 0
    return between if between < WINDOW else 1
