"""What it costs to see what a gateway does: CPU a request with everything that shows it on, and off, in turns.

    .venv/bin/python -m benchmarks.seeing [--rate 200] [--rounds 5] [--seconds 15] [--only records,traces] [--check]

Two gateways, each behind a real Envoy of its own that plays sixteen replicas too; requests of 2 KB go to one and then
to the other. One keeps no decision records, sends no spans, and nobody looks at it. Of the other everything is asked:

    records   the last 1,000 decisions, as by default
    pages     a live page is open: its stream of events, and its table of decisions
    traces    spans for the share of requests that is the default, taken by a collector
    metrics   Prometheus scrapes, every fifteen seconds

and, asked for by --only, `recording`: `kvsteer record` runs, which nobody does all day (benchmarks/page_cost.py).

Promised: at most 10 % more CPU (user and system) of the gateway's process a request. Given is the median over the
rounds of the two gateways' ratio. Lines in the log for each request are off, as by default.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.played import Open, Played
from extproc.demo.processes import free_port
from extproc.demo.stack import StackSettings

_USUAL: Final = ("records", "pages", "traces", "metrics")
_PARTS: Final = (*_USUAL, "recording")
_MOST: Final = 1.10
_SCRAPE: Final = 15.0
#: Seconds between two tables of decisions that a page asks for (static/decisions.js).
_TABLE: Final = 2.5
#: Seconds before each measurement, for whoever looks to begin, and after it, for what is sent late.
_BEFORE, _AFTER = 0.5, 1.5


def main() -> None:
    """Measure and say; with --check exit 1 when it costs more than is promised."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--only", default=",".join(_USUAL), help="parts that are switched on")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    parts = given.only.split(",") if given.only else []
    if not set(parts) <= set(_PARTS):
        parser.error(f"--only: parts are {', '.join(_PARTS)}")
    collector = free_port()
    with Seen([], 0) as plain, Seen(parts, collector) as seen:
        ratio = asyncio.run(_measured(plain, seen, parts, collector, given))
    sys.exit(0 if ratio <= _MOST or not given.check else 1)


class Seen(Played):
    """A gateway with the parts of them that are settings, behind an Envoy of its own."""

    def __init__(self, parts: list[str], collector: int) -> None:
        super().__init__(StackSettings(replicas=16, redis_url="", pool={"metrics": {"enabled": False}}))
        self._parts, self._collector = parts, collector

    def configuration(self, number: int) -> dict[str, Any]:
        """As the stack's, with or without records and spans."""
        tree = super().configuration(number)
        if "records" not in self._parts:
            tree["admin"]["decisions"] = 0
        if "traces" in self._parts:
            tree["tracing"] = {"endpoint": f"http://127.0.0.1:{self._collector}/v1/traces"}
        return tree


async def _measured(
    plain: Played, seen: Played, parts: list[str], collector: int, given: argparse.Namespace
) -> float:
    taken = await _collector(collector)
    costs: dict[str, list[float]] = {"without": [], "with": []}
    for stack in (plain, seen):
        await Open(stack.port, given.rate, given.seconds).run()  # warm
    for number in range(2 * given.rounds):
        which, stack = (("without", plain), ("with", seen))[
            (number + number // 2) % 2
        ]  # neither always first
        async with _looking(stack, parts if which == "with" else [], given.seconds):
            await asyncio.sleep(_BEFORE)
            pid = stack.children["gateway-0"].pid
            load, before = Open(stack.port, given.rate, given.seconds), cpu_of(pid)
            await load.run()
            await asyncio.sleep(_AFTER)
            costs[which].append((cpu_of(pid) - before) / max(load.sent, 1))
    print(f"{taken[0] / 1e3:.0f} kB of spans taken")
    return _tell(costs, given.rate, parts)


@contextlib.asynccontextmanager
async def _looking(stack: Played, parts: list[str], seconds: float) -> AsyncIterator[None]:
    """Whoever looks, while it is looked."""
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    who: dict[str, Coroutine[Any, Any, None]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        if "pages" in parts:
            who["pages"] = _watch(session, admin)
        if "metrics" in parts:
            who["metrics"] = _scrape(session, admin)
        if "recording" in parts:
            who["recording"] = _record(session, admin, _BEFORE + seconds)
        tasks = [asyncio.create_task(look) for look in who.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended


async def _watch(session: aiohttp.ClientSession, admin: str) -> None:
    """One open page."""
    async with session.get(f"{admin}/page/events") as answer:
        asked = 0.0
        async for _ in answer.content:
            if time.monotonic() - asked >= _TABLE:
                asked = time.monotonic()
                async with session.get(f"{admin}/page/decisions") as table:
                    await table.read()


async def _scrape(session: aiohttp.ClientSession, admin: str) -> None:
    while True:
        async with session.get(f"{admin}/metrics") as answer:
            await answer.read()
        await asyncio.sleep(_SCRAPE)


async def _record(session: aiohttp.ClientSession, admin: str, seconds: float) -> None:
    status = 409
    while status == 409:  # the one before it waits for what still runs
        async with session.get(f"{admin}/record?seconds={seconds:g}") as answer:
            status = answer.status
            async for _ in answer.content:
                pass
        await asyncio.sleep(0.1)


async def _collector(port: int) -> list[int]:
    """Takes spans, and counts their bytes."""
    taken = [0]

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                taken[0] += len(await reader.readexactly(size))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    await asyncio.start_server(take, "127.0.0.1", port, limit=2**20)
    return taken


def cpu_of(pid: int) -> float:
    """Seconds of user and system time of a process's threads, to the microsecond (/proc/PID/task/*/schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _tell(costs: dict[str, list[float]], rate: float, parts: list[str]) -> float:
    for which, found in costs.items():
        shown = " ".join(f"{cost * 1e6:.0f}" for cost in found)
        print(f"{which:8} {shown} us of CPU a request, median {statistics.median(found) * 1e6:.0f}")
    ratio = statistics.median(b / a for a, b in zip(costs["without"], costs["with"], strict=True))
    print(f"{rate:g} requests/s; {', '.join(parts) or 'nothing'} on: {ratio:.3f} times (at most {_MOST})")
    return ratio


if __name__ == "__main__":
    main()
