"""A day's soak in minutes: a whole gateway in one process, its clock moved by hand, 864,000 requests. Is memory flat?

    .venv/bin/python -m benchmarks.soak_day [--hours 24] [--rate 10] [--check]

All of a gateway but its sockets to Envoy, with everything that shows what it does switched on: decision records of
every request, an open page over HTTP, a recording, a span of every request sent to a collector over HTTP, metrics
rendered. Every request is one that never was (benchmarks/day.py); a replica leaves and another comes every ten
minutes, one restarts every twenty, so that a day has 288 replicas. Beside it `make soak` has an hour through Envoy.

Looked at every quarter of an hour, after a garbage collection, from a sixth of the time on: resident memory and the
number of objects. Promised: fitted lines rise by less than 3 %, or 2 MB and 2,000 objects.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import random
import sys
from collections import Counter
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import aiohttp
import uvloop
from prometheus_client import generate_latest

from benchmarks.day import Client, Engines, clean_end, log_entry
from benchmarks.soak import growth, resident_of
from extproc.io import clock, logs

_POOLS: Final = ("large", "small")
_THERE: Final = 6
#: Seconds between looks; between a replica's going and the next's; between two restarts; and of what is read slowly.
_LOOK, _CHURN, _RESTART, _SLOWLY = 900, 600, 1200, 30
#: Part of the time after which everything was dropped once, growth that is allowed, and what is noise.
_WARM, _MOST, _BYTES, _OBJECTS = 1 / 6, 0.03, 2e6, 2000
_EPOCH: Final = 1.7e9


class Look(NamedTuple):
    """One look: when, in seconds of the day; resident bytes; objects that the garbage collector knows."""

    at: float
    bytes: float
    objects: int


class Clock:
    """The day's: everything outside the core reads it."""

    def __init__(self) -> None:
        self.now = 0.0
        clock.monotonic = lambda: self.now
        clock.wall = lambda: _EPOCH + self.now


def settings(collector: str) -> Any:
    """Everything on; budgets that most keep."""
    from extproc.config import parse
    from extproc.envoyconfig.yamltext import to_yaml

    capacity = {"kv_tokens": 200_000, "max_running": 128}
    tree = {
        "gateway_id": "gw-day",
        "grpc": {"address": "127.0.0.1:0"},
        "admin": {"address": "127.0.0.1:0"},
        "tracing": {"endpoint": collector, "share": 1.0},
        "log": {"level": "error"},
        "admission": {
            "mode": "on",
            "identity": {"source": "header", "header": "x-tenant"},
            "tenants": [
                {"name": "one", "ids": ["one"], "share": 0.5},
                {"name": "two", "ids": ["two"], "tokens_per_minute": 40_000},
            ],
            "queue": {"wait": "0s"},
        },
        "pools": [
            {
                "name": name,
                "engine": "vllm",
                "models": [f"chat-{name}"],
                "replicas": list(_engines(number).addresses),
                "capacity": capacity,
                "shadow": {"name": "cache_aware"},
            }
            for number, name in enumerate(_POOLS)
        ],
    }
    return parse(to_yaml(tree), "day")


def _engines(number: int) -> Engines:
    return Engines(random.Random(number), _THERE, 1 + number * 65_536)


