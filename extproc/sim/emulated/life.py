"""One life of an engine, from start to restart: scheduler, cache and counters, driven by the loop's clock.

The scheduler's steps are run by one timer. It is set to the end of the step in hand, so an idle engine has
none, and a busy one wakes once a step however many sequences run.
"""

import asyncio
import time
from collections.abc import Iterable

from extproc.sim.emulated.books import Books, Gauges
from extproc.sim.emulated.cache import BlockPool
from extproc.sim.emulated.metrics import exposition
from extproc.sim.emulated.scheduler import Scheduler, Sequence
from extproc.sim.emulated.settings import EngineSettings

#: uvloop rounds timers to whole milliseconds; half of one more makes it round up, so that a timer is not
#: early and set again, dozens of times a step (measured: 29 wake-ups for a step of 10 ms).
_ROUNDING = 0.0005
#: Shortest timer, seconds. Steps that are shorter are done several at a time.
_SHORTEST = 0.001


class Life:
    """Made in a running loop. `close` ends it; sequences that are left then get no more events."""

    def __init__(self, settings: EngineSettings, slow: float = 1.0, rank: int = 0) -> None:
        self._settings = settings
        self._rank = rank
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._closed = False
        #: Set while nothing runs or waits.
        self.idle = asyncio.Event()
        self.idle.set()
        self._wall = time.time() - self._loop.time()
        #: Start in Unix seconds.
        self.started = time.time()
        self.books = Books()
        self.scheduler = Scheduler(settings, self.books, BlockPool(settings.usable_blocks))
        self.scheduler.slow = slow

    @property
    def load(self) -> int:
        """Sequences that run or wait."""
        return self.scheduler.running + self.scheduler.waiting

    def has_room(self, sequences: int) -> bool:
        """Whether so many more keep within `max_queued` waiting sequences."""
        limit = self._settings.max_queued
        return not limit or self.load + sequences - self._settings.max_running <= limit

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences; their owners hear of their progress."""
        now = self._loop.time()
        for seq in sequences:
            self.scheduler.submit(seq, now)
        self.idle.clear()
        if self._timer is None and not self._closed:
            # Not at once: what arrives in the same turn of the loop shares the first step.
            self._timer = self._loop.call_soon(self._tick)

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End those that have not ended yet and free their blocks."""
        for seq in sequences:
            self.scheduler.cancel(seq)
        self._note_idle()

    def close(self) -> None:
        """Stop the clock for good."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def metrics(self) -> str:
        """The text of /metrics."""
        settings = self._settings
        gauges = self.books.gauges
        if settings.live_gauges:
            gauges = Gauges(self.scheduler.running, self.scheduler.waiting, self.scheduler.pool.usage)
        return exposition(settings, self.books, gauges, self.started, self._wall, self._rank)

    def truth(self) -> dict[str, object]:
        """What an observer can only estimate: tokens, blocks and requests, exact at this moment."""
        books, pool = self.books, self.scheduler.pool
        return {
            "started": self.started,
            "running": self.scheduler.running,
            "waiting": self.scheduler.waiting,
            "prompt_tokens_outstanding": self.scheduler.outstanding(self._loop.time()),
            "prompt_tokens_finished": books.prompt_tokens,
            "prompt_tokens_cached": books.cached_tokens,
            "prompt_tokens_computed": books.computed_tokens,
            "generation_tokens": books.generated_tokens,
            "blocks": {
                "total": pool.capacity,
                "held": pool.held,
                "cached": pool.cached,
                "idle": pool.idle,
            },
            "sequences": dict(books.ends),
            "requests": dict(books.requests),
            "chunks": books.chunks,
            "adapters": self._adapters(),
        }

    def _adapters(self) -> dict[str, object]:
        slots = self.scheduler.slots
        return {"resident": slots.resident, "loads": slots.loads, "hits": slots.hits}

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for event in self.scheduler.advance(now):
            event.sequence.owner.progress(event)
        self._note_idle()
        at = self.scheduler.next_at
        if at is not None and not self._closed:
            self._timer = self._loop.call_at(max(at + _ROUNDING, now + _SHORTEST), self._tick)

    def _note_idle(self) -> None:
        if not self.load:
            self.idle.set()
