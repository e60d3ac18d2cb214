"""The reporter beside an engine: asks it as a gateway would, and tells the gateways.

    engine --scrape--> newest sample --+--> gateway 1    each way by itself: deadline, backoff with jitter, and
                                       +--> gateway 2    always the newest sample; one that is down delays no other
                                       +--> redis
    registration in Redis: while the engine answers; terminating once this process was told to stop; then gone

Told to stop, it says at once that the replica is draining, and goes on until the engine has nothing left to do or is
gone, at most for the `drain` time.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from extproc.core.membership import Endpoint
from extproc.core.report import Report, write_report
from extproc.core.sample import Sample
from extproc.io import clock
from extproc.io.collector import Collector, Target
from extproc.io.discovery.base import SourceFailed
from extproc.io.discovery.registration import Registration
from extproc.io.report_ways import Way, WayFailed, in_options
from extproc.io.scrape import ScrapeSettings
from extproc.io.tasks import end_all

_log = structlog.get_logger("kvsteer.report")

#: Waits after a failed report, in seconds: doubling, spread by half, so that reporters don't come back in step.
_FIRST_WAIT = 0.25
_LONGEST_WAIT = 5.0
#: Shortest time between two reports on one way, in seconds; a gateway refuses what comes faster (io/intake.py).
_PAUSE = 0.06
#: Seconds after the word "draining" within which a request may still come: a look of a gateway, and its way here.
_SETTLE = 3.0
#: Seconds that the last words to gateways may take in all, and as many for leaving the pool.
_GOODBYE = 0.5
#: Why the engine can't be asked -> how to mend it, in this command's options (docs/engines.md has every word).
_ENGINE_HINTS = {
    "connect": "nobody listens there; is the engine up, and --url or REPLICA its own?",
    "tls": "the engine can't be verified; check --ca-file",
    "timeout": "no whole answer in time; a busy engine: raise --timeout",
    "broken": "what answers breaks off or speaks no HTTP; is --url or REPLICA the engine's?",
    "status_401": "the engine wants a token; check --token-file",
    "status_403": "the engine refuses the token; check --token-file",
    "status_404": "no metrics there; is --url or REPLICA the engine's, and are its metrics on?",
    "too_large": "more than an engine tells; is --url the engine's metrics?",
    "unparsable": "no metrics of an engine that --engine reads; is --url or REPLICA the engine's?",
}
#: Beats of a registration within the time it holds.
_BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What to report of.

    Attributes:
        replica: `ip:port` by which gateways know the engine; canonical.
        target: where and in whose words it tells its state.
        pool: the pool meant; empty for every pool that has it.
        drain: longest time to go on after being told to stop, in seconds.
        ttl: seconds a registration holds.
        metrics: URL of the metrics for gateways that scrape too; empty for their usual one on `replica`. The one
            used here is often on loopback, and of no use elsewhere.
    """

    replica: str
    target: Target
    pool: str = ""
    drain: float = 30.0
    ttl: float = 10.0
    metrics: str = ""


