"""Runs the waiting rooms on the event loop: soon after something happened, and by the clock while something waits.

A look goes through all that waits, so looks are spaced: after one that took long the next comes later, and together
they take a fifth of a core at most.
"""

import asyncio
from collections.abc import Callable

import structlog

from extproc.core.holding import Holding

_log = structlog.get_logger("kvsteer.waiting")

#: Times a look's own duration until the next: looks then take at most a fifth of a core.
_REST = 4.0
#: Seconds of which the latest look is told: so often the horizon follows.
_TELL = 0.25
#: Longest rest, in seconds: replicas have `theta` of work ahead when they open, which is above it.
_LONGEST_REST = 0.05


class Waking:
    """Looks after what a gateway holds.

    Args:
        holding: what is held; its `on_due` becomes this.
        clock: seconds, monotonic.
    """

    def __init__(self, holding: Holding, clock: Callable[[], float]) -> None:
        self._holding = holding
        self._clock = clock
        self._soon: asyncio.Handle | None = None  # a look that was asked for
        self._timer: asyncio.TimerHandle | None = None  # one by the clock
        self._rested = 0.0  # no look before
        self._due = 0.0  # when the look that is to come was asked for
        self._late, self._told = 0.0, clock()  # the latest look since so late was told
        holding.on_due = self.wake

    def wake(self) -> None:
        """Look in the loop's next turn, or after the rest that the last look needs."""
        self._wake(self._clock())

    def _wake(self, due: float) -> None:
        if self._soon is None:
            self._due = due
            loop, rest = asyncio.get_running_loop(), self._rested - self._clock()
            self._soon = loop.call_later(rest, self._look) if rest > 0 else loop.call_soon(self._look)

    def close(self) -> None:
        """Let everything go, and hold nothing any more."""
        self._cancel()
        self._holding.close(self._clock())

    def _look(self) -> None:
        self._cancel()
        began = self._clock()
        self._tell(began)
        try:
            again = self._holding.pump(began)
        except Exception as error:  # whatever it is, those that wait must not wait for ever
            _log.exception("the waiting room failed; what waits goes at once", error=type(error).__name__)
            self._holding.close(began)
            return
        now = self._clock()
        self._rested = now + min(_REST * (now - began), _LONGEST_REST)
        if len(self._holding):
            self._timer = asyncio.get_running_loop().call_later(max(again - now, 0.0), self._wake, again)

    def _tell(self, now: float) -> None:
        self._late = max(self._late, now - self._due)
        if now - self._told >= _TELL:
            self._holding.looked(self._late)
            self._late, self._told = 0.0, now

    def _cancel(self) -> None:
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None
