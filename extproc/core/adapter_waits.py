"""Requests that wait until the LoRA adapter they ask for is loaded somewhere.

Waiting ends in one of these ways, which label a metric:

    loaded         a replica serves it now
    longest_wait   it waited as long as it may
    hopeless       the adapter can't be loaded
    left           its client did not wait
    closed         the gateway stops
    full           it did not begin, as no more may wait
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

LOADED: Final = "loaded"
LONGEST_WAIT: Final = "longest_wait"
HOPELESS: Final = "hopeless"
LEFT: Final = "left"
CLOSED: Final = "closed"
FULL: Final = "full"
WAYS: Final = (LOADED, LONGEST_WAIT, HOPELESS, LEFT, CLOSED, FULL)

#: Requests that wait at most; Envoy keeps their bodies.
MOST: Final = 1000


class Waiter(Protocol):
    """An exchange that waits."""

    def due(self, now: float) -> None:
        """It need not wait any more: decide and answer."""
        ...


class _Waiting(NamedTuple):
    waiter: Waiter
    name: str
    since: float


class Waits:
    """Those of one pool.

    Args:
        longest: seconds that one may wait; 0 for none.

    Attributes:
        ended: how waiting ended, by way.
    """

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.ended = dict.fromkeys(WAYS, 0)
        self._waiting: dict[int, _Waiting] = {}  # in the order of coming
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, waiter: Waiter, key: int, name: str, now: float) -> bool:
        """Keep a request until its adapter is there; False where it has to be decided now."""
        if self._closed or not self.longest:
            return False
        if len(self._waiting) >= MOST:
            self.ended[FULL] += 1
            return False
        self._waiting[key] = _Waiting(waiter, name, now)
        return True

    def leave(self, key: int) -> str:
        """The client of a request did not wait: for this adapter. Unknown keys are ignored, and give ""."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return ""
        self.ended[LEFT] += 1
        return waiting.name

    def names(self) -> dict[str, int]:
        """Adapters that are waited for, that of the oldest request first, and by how many."""
        found: dict[str, int] = {}
        for each in self._waiting.values():
            found[each.name] = found.get(each.name, 0) + 1
        return found

    def let_go(self, served: Callable[[str], bool], hopeless: Callable[[str], bool], now: float) -> None:
        """Let those go on for whom waiting is over."""
        known: dict[str, str] = {}
        for key, each in list(self._waiting.items()):
            way = known.get(each.name)
            if way is None:
                way = LOADED if served(each.name) else HOPELESS if hopeless(each.name) else ""
                known[each.name] = way
            if not way and now - each.since >= self.longest:
                way = LONGEST_WAIT
            if way:
                self._release(key, way, now)

    def close(self, now: float) -> None:
        """Let all go, and hold nothing any more: the gateway stops."""
        self._closed = True
        for key in list(self._waiting):
            self._release(key, CLOSED, now)

    def _release(self, key: int, way: str, now: float) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:  # else one that went before it took it along
            self.ended[way] += 1
            waiting.waiter.due(now)