class Reporter:
    """Reports one engine until it is told to stop.

    Args:
        duty: what to report of.
        settings: how the engine is scraped.
        ways: where reports go.
        registration: the replica's place in a pool; None for none.
    """

    def __init__(
        self, duty: Duty, settings: ScrapeSettings, ways: Sequence[Way], registration: Registration | None
    ) -> None:
        self._duty = duty
        self._registration = registration
        self._collector = Collector(settings, self._on_sample, self._on_failure, clock.monotonic)
        self._collector.set_targets({duty.replica: duty.target})
        self._lines = [_Line(way, duty.replica, self._report) for way in ways]
        self._sample: Sample | None = None
        self._failure = ""
        self._told: str | None = None  # the last failure that was logged; "" while the engine answers
        self._draining: float | None = None
        self._may_be_registered = False
        self._asked = 0
        self._stop, self._over = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Say good-bye and end; a second call ends at once. To be called on the loop."""
        self._asked += 1
        (self._stop if self._asked == 1 else self._over).set()

    async def run(self) -> None:
        """Report until told to stop."""
        await self._collector.start()
        tasks = [asyncio.create_task(line.run(), name=f"report {line.way.name}") for line in self._lines]
        if self._registration is not None:
            tasks.append(asyncio.create_task(self._hold(self._registration), name="registration"))
        try:
            await self._stop.wait()
            await self._run_empty()
        finally:
            await end_all(tasks)
            await self._collector.stop()
            if self._asked == 1:  # who was not told yet, as its way was waiting, hears of the drain now
                await _in_time(line.farewell() for line in self._lines)
            await self._leave()

    # -- the engine ------------------------------------------------------------------------------------

    def _on_sample(self, _address: str, sample: Sample) -> None:
        if self._told != "":
            self._told = ""
            _log.info("the engine answers", replica=self._duty.replica, models=list(sample.models[:8]))
        self._sample, self._failure = sample, ""
        self._tell()

    def _on_failure(self, _address: str, reason: str) -> None:
        if self._told != reason:
            self._told = reason
            detail = _ENGINE_HINTS.get(reason, "look into the engine's log")
            _log.warning(
                "the engine can't be asked", replica=self._duty.replica, reason=reason, detail=detail
            )
        self._failure = reason
        self._tell()

    def _tell(self) -> None:
        for line in self._lines:
            line.news.set()
        if self._is_empty():
            self._over.set()

    def _report(self) -> Report | None:
        """What holds now; None while nothing was heard of the engine."""
        draining = self._draining is not None
        duty = self._duty
        if self._failure:
            return Report(replica=duty.replica, pool=duty.pool, draining=draining, failure=self._failure)
        if self._sample is None:
            return Report(replica=duty.replica, pool=duty.pool, draining=True) if draining else None
        age = clock.monotonic() - self._sample.at
        return Report(replica=duty.replica, pool=duty.pool, draining=draining, sample=self._sample, age=age)

    # -- the registration ------------------------------------------------------------------------------

    async def _hold(self, registration: Registration) -> None:
        """Hold the registration for as long as the engine answers; without beats it expires by itself."""
        told = ""
        while True:
            if self._answers():
                self._may_be_registered = True  # also when Redis' answer is lost
                try:
                    await registration.beat(self._endpoint())
                except SourceFailed as error:
                    if told != error.reason:
                        told = error.reason
                        _log.warning("can't register", reason=error.reason, detail=in_options(error.detail))
                else:
                    if told != "registered":
                        told = "registered"
                        _log.info("registered", replica=self._duty.replica, ttl=self._duty.ttl)
            await asyncio.sleep(self._duty.ttl / _BEATS)

    def _answers(self) -> bool:
        return self._sample is not None and clock.monotonic() - self._sample.at < self._duty.ttl

    def _endpoint(self) -> Endpoint:
        terminating = self._draining is not None
        return Endpoint(address=self._duty.replica, metrics=self._duty.metrics, terminating=terminating)

    # -- the end ---------------------------------------------------------------------------------------

    async def _run_empty(self) -> None:
        """Tell that the replica drains, and wait until it has nothing left to do."""
        self._draining = clock.monotonic()
        _log.info("draining", replica=self._duty.replica, longest=self._duty.drain)
        self._tell()
        if self._registration is not None and self._may_be_registered and self._answers():
            await _in_time([self._mark(self._registration)])
        try:
            async with asyncio.timeout(self._duty.drain):
                await self._over.wait()
        except TimeoutError:
            _log.warning("the engine still works; leaving all the same", replica=self._duty.replica)

    def _is_empty(self) -> bool:
        """Whether the engine is gone, or was idle in a sample late enough to show the last request sent to it."""
        sample, draining = self._sample, self._draining
        if draining is None:
            return False
        if self._failure == "connect" or not self._was_told():
            return True
        if sample is None or sample.at < draining + _SETTLE:
            return False
        return not self._failure and sample.running == 0 and sample.waiting == 0

    def _was_told(self) -> bool:
        """Whether anybody may steer by what this process said: else there is nothing to wait for."""
        return self._may_be_registered or any(line.has_arrived for line in self._lines)

    async def _leave(self) -> None:
        if self._registration is not None:
            if self._may_be_registered:
                await _in_time([self._deregister(self._registration)])
            await self._registration.close()
        for line in self._lines:
            await line.way.close()
        _log.info("stopped", replica=self._duty.replica)

    async def _mark(self, registration: Registration) -> None:
        """Tell in the registration that the replica drains; each further beat says so too."""
        try:
            await registration.beat(self._endpoint())
        except SourceFailed as error:
            _log.warning("can't register", reason=error.reason, detail=in_options(error.detail))

    async def _deregister(self, registration: Registration) -> None:
        try:
            await registration.leave()
        except SourceFailed as error:
            _log.warning("can't leave; the registration expires", reason=error.reason)


async def _in_time(words: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Say last words side by side; those that nobody takes in time are given up."""
    said = [asyncio.create_task(word, name="last words") for word in words]
    if not said:
        return
    _, left = await asyncio.wait(said, timeout=_GOODBYE)
    if left:
        _log.warning("not everybody heard the good-bye in time", seconds=_GOODBYE)
        await end_all(left)


class _Line:
    """One way and its own pace: it sends the newest there is, whenever there is news and it is not waiting."""

    def __init__(self, way: Way, replica: str, report: Callable[[], Report | None]) -> None:
        self.way = way
        self.news = asyncio.Event()
        self._replica = replica
        self._report = report
        self.has_arrived = False
        self._failures = 0
        self._drain_told = False
        self._told: str | None = None  # the last failure that was logged; "" while reports arrive

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self.news.wait()
            self.news.clear()
            report = self._report()
            if report is not None:
                await self._send(report)
                await asyncio.sleep(_PAUSE)

    async def farewell(self) -> None:
        """Try once more to tell of the drain, if no report of it has arrived."""
        report = self._report()
        if report is None or (self._drain_told and not report.failure):
            return
        try:
            await self.way.send(self._replica, write_report(report))
        except WayFailed as error:
            _log.warning("the drain was not told", to=self.way.name, reason=error.reason)

    async def _send(self, report: Report) -> None:
        try:
            await self.way.send(self._replica, write_report(report))
            self._drain_told, self.has_arrived = report.draining, True
        except WayFailed as error:
            self._failures += 1
            if self._told != error.reason:
                self._told = error.reason
                _log.warning("reports fail", to=self.way.name, reason=error.reason, detail=error.detail)
            longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 16))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
            self.news.set()
        except Exception:  # a fault of ours on one way must not end it
            _log.exception("a report failed by a fault of the reporter", to=self.way.name)
            await asyncio.sleep(_LONGEST_WAIT)
        else:
            self._failures = 0
            if self._told != "":
                self._told = ""
                _log.info("reports arrive", to=self.way.name, replica=self._replica)