class Day:
    """One day of one gateway.

    Attributes:
        looks: what was seen.
        requests, refused: how many came, and of those how many no replica got.
    """

    def __init__(self, collector: str) -> None:
        self._clock = Clock()
        from extproc.app import Gateway
        from extproc.io.recorder import Recording

        chosen = settings(collector)
        logs.configure(chosen.log)
        self.gateway = Gateway(chosen)
        self._rng = random.Random(11)
        self._client = Client(5)
        self._engines = {pool.name: _engines(n) for n, pool in enumerate(self.gateway.steering.pools)}
        self._open: list[tuple[float, int, Any, str]] = []
        self.recording = self.gateway.records.recorder = Recording(0.0)
        self.looks: list[Look] = []
        self.kinds: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.requests = self.refused = 0

    async def run(self, seconds: int, rate: int) -> None:
        """All of it."""
        from extproc.serving import calm_the_collector

        tracer = self.gateway.tracer
        assert tracer is not None
        await self.gateway.admin.start()
        watching = asyncio.create_task(self._watch())
        calm_the_collector()
        async with tracer.session() as session:
            for second in range(seconds):
                for _ in range(rate):
                    self._clock.now += 1.0 / rate
                    self._request()
                    self._end_what_is_over()
                await self._second(second)
                if second % _SLOWLY == 0:
                    generate_latest(self.gateway.prometheus)
                    while len(tracer) and await tracer.send(session):
                        pass
                if second % _LOOK == 0 and second >= seconds * _WARM:
                    self._look()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    def _request(self) -> None:
        """One comes, and is decided."""
        asked = self._client.request()
        session = self.gateway.exchanges.session()
        for message in asked.messages:
            _, close, _ = session.receive(message)
            if close:
                break
        self.requests += 1
        heappush(self._open, (self._clock.now + asked.lasts, self.requests, session, asked.name))

    def _end_what_is_over(self) -> None:
        """Nine of ten answers end cleanly; of one in twenty nobody tells; others' clients leave, as the log says."""
        while self._open and self._open[0][0] <= self._clock.now:
            _, _, session, name = heappop(self._open)
            decision = session._exchange.decision
            replica = decision.replica if decision is not None else None
            drawn = self._rng.random()
            if replica is None:
                self.refused += 1
            elif drawn < 0.9:
                session.receive(clean_end(self._rng, replica.address, int(decision.tokens)))
            session.end()
            if replica is not None and drawn > 0.95:
                self.gateway.exchanges.logged(log_entry(name, replica.address))

    async def _second(self, second: int) -> None:
        """What a gateway does by the clock, and engines say."""
        gateway, now = self.gateway, self._clock.now
        for pool in gateway.steering.pools:
            engines = self._engines[pool.name]
            if second % _CHURN == _CHURN - 1:
                gone, came = engines.replace()
                pool.leave(gone)
                pool.join(came, now)
                gateway.metrics.forget_replicas(pool.name, (gone,))
            if second % _RESTART == _RESTART - 1:
                engines.restart(now)
            for address, sample in engines.samples(now):
                gateway.intake.scraped(pool, address, sample)
        gateway._tick()
        gateway.endings.sweep(now)
        if gateway.admission is not None:
            gateway.admission.look()
            await gateway.admission.tick()
        await gateway.page.tick()
        if second % 5 == 0:
            gateway.steering.expire(now)
        while self.recording.lines():
            pass
        await asyncio.sleep(0)

    async def _watch(self) -> None:
        """A page that is open, and asks for the table of decisions now and then."""
        origin = f"http://127.0.0.1:{self.gateway.admin.port}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{origin}/page/events") as answer,
        ):
            told = 0
            async for line in answer.content:
                told += line.startswith(b"data: ")
                if told % _SLOWLY == 0:
                    async with session.get(f"{origin}/page/decisions") as table:
                        await table.read()

    def _look(self) -> None:
        gc.collect()
        objects = gc.get_objects()
        self.looks.append(Look(self._clock.now, resident_of(os.getpid()), len(objects)))
        kinds = Counter(type(found).__name__ for found in objects)
        self.kinds = (
            self.kinds[0] or kinds,
            kinds,
        )  # of the first look and the last: what grew is not to be this


async def _sink() -> asyncio.Server:
    """A collector that takes everything."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    return await asyncio.start_server(take, "127.0.0.1", 0, limit=2**20)


async def _soak(hours: float, rate: int) -> Day:
    server = await _sink()
    day = Day(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces")
    await day.run(round(hours * 3600), rate)
    server.close()
    return day


def tell(day: Day) -> bool:
    """Print what was seen; whether it held."""
    held, tracer = True, day.gateway.tracer
    for name, rows, noise in (
        ("MB", [(look.at, look.bytes / 1e6) for look in day.looks], _BYTES / 1e6),
        ("objects", [(look.at, float(look.objects)) for look in day.looks], _OBJECTS),
    ):
        size, grown = growth(rows)
        held = held and grown <= max(noise, size * _MOST)
        shown = " ".join(f"{value:.0f}" for _, value in rows[:: max(len(rows) // 8, 1)])
        print(f"{size:10.1f} {name:8} grown by {grown:+.2f} ({grown / size:+.1%}): {shown}")
    more = (day.kinds[1] - day.kinds[0]).most_common(6)
    print(f"more than at first: {', '.join(f'{kind} {count}' for kind, count in more)}")
    spans = tracer.counts if tracer is not None else {}
    print(
        f"{day.requests} requests ({day.refused} refused), {spans.get('sent', 0)} spans taken, "
        f"{spans.get('dropped', 0) + spans.get('failed', 0)} lost: {'held' if held else 'missed'}"
    )
    return held


def main() -> None:
    """Run and print; with --check exit 1 when the promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--rate", type=int, default=10, help="requests a second of the day")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        day = runner.run(_soak(args.hours, args.rate))
    if not tell(day) and args.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
