"""The reporter's own pace: one way that is down delays no other, a drain is told to everybody, and it ends."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from extproc.core.report import Report, read_report
from extproc.core.sample import Sample
from extproc.io import clock
from extproc.io import reporter as reporting
from extproc.io.collector import Target
from extproc.io.report_ways import WayFailed
from extproc.io.reporter import Duty, Reporter

A = "127.0.0.1:1"  # where nobody listens: the tests tell the samples themselves


@dataclass(frozen=True)
class Scraping:
    interval: float = 1e6  # the first scrape comes within that, at random: never
    timeout: float = 1.0
    token: str = ""
    token_file: str = ""
    ca_file: str = ""


class Road:
    """A way that keeps what it is given, or fails."""

    def __init__(self, name: str, *, fails: bool = False, hangs: bool = False) -> None:
        self.name = name
        self.fails = fails
        self.hangs = hangs
        self.tried: list[Report] = []
        self.closed = False
        self.news = asyncio.Event()

    async def send(self, replica: str, report: bytes) -> None:
        self.tried.append(read_report(report, clock.monotonic()))
        assert self.tried[-1].replica == replica
        self.news.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise WayFailed("connect", "nobody listens there")

    async def close(self) -> None:
        self.closed = True

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not happened():
                self.news.clear()
                await self.news.wait()


def reporter(*roads: Road, drain: float = 0.0) -> Reporter:
    return Reporter(Duty(replica=A, target=Target(url="/metrics"), drain=drain), Scraping(), roads, None)


def tell(made: Reporter, running: float) -> None:
    made._on_sample(A, Sample(at=clock.monotonic(), running=running, waiting=0.0))


async def test_a_way_that_is_down_delays_no_other_and_is_tried_less_often() -> None:
    good, bad = Road("good"), Road("bad", fails=True)
    made = reporter(good, bad)
    running = asyncio.create_task(made.run())
    for number in range(10):
        seen = len(good.tried)
        tell(made, number)
        await good.until(lambda seen=seen: len(good.tried) > seen)  # type: ignore[misc]
    samples = [report.sample for report in good.tried if report.sample is not None]
    assert samples[-1].running == 9
    assert len(bad.tried) < len(good.tried) / 2, "it waits 0.25 s and longer after each failure"
    bad.fails = False
    await bad.until(lambda: bad.tried[-1].sample is not None and bad.tried[-1].sample.running == 9)
    made.stop()
    await running
    assert good.closed
    assert bad.closed


async def test_everybody_hears_of_the_drain_also_who_was_just_waiting() -> None:
    good, bad = Road("good"), Road("bad", fails=True)
    made = reporter(good, bad)
    running = asyncio.create_task(made.run())
    tell(made, 0)
    await bad.until(lambda: len(bad.tried) > 0)
    bad.fails = False
    made.stop()
    async with asyncio.timeout(30):
        await running
    assert good.tried[-1].draining
    assert bad.tried[-1].draining


async def test_an_engine_that_is_gone_ends_the_wait_at_once_and_is_told() -> None:
    road = Road("good")
    made = reporter(road, drain=3600.0)
    running = asyncio.create_task(made.run())
    tell(made, 3)
    await road.until(lambda: len(road.tried) > 0)
    made.stop()
    await road.until(lambda: road.tried[-1].draining)
    made._on_failure(A, "connect")
    async with asyncio.timeout(30):
        await running
    assert (road.tried[-1].draining, road.tried[-1].failure) == (True, "connect")


async def test_a_second_signal_ends_it_though_the_engine_works() -> None:
    road = Road("good")
    made = reporter(road, drain=3600.0)
    running = asyncio.create_task(made.run())
    tell(made, 3)
    await road.until(lambda: len(road.tried) > 0)
    made.stop()
    made.stop()
    async with asyncio.timeout(30):
        await running
    assert road.closed


async def test_nobody_who_was_told_nothing_is_waited_for() -> None:
    """No report ever arrived, so that nobody steers by this process: it ends at once, though the engine works."""
    road = Road("bad", fails=True)
    made = reporter(road, drain=3600.0)
    running = asyncio.create_task(made.run())
    tell(made, 3)
    await road.until(lambda: len(road.tried) > 0)
    made.stop()
    async with asyncio.timeout(30):
        await running
    assert road.tried[-1].draining, "it still tries once to say good-bye"


async def test_a_gateway_that_does_not_answer_delays_the_end_by_half_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reporting._GOODBYE == 0.5
    monkeypatch.setattr(reporting, "_GOODBYE", 0.1)
    road = Road("silent", hangs=True)
    made = reporter(road, drain=3600.0)
    running = asyncio.create_task(made.run())
    tell(made, 3)
    await road.until(lambda: len(road.tried) > 0)
    began = clock.monotonic()
    made.stop()
    async with asyncio.timeout(30):
        await running
    assert clock.monotonic() - began < 1.6, "0.1 s, and what a busy machine adds"
    assert road.closed


async def test_unknown_load_is_never_taken_for_an_empty_engine() -> None:
    made = reporter(Road("good"))
    made._lines[0].has_arrived = True
    made._draining = clock.monotonic() - 60
    for sample, empty in (
        (Sample(at=clock.monotonic(), running=0.0), False),
        (Sample(at=clock.monotonic(), running=0.0, waiting=1.0), False),
        (
            Sample(at=clock.monotonic() - 59, running=0.0, waiting=0.0),
            False,
        ),  # a request may still be on its way
        (Sample(at=clock.monotonic(), running=0.0, waiting=0.0), True),
    ):
        made._sample = sample
        assert made._is_empty() is empty, sample
