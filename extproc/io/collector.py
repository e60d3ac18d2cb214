"""Asks every replica of its state, over and over. Each has a loop of its own, so one delays no other.

    start -> its moment in the interval -> scrape -> the rest of the interval -> scrape ...
                                                |
                                                failed -> interval, 2 x, 4 x ... at most 5 s -> scrape

The first good answer brings a replica back to its interval. A scrape waits for nothing but one of many places,
and replicas that failed last time share places of their own, so that a dead zone can't keep the living waiting.
A few replicas share each moment, and the moments are spread evenly, from a random one on.

Where several gateways share the work, `lease` says whether this one scrapes a replica now
(scrape_duty.py); samples of others then come in by their own way, and nothing here knows of them.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from yarl import URL

from extproc import engines
from extproc.core.sample import Sample
from extproc.engines import Engine
from extproc.engines.exposition import Reader
from extproc.errors import ConfigError
from extproc.io.scrape import MAX_ANSWER, ScrapeFailed, Scraper, ScrapeSettings, check_url

_log = structlog.get_logger("kvsteer.collector")

#: Scrapes at once; far above what an interval needs, and below the usual 1,024 open files.
_PLACES = 256
#: Scrapes at once of replicas that failed last time.
_PLACES_FAILING = 32
#: Longest wait between two scrapes of a dead replica, in seconds.
_LONGEST_BACKOFF = 5.0
#: Replicas that are scraped at one moment. Between two moments a busy gateway's processor forgets how to scrape, so
#: that the first takes three times as long as the next; more of them would hold up requests for longer.
_GROUP = 4
#: From one moment to the next, in intervals: multiples of the golden ratio leave no wide gaps, however many they are.
_STEP = (math.sqrt(5) - 1) / 2
#: Bodies above this many bytes are read in parts, so that the loop is never held for more than about 1 ms.
_PART = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a replica tells its state, and in whose words."""

    #: Path on the replica's address, or a whole http(s) URL.
    url: str = "/metrics"
    #: Name of an engine, `auto` to find out from the names, or an engine itself (`generic` needs settings).
    engine: str | Engine = "auto"
    #: The pool it belongs to; what `lease` is asked for.
    pool: str = "default"


