"""`kvsteer serve --workers 2` behind a real Envoy: both steer, and one that is killed costs no request."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from extproc.demo.drive import Outcome, ask
from extproc.demo.processes import free_port
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until, until_async
from tests.integration.patience import patient

#: Streamed requests a second.
RATE = 60.0


class Workers(Stack):
    """The stack with one parent of two workers; their numbers are those of gateways."""

    def start_gateways(self) -> None:
        grpc, admin = free_port(2), free_port(2)
        self.gateway_ports = [(grpc, admin), (grpc + 1, admin + 1)]
        path = self.folder / "kvsteer.yaml"
        path.write_text(yaml.safe_dump(self.configuration(0)))
        argv = [sys.executable, "-m", "extproc", "serve", "-c", str(path), "--workers", "2"]
        child = self._child("workers", argv)
        for number in (0, 1):
            self.wait_gateway(number, child)

    def configuration(self, number: int) -> dict[str, Any]:
        """Of both; Envoy is told of each worker by `workers` alone."""
        made = super().configuration(number)
        return {**made, "workers": 2, "envoy": {**made["envoy"], "gateways": []}}

    def pid(self, number: int) -> int:
        """The newest process of a worker."""
        lines = [
            json.loads(line)
            for line in self.children["workers"].log.read_text().splitlines()
            if line[:1] == "{"
        ]
        return int([s["pid"] for s in lines if s["event"] == "worker started" and s["worker"] == number][-1])

    def metric(self, number: int, name: str) -> float:
        """The sum of a metric's series; 0 while the worker is away."""
        url = f"http://127.0.0.1:{self.gateway_ports[number][1]}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=patient(2)) as answer:
            found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE)
            return sum(map(float, found))
        return 0.0

    def shares(self) -> bool:
        """Whether each worker hears the other."""
        return all(self.metric(n, "kvsteer_journal_peers") == 1 and self.ready(n) for n in (0, 1))

    def ready(self, number: int) -> bool:
        """Whether it serves, and shares."""
        ready = self.admin_status(number, "/readyz") == 200
        return ready and self.admin("/healthz", number)["shared"] == "ok"


@pytest.fixture(params=["embedded", "given"])
def stack(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """With the Redis that the workers' parent starts, and with one that the configuration names."""
    url = "" if request.param == "embedded" else None
    with Workers(StackSettings(engine=QUICK, redis_url=url)) as running:
        until(running.shares, 15, "both workers share")
        yield running


class Traffic:
    """Streamed requests through Envoy, open loop, until they are stopped."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> list[Outcome]:
        began, tasks, rng = time.monotonic(), [], random.Random(1)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for number in itertools.count():
                await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0))
                if self._stopped.is_set():
                    return list(await asyncio.gather(*tasks))
                messages = [{"role": "user", "content": f"chat {rng.randrange(50)} " * 200}]
                body = {"model": "demo", "messages": messages, "max_tokens": 30, "stream": True}
                tasks.append(asyncio.create_task(ask(session, self._stack.url, orjson.dumps(body))))
        raise AssertionError

    async def unharmed(self) -> int:
        """Stop; every request was answered in full. How many there were."""
        self._stopped.set()
        outcomes = await self._task
        bad = sorted({o.failure for o in outcomes if o.failure})
        assert not bad, f"{sum(1 for o in outcomes if o.failure)} of {len(outcomes)} requests failed: {bad}"
        return len(outcomes)


async def test_requests_are_spread_over_both_and_a_killed_worker_costs_none_and_is_back(
    stack: Workers,
) -> None:
    def steered(number: int) -> float:
        return stack.metric(number, "kvsteer_exchanges_total")

    async def seen(condition: Any, seconds: float, what: str) -> None:
        async def asked() -> bool:
            return bool(await asyncio.to_thread(condition))

        await until_async(asked, seconds, what)

    traffic = Traffic(stack)
    await seen(lambda: min(steered(0), steered(1)) > 50, 15, "both workers steer")
    before, killed = steered(1), stack.pid(1)
    os.kill(killed, signal.SIGKILL)
    await seen(lambda: stack.pid(1) != killed, 10, "the parent starts the worker again")
    await seen(stack.shares, 20, "it serves, and both hear each other again")
    again = [steered(number) for number in (0, 1)]
    await seen(
        lambda: steered(0) > again[0] + 30 and steered(1) > again[1] + 30, 15, "both workers steer again"
    )
    sent = await traffic.unharmed()
    counted = steered(0) + steered(1)
    assert counted < sent - before / 2, f"{counted} of {sent}: what the killed worker counted is gone with it"
    assert all(stack.metric(number, "kvsteer_internal_errors_total") == 0 for number in (0, 1))
    until(
        lambda: not any(stack.metric(n, "kvsteer_ledger_tokens") for n in (0, 1)),
        5,
        "nothing is left in flight",
    )
    assert stack.admin("/state", 1)["journal"]["snapshot"]["loaded"] > 0, "it came back warm"
