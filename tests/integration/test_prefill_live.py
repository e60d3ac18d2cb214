"""Prompts computed apart, behind a real Envoy: the same load on four replicas with roles and on four without."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until_async

pytestmark = pytest.mark.alone

#: Seconds of load on each pool.
SECONDS = 4.0
#: A step with tokens takes 40 ms, so that neither this machine nor the test is what is measured.
_ENGINE = "--prefill-speed 20000 --step-ms 40 --transfer-speed 200000 --kv-tokens 1000000"
ENGINE = _ENGINE.split()
SHORT, LONG = 12, 2
#: Bytes of a long prompt: 10,000 tokens, half a second of computing.
BYTES = 40_000


class TwoPools(Stack):
    """Eight replicas: four of a pool without roles, and two that compute and two that answer."""

    def configuration(self, number: int) -> dict[str, Any]:
        """kvsteer.yaml with both pools."""
        whole, apart = self.replicas[:4], self.replicas[4:]
        pool = {"engine": "vllm", "metrics": {"timeout": "20s", "stale_after": "120s"}}
        roles = [
            {"address": address, "role": "prefill" if i < 2 else "decode"} for i, address in enumerate(apart)
        ]
        pools = [
            {**pool, "name": "whole", "models": ["w"], "served_as": {"w": "demo"}, "replicas": whole},
            {
                **pool,
                "name": "apart",
                "models": ["a"],
                "served_as": {"a": "demo"},
                "replicas": roles,
                "prefill": {"enabled": True, "stall": 4.0},
            },
        ]
        return {**super().configuration(number), "pools": pools}


@pytest.fixture
def stack() -> Iterator[TwoPools]:
    """New for each test: engines' clocks count from their start, and replicas that were killed warm up."""
    with TwoPools(StackSettings(replicas=8, engine=ENGINE, redis_url="")) as running:
        yield running


class Load:
    """Clients that ask for one model until they are told to stop.

    Attributes:
        bad: what was no complete answer with 200, in words.
        gaps: seconds between two pieces of one answer, as clients saw them.
        served: answers by the replica that gave them.
    """

    def __init__(self, url: str, model: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._numbers = itertools.count(1)
        self._over = False
        self.bad: list[str] = []
        self.gaps: list[float] = []
        self.served: Counter[str] = Counter()

    async def run(self, until: Coroutine[Any, Any, None]) -> None:
        """Ask until that is over, and let what is under way end."""
        limit = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as session:
            short = [self._client(session, 200, 40) for _ in range(SHORT)]
            long = [self._client(session, BYTES, 8) for _ in range(LONG)]
            asking = asyncio.gather(*short, *long)
            try:
                await until
            finally:
                self._over = True
                await asking

    async def _client(self, session: aiohttp.ClientSession, size: int, output: int) -> None:
        while not self._over:
            number = next(self._numbers)
            text = (f"{self._model} {number} " * size)[:size]
            body = {
                "model": self._model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": output,
                "stream": True,
            }
            try:
                await self._ask(session, body)
            except aiohttp.ClientError as error:
                self.bad.append(f"{size} bytes: {type(error).__name__}: {error}")

    async def _ask(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        async with session.post(self._url, json=body) as answer:
            before, last = 0.0, b""
            async for line in answer.content:
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    self.gaps += [now - before] if before else []
                    before, last = now, line
            if answer.status != 200 or last.strip() != b"data: [DONE]":
                self.bad.append(f"{answer.status}: ended by {last[:80]!r}")
            self.served[answer.headers.get("x-kvsteer-replica", "")] += 1


async def _get(address: str, path: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return await answer.text()


async def inter_token_p99(replicas: list[str]) -> float:
    """Seconds below which 99 of 100 steps between two tokens are, by the engines' own clocks: a bucket's edge."""
    buckets: Counter[float] = Counter()
    for address in replicas:
        for line in (await _get(address, "/metrics")).splitlines():
            if line.startswith("vllm:inter_token_latency_seconds_bucket"):
                edge = float(line.split('le="')[1].split('"')[0])
                buckets[edge] += int(float(line.rsplit(" ", 1)[1]))
    total = buckets[float("inf")]
    return next(edge for edge in sorted(buckets) if buckets[edge] >= 0.99 * total)


async def requests_of(address: str) -> dict[str, int]:
    """What an engine says became of its requests."""
    found: dict[str, int] = json.loads(await _get(address, "/_truth"))["requests"]
    return found


async def test_long_prompts_hold_up_no_answers_where_they_are_computed_apart(stack: TwoPools) -> None:
    whole, apart = Load(stack.url, "w"), Load(stack.url, "a")
    await whole.run(asyncio.sleep(SECONDS))
    await apart.run(asyncio.sleep(SECONDS))
    assert whole.bad + apart.bad == []
    assert set(apart.served) <= set(stack.replicas[6:]), "who only computes prompts answers nobody"
    undivided = await inter_token_p99(stack.replicas[:4])
    divided = await inter_token_p99(stack.replicas[4:])
    assert divided <= 0.6 * undivided, f"{divided} s apart, {undivided} s undivided"
    prefilled = [(await requests_of(address))["prefilled"] for address in stack.replicas[6:]]
    assert sum(prefilled) >= LONG


async def test_replicas_that_compute_prompts_may_die_without_an_error(stack: TwoPools) -> None:
    """Both at once, while they compute: what they were asked for is computed where it is answered."""
    load = Load(stack.url, "a")

    async def kill() -> None:
        async def is_computing() -> bool:
            truths = [json.loads(await _get(address, "/_truth")) for address in stack.replicas[4:6]]
            return any(truth["running"] for truth in truths)

        await until_async(is_computing, 60, "a prompt is being computed")
        async with aiohttp.ClientSession() as session:
            for address in stack.replicas[4:6]:
                async with session.post(
                    f"http://{address}/_control", json={"restart": {"down": 3}}
                ) as answer:
                    assert answer.status == 200

        await asyncio.sleep(4.0)

    await load.run(kill())
    assert load.bad == []
    assert sum(load.served.values()) > SHORT