class Collector:
    """Scrapes a set of replicas.

    Args:
        settings: interval, deadline, token and CA; a pool's `metrics`.
        on_sample: called with a replica's address and what it said.
        on_failure: called with an address and a short word (`ScrapeFailed.reason`).
        clock: seconds, monotonic; a sample's `at` is read from it before the request is sent.
        lease: whether this gateway scrapes a pool's replica (pool, address) now.
        rng: where the moments begin, so that gateways differ, and how long dead replicas are left alone.
        limit: largest answer, in bytes.
        gzip: whether to ask for compressed answers.

    Raises:
        ConfigError: the token or the CA can't be had.
    """

    def __init__(
        self,
        settings: ScrapeSettings,
        on_sample: Callable[[str, Sample], None],
        on_failure: Callable[[str, str], None],
        clock: Callable[[], float],
        *,
        lease: Callable[[str, str], bool] = lambda _pool, _address: True,
        rng: random.Random | None = None,
        limit: int = MAX_ANSWER,
        gzip: bool = False,
    ) -> None:
        self.settings = settings
        self.on_sample = on_sample
        self.on_failure = on_failure
        self.clock = clock
        self.lease = lease
        self.rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self.scraper = Scraper(settings, clock, limit=limit, gzip=gzip)
        self._targets: dict[str, Target] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._running = False
        self._begun = 0
        self._moment = self.rng.uniform(0, settings.interval)
        self._places = (asyncio.Semaphore(_PLACES), asyncio.Semaphore(_PLACES_FAILING))

    def places(self, failing: bool) -> asyncio.Semaphore:
        """Where a scrape takes its place."""
        return self._places[failing]

    def moment(self) -> float:
        """When in each interval one more replica is to be scraped, in seconds."""
        if self._begun % _GROUP == 0:
            self._moment = (self._moment + _STEP * self.settings.interval) % self.settings.interval
        self._begun += 1
        return self._moment

    def set_targets(self, targets: Mapping[str, Target]) -> None:
        """Scrape these replicas from now on, by address; after this none that left is told of any more.

        Raises:
            ConfigError: a URL or an engine's name is wrong; then nothing has changed.
        """
        rounds = {address: _Rounds(self, address, target) for address, target in targets.items()}
        changed = {a for a, target in self._targets.items() if targets.get(a) != target}
        added = {a for a in targets if a in changed or a not in self._targets}
        self._targets = dict(targets)
        if self._running:
            for address in changed:
                self._end(address)
            for address in added:
                self._begin(address, rounds[address])

    async def start(self) -> None:
        """Begin to scrape; a second start does nothing."""
        if self._running:
            return
        self._running = True
        for address, target in self._targets.items():
            self._begin(address, _Rounds(self, address, target))

    async def stop(self) -> None:
        """End every scrape and close every connection; it can be started again."""
        self._running = False
        for address in list(self._tasks):
            self._end(address)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await asyncio.sleep(0)  # connections that were dropped are gone with the loop's next turn

    def _begin(self, address: str, rounds: "_Rounds") -> None:
        self._tasks[address] = asyncio.create_task(rounds.run(), name=f"scrape {address}")

    def _end(self, address: str) -> None:
        task = self._tasks.pop(address)
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Rounds:
    """The endless rounds of one replica."""

    def __init__(self, collector: Collector, address: str, target: Target) -> None:
        self._collector = collector
        self._address = address
        self._pool = target.pool
        self._scrape = collector.scraper.of(_url(address, target))
        self._given = _engine(target)
        self._engine = self._given
        self._last = engines.Last()
        self._failures = 0
        self._moment = 0.0

    async def run(self) -> None:
        """Scrape until cancelled; then the connection is gone."""
        loop, collector = asyncio.get_running_loop(), self._collector
        self._moment = collector.moment()
        due = self._first(loop.time())
        try:
            while True:
                await asyncio.sleep(due - loop.time())
                failing = self._failures > 0
                if collector.lease(self._pool, self._address):
                    await self._round()
                back = failing and not self._failures
                due = self._first(loop.time()) if back else self._next(due, loop.time())
        finally:
            self._scrape.close()

    def _first(self, now: float) -> float:
        """Its next moment, at most an interval away."""
        return now + (self._moment - now) % self._collector.settings.interval

    def _next(self, due: float, now: float) -> float:
        """When to scrape again: a whole number of intervals after `due`, or after a backoff from now."""
        interval = self._collector.settings.interval
        if self._failures:
            longest = max(_LONGEST_BACKOFF, interval)
            backoff = min(longest, interval * 2.0 ** min(self._failures - 1, 16))
            return now + backoff * self._collector.rng.uniform(0.75, 1.0)
        missed = max(0.0, now - due) // interval
        return due + interval * (missed + 1)

    async def _round(self) -> None:
        """One scrape, told to whom it concerns. A fault of ours or of theirs ends no loop."""
        at = self._collector.clock()
        try:
            sample = await self._sample(at)
        except ScrapeFailed as error:
            self._failed(error.reason)
        except Exception:  # the loop must outlive any fault of a parser
            _log.exception("scrape failed by a fault of the gateway", replica=self._address)
            self._failed("internal")
        else:
            self._failures = 0
            self._tell(lambda: self._collector.on_sample(self._address, sample))

    def _failed(self, reason: str) -> None:
        self._failures += 1
        self._tell(lambda: self._collector.on_failure(self._address, reason))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # what is done with a sample must not end the scraping
            _log.exception("taking in a scrape failed", replica=self._address)

    async def _sample(self, at: float) -> Sample:
        async with self._collector.places(self._failures > 0):
            body = await self._scrape.fetch()
        engine = self._engine or engines.detect(body)
        if engine is None:
            raise ScrapeFailed("unparsable")
        if engine is not self._engine:
            self._last = engines.Last()
        sample = self._last.parse(engine, await _wanted_part(body, engine), at)
        if sample.is_blank:  # it tells nothing, so it must not count as fresh
            self._engine = self._given  # another engine may have taken the address
            raise ScrapeFailed("unparsable")
        self._engine = engine
        return sample


def _url(address: str, target: Target) -> URL:
    return check_url(f"http://{address}{target.url}" if target.url.startswith("/") else target.url)


def _engine(target: Target) -> Engine | None:
    """The engine a target names; None for `auto`."""
    if not isinstance(target.engine, str):
        return target.engine
    if target.engine == "auto":
        return None
    try:
        return engines.get(target.engine)
    except ValueError as error:
        raise ConfigError(f"pools.{target.pool}: {error}") from None


async def _wanted_part(body: bytes, engine: Engine) -> bytes:
    """A body that can be parsed in one go: a huge one is thinned out in parts, with others' work between."""
    if len(body) <= _PART or body.lstrip()[:1] in (b"[", b"{"):
        return body
    reader = Reader(engine.wanted)
    lines: list[bytes] = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _PART)
        end = len(body) if end < 0 else end
        lines += reader.lines(body[start:end])
        start = end + 1
        await asyncio.sleep(0)
    return b"\n".join(lines)
