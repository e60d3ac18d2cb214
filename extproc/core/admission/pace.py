"""How fast a queue is served, measured only while somebody waits: what goes meanwhile is capacity, not demand.

Without a backlog the queue limits nobody, and what goes says nothing of how much could: the speed is unknown then,
which is not zero. Where it is known and more goes than that, though nobody waits just now, it is at least as much.
"""

import math
from typing import Final

#: Seconds over which speeds are averaged.
_SPAN: Final = 10.0
#: Seconds of backlog from which a speed is known: one that ended after a trade of leases limited nobody.
_LEAST: Final = 1.0
#: Seconds after which what was seen in the last backlog says nothing any more: the fleet has changed.
_KEPT: Final = 60.0
#: Seconds that count as one moment: what is off by that, a thousandth, is not worth a power of e.
_SAME: Final = 0.01


class Mean:
    """Tokens a second, averaged over the last seconds."""

    __slots__ = ("_at", "_began", "_sum")

    def __init__(self, now: float) -> None:
        self._sum = 0.0
        self._at = self._began = now

    def add(self, tokens: float, now: float) -> None:
        """So many went."""
        if 0 <= now - self._at < _SAME:
            self._sum += tokens
            return
        self._sum = self._sum * math.exp(min(self._at - now, 0.0) / _SPAN) + tokens
        self._at = now

    def at(self, now: float) -> float:
        """Tokens a second; the weights of a decayed sum add up to the span only once it ran that long."""
        ran = max(now - self._began, 1.0)
        return self._sum * math.exp(min(self._at - now, 0.0) / _SPAN) / (_SPAN * (1 - math.exp(-ran / _SPAN)))


class Speed:
    """Tokens a second that can go, by what went while somebody waited."""

    __slots__ = ("_all", "_at", "_ran", "_since", "_sum")

    def __init__(self, now: float) -> None:
        self._all = Mean(now)
        self._sum = 0.0
        self._at = -math.inf  # up to when backlog was counted
        self._ran = 0.0  # seconds of backlog in all that `_sum` is of
        self._since: float | None = None  # as `_at`, while somebody waits

    def waits(self, somebody: bool, now: float) -> None:
        """From now on somebody waits, or nobody does."""
        if somebody and self._since is None:
            if now - self._at > _KEPT:
                self._sum = self._ran = 0.0
            self._since = self._at = now
        elif not somebody and self._since is not None:
            self._pass(now)
            self._since = None

    def add(self, tokens: float, now: float) -> None:
        """So many went."""
        self._all.add(tokens, now)
        if self._since is None:
            return
        if now - self._at >= _SAME:
            self._pass(now)
        self._sum += tokens

    def at(self, now: float) -> float | None:
        """Tokens a second, at least 0; None where the queue has not limited anybody lately."""
        passed = max(now - self._at, 0.0)
        if self._since is None:
            if passed > _KEPT:
                return None
            passed = 0.0
        ran = self._ran + passed
        if ran < _LEAST:
            return None
        waited = self._sum * math.exp(-passed / _SPAN) / (_SPAN * (1.0 - math.exp(-ran / _SPAN)))
        return max(waited, self._all.at(now))

    def _pass(self, now: float) -> None:
        passed = max(now - self._at, 0.0)
        self._sum *= math.exp(-passed / _SPAN)
        self._ran += passed
        self._at = max(now, self._at)
