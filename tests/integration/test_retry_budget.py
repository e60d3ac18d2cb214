"""Retries have a budget: replicas that all refuse are not asked several times as often as clients ask."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK

CLIENTS, EACH = 32, 12


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    budget = {"retries": {"share": 0.2, "least": 1}}
    with Stack(StackSettings(replicas=3, engine=QUICK, pool=budget, redis_url="")) as running:
        yield running


async def test_a_storm_of_503_is_answered_and_not_multiplied(stack: Stack) -> None:
    """At most a fifth of what runs is a retry. Without a budget each request comes three times."""
    statuses: list[int] = []

    async def client(session: aiohttp.ClientSession) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        for _ in range(EACH):
            async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                statuses.append(answer.status)

    limit = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limit, connector=connector) as session:
        for replica in stack.replicas:
            fault = {"error": {"status": 503, "share": 1}}
            async with session.post(f"http://{replica}/_control", json=fault) as answer:
                assert answer.status == 200
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
        received = 0
        for replica in stack.replicas:
            async with session.get(f"http://{replica}/_truth") as answer:
                received += json.loads(await answer.text())["requests"]["received"]
    assert set(statuses) == {503}
    assert received < 2 * len(statuses), f"{received} tries for {len(statuses)} requests"
    assert _overflows(stack) > 0


def _overflows(stack: Stack) -> int:
    """Retries that Envoy did not make, as the budget was spent."""
    url = f"http://127.0.0.1:{stack.envoy_admin}/stats?filter=kvsteer_pool_demo.upstream_rq_retry_overflow"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return int(answer.read().decode().rsplit(" ", 1)[1])
