"""What an open live page and a recording cost a gateway: CPU a request, with both and without, in turns.

    .venv/bin/python -m benchmarks.page_cost [--rate 200] [--rounds 4] [--seconds 6] [--check]

A real Envoy that plays the replicas too, one gateway, requests of 2 KB. With: three pages listen to the stream of
events, as browsers do, each asks for the table of decisions once a second, and the gateway records. Promised: at most
10 % more CPU (user and system) of the gateway a request. Given is the ratio of the medians over the rounds.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from pathlib import Path

import aiohttp

from benchmarks.played import Open, Played
from extproc.demo.stack import StackSettings

_PAGES = 3
_MOST = 1.10


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    settings = StackSettings(replicas=given.replicas, redis_url="", pool={"metrics": {"enabled": False}})
    with Played(settings) as stack:
        ratio = asyncio.run(_measured(stack, given.rate, given.rounds, given.seconds))
    sys.exit(0 if ratio <= _MOST or not given.check else 1)


async def _measured(stack: Played, rate: float, rounds: int, seconds: float) -> float:
    pid = stack.children["gateway-0"].pid
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    await Open(stack.port, rate, seconds).run()  # warm
    costs: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(2 * rounds):
        which = ("without", "with")[number % 2]
        watchers = [asyncio.create_task(_watch(admin)) for _ in range(_PAGES)] if which == "with" else []
        if watchers:
            watchers.append(asyncio.create_task(_record(admin, seconds)))
            await asyncio.sleep(0.5)
        load, before = Open(stack.port, rate, seconds), _cpu(pid)
        await load.run()
        costs[which].append((_cpu(pid) - before) / max(load.sent, 1))
        for watcher in watchers:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await watcher
        await asyncio.sleep(1.0)
    return _tell(costs, rate)


async def _watch(admin: str) -> None:
    """One open page."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{admin}/page/events") as answer,
    ):
        async for line in answer.content:
            if line.startswith(b"data: "):
                async with session.get(f"{admin}/page/decisions") as table:
                    await table.read()


async def _record(admin: str, seconds: float) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    url = f"{admin}/record?seconds={seconds + 2:g}"
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
        answer.raise_for_status()
        async for _ in answer.content:
            pass


def _cpu(pid: int) -> float:
    """Seconds of user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tell(costs: dict[str, list[float]], rate: float) -> float:
    without, with_ = (statistics.median(costs[which]) for which in ("without", "with"))
    for which, found in costs.items():
        print(f"{which:8} {' '.join(f'{cost * 1e6:.0f}' for cost in found)} us of CPU a request")
    print(
        f"{rate:g} requests/s, {_PAGES} pages open and recording: {with_ / without:.3f} times (at most {_MOST})"
    )
    return with_ / without


if __name__ == "__main__":
    main()
