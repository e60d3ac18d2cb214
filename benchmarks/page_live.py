"""The live page at 500 replicas and 1,000 decisions a second: what it costs the gateway, and whether it freezes.

    .venv/bin/python -m benchmarks.page_live [--replicas 500] [--rate 1000] [--rounds 3] [--seconds 6] [--check]

A real Envoy that plays the replicas too (with metrics, asked for every five seconds), one gateway, requests
of 2 KB. In turns nobody, one and five viewers read the stream of events, each of whom also asks for a
filtered table of decisions every two and a half seconds, as a browser in that view does. Each turn is
measured without requests, which tells exactly what viewers cost, and under load; given are the medians over
the rounds. Then a headless Chromium, where there is one, shows every view under load for some seconds: given
are the longest time for which the page's main thread did nothing else (a "long task"), once it is drawn, and
how much of the thread it takes.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
from typing import Any, NamedTuple

import aiohttp
import uvloop

from benchmarks.played import Open, Played
from benchmarks.server_cpu import cpu_seconds
from extproc.demo.stack import StackSettings
from tests.integration.browser import Browser, chromium

_VIEWERS = (0, 1, 5)
#: Promised: percent of a core that the first viewer, and each further one, cost; bytes a second to each; milliseconds
#: of the longest task in the browser.
_FIRST, _FURTHER, _BYTES, _TASK = 3.0, 1.0, 150_000, 200
_VIEWS = ("fleet", "traffic", "decisions", "gateways", "settings")
#: Seconds that each view is shown for.
_SHOWN = 6.0
#: Notes long tasks, and the longest time between two frames.
_WATCH = (
    "window.kept = {tasks: [], gap: 0}; new PerformanceObserver((list) => { for (const e of list.getEntries())"
    " window.kept.tasks.push(Math.round(e.duration)); }).observe({type: 'longtask'});"
    " let last = performance.now(); const frame = (at) => { window.kept.gap = Math.max(window.kept.gap, at - last);"
    " last = at; requestAnimationFrame(frame); }; requestAnimationFrame(frame); true"
)


class Round(NamedTuple):
    """A turn: percent of a core that the gateway took, without requests and under load; microseconds a request;
    bytes and messages a second to each viewer, and the requests a second that there were."""

    idle: float
    percent: float
    micros: float
    bytes: float
    messages: float
    rate: float


class Viewer:
    """One open page, as far as the gateway sees it."""

    def __init__(self) -> None:
        self.bytes = self.messages = 0

    async def watch(self, admin: str) -> None:
        """Read the stream until cancelled."""
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            asking = asyncio.create_task(self._ask(session, admin))
            try:
                async with session.get(f"{admin}/page/events") as answer:
                    async for chunk in answer.content.iter_any():
                        self.bytes += len(chunk)
                        self.messages += chunk.count(b"data: ")
            finally:
                asking.cancel()

    async def _ask(self, session: aiohttp.ClientSession, admin: str) -> None:
        while True:
            async with session.get(f"{admin}/page/decisions", params={"text": "no such"}) as answer:
                await answer.read()
            await asyncio.sleep(2.5)


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--no-browser", action="store_true", help="the gateway's part alone")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    pool = {"metrics": {"interval": "5s"}, "shadow": {"name": "round_robin"}}
    with (
        Played(StackSettings(replicas=given.replicas, redis_url="", pool=pool)) as stack,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        good = runner.run(_measured(stack, given))
    sys.exit(0 if good or not given.check else 1)


async def _measured(stack: Played, given: argparse.Namespace) -> bool:
    await Open(stack.port, given.rate, 3.0).run()  # warm
    found: dict[int, list[Round]] = {viewers: [] for viewers in _VIEWERS}
    for _ in range(given.rounds):
        for viewers in _VIEWERS:
            found[viewers].append(await _round(stack, viewers, given.rate, given.seconds))
    good = _tell(found)
    if not given.no_browser and (program := chromium()) is not None:
        good = await _seen(stack, program, given.rate) and good
    return good


async def _round(stack: Played, count: int, rate: float, seconds: float) -> Round:
    admin, pid = f"http://127.0.0.1:{stack.gateway_ports[0][1]}", stack.children["gateway-0"].pid
    viewers = [Viewer() for _ in range(count)]
    tasks = [asyncio.create_task(viewer.watch(admin)) for viewer in viewers]
    await asyncio.sleep(1.0)
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    idle = cpu_seconds(pid) - before
    told = [(viewer.bytes, viewer.messages) for viewer in viewers]
    load, before = Open(stack.port, rate, seconds), cpu_seconds(pid)
    await load.run()
    spent = cpu_seconds(pid) - before
    octets = [viewer.bytes - old[0] for viewer, old in zip(viewers, told, strict=True)]
    messages = [viewer.messages - old[1] for viewer, old in zip(viewers, told, strict=True)]
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return Round(
        100 * idle / seconds,
        100 * spent / seconds,
        1e6 * spent / max(load.sent, 1),
        _mean(octets) / seconds,
        _mean(messages) / seconds,
        load.sent / seconds,
    )


def _mean(values: list[int]) -> float:
    return statistics.fmean(values) if values else 0.0


def _tell(found: dict[int, list[Round]]) -> bool:
    middle = {
        count: Round(*map(statistics.median, zip(*rounds, strict=True))) for count, rounds in found.items()
    }
    for count, r in middle.items():
        load = f"{r.percent:.1f} % at {r.rate:.0f}/s ({r.micros:.0f} us each)"
        sent = f"{r.bytes / 1000:.0f} kB/s in {r.messages:.2f} messages/s to each"
        print(f"{count} viewers: gateway {r.idle:.1f} % of a core without requests, {load}; {sent}")
    first, further = middle[1].idle - middle[0].idle, (middle[5].idle - middle[1].idle) / 4
    print(
        f"first viewer: {first:.2f} % of a core (promised: {_FIRST}), each further {further:.2f} ({_FURTHER})"
    )
    return first <= _FIRST and further <= _FURTHER and middle[5].bytes <= _BYTES


async def _seen(stack: Played, program: str, rate: float) -> bool:
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    load = asyncio.create_task(Open(stack.port, rate, _SHOWN * (len(_VIEWS) + 2)).run())
    worst = 0
    async with Browser(program) as browser:
        await browser.size(1360, 860)
        await browser.go(f"{admin}/")
        await browser.until("document.querySelectorAll('#fleet tbody tr').length > 0")
        await asyncio.sleep(2)
        await browser.call("Performance.enable")
        await browser.run(_WATCH)
        for view in _VIEWS:
            worst = max(worst, await _view(browser, view))
        print(f"elements on the page: {await browser.run('document.querySelectorAll(`*`).length')}")
        print(f"errors: {browser.errors}")
    await load
    return worst <= _TASK


async def _view(browser: Browser, view: str) -> int:
    before = await _spent(browser)
    await browser.run("window.kept.tasks = []; window.kept.gap = 0; true")
    await browser.run(f"document.getElementById('tab-{view}').click()")
    await asyncio.sleep(_SHOWN)
    kept: dict[str, Any] = await browser.run("window.kept")
    after = await _spent(browser)
    taken = {name: 100 * (after[name] - before[name]) / _SHOWN for name in after}
    longest = max(kept["tasks"], default=0)
    print(
        f"{view}: longest task {longest} ms of {len(kept['tasks'])} over 50 ms, at most {kept['gap']:.0f} ms between "
        "frames; of the thread " + ", ".join(f"{name} {value:.1f} %" for name, value in taken.items())
    )
    return longest


async def _spent(browser: Browser) -> dict[str, float]:
    said = await browser.call("Performance.getMetrics")
    metrics = {row["name"]: row["value"] for row in said["metrics"]}
    return {name: metrics[name] for name in ("TaskDuration", "ScriptDuration", "LayoutDuration")}


if __name__ == "__main__":
    main()
