"""When a shared prefix is worth computing a second time, elsewhere: rent or buy.

Requests that follow a cached prefix pay rent: what they lose in waiting since another replica had less to do. A
copy there has a price: the work of computing the prefix once more, and again what the cache throws out for it when
it is full. When the rent paid for a prefix reaches the price of a copy, the next request goes there and makes one
(the rule of ski rental, which never pays more than twice what hindsight would: Karlin et al., 1988). So a prefix
whose holder is busier only now and then stays alone, and a hot one spreads as far as its traffic needs.

Rent is kept for the first hash that the other replica lacks: all requests that would use a copy share it.
Rent of long ago says nothing of the load of today, so it fades.
"""

import math
from collections import OrderedDict
from typing import Final

#: Seconds after which rent has faded to 1/e: the span over which rho is averaged.
_FADE: Final = 60.0
#: Prefixes whose rent is remembered; the one longest without any goes first.
_PREFIXES: Final = 4096


class Copies:
    """Rents paid, in seconds, by the hash of what a copy would begin with."""

    __slots__ = ("_most", "_rents")

    def __init__(self, most: int = _PREFIXES) -> None:
        #: In the order of the last rent. Not a dict, whose first key is found the later the more went before it.
        self._rents: OrderedDict[int, tuple[float, float]] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        """Prefixes whose rent is remembered."""
        return len(self._rents)

    def pays(self, key: int, rent: float, price: float, now: float) -> bool:
        """Add `rent` seconds, above 0; True when `price` seconds are reached, after which it starts from 0 again."""
        paid, at = self._rents.pop(key, (0.0, now))
        if at < now:
            paid *= math.exp((at - now) / _FADE)
        paid += rent
        if paid >= price:
            return True
        self._rents[key] = (paid, now)
        if len(self._rents) > self._most:
            self._rents.popitem(last=False)
        return False
