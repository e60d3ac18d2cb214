"""Admission through a real Envoy, a real Redis and several gateways: caps over all of them, identities, outages."""

import asyncio
import hashlib
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until, until_async
from tests.integration.patience import bar, patient

pytestmark = pytest.mark.alone

GATEWAYS = 4
#: 6,000 tokens a minute are 100 a second; 500 at once.
PER_MINUTE = 6000
#: Clients that ask for far more: three a second are served of theirs, and each waits for two seconds at most.
RATED = 12
KEY = "sk-test"
ADMISSION = {
    "mode": "on",
    "queue": {"wait": "2s"},
    "identity": {"source": "api_key", "header": "authorization"},
    "tenants": [
        {"name": "rated", "ids": [hashlib.sha256(KEY.encode()).hexdigest()], "tokens_per_minute": PER_MINUTE}
    ],
}
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    settings = StackSettings(replicas=2, gateways=GATEWAYS, engine=[*QUICK], gateway={"admission": ADMISSION})
    with Stack(settings) as running:
        until(lambda: not any(alone(running)), 10, "every gateway traded leases")
        yield running


def exposition(stack: Stack, gateway: int) -> str:
    url = f"http://127.0.0.1:{stack.gateway_ports[gateway][1]}/metrics"
    with urllib.request.urlopen(url, timeout=patient(5)) as said:
        text: str = said.read().decode()
    return text


def metric(stack: Stack, gateway: int, name: str) -> dict[str, float]:
    """Samples of a metric, by their labels as text."""
    found = {}
    for line in exposition(stack, gateway).splitlines():
        if line.startswith(name + "{"):
            labels, _, value = line[len(name) :].rpartition(" ")
            found[labels] = float(value)
    return found


def alone(stack: Stack) -> list[bool]:
    return [any(metric(stack, i, "kvsteer_admission_alone").values()) for i in range(GATEWAYS)]


async def flood(
    stack: Stack, seconds: float, headers: dict[str, str], clients: int = 6
) -> tuple[Counter[int], float, float]:
    """Requests of so many clients, one after the other: how they were answered, tokens served, seconds it took."""
    answers: Counter[int] = Counter()
    tokens = 0.0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal tokens
        while time.monotonic() < ends:
            async with session.post(f"{stack.url}/v1/chat/completions", json=BODY, headers=headers) as said:
                answers[said.status] += 1
                told: dict[str, Any] = await said.json()
                if said.status == 200:
                    tokens += told["usage"]["total_tokens"]
                else:
                    assert told["error"]["code"] == "rate_limit_exceeded"
                    assert int(said.headers["retry-after"]) >= 1
                    assert said.headers["x-ratelimit-limit-tokens"] == str(PER_MINUTE)
            await asyncio.sleep(0.05)

    began = time.monotonic()
    ends = began + seconds
    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return answers, tokens, time.monotonic() - began


async def test_a_rate_holds_over_all_gateways_and_the_rest_is_told_when_to_come_back(fleet: Stack) -> None:
    answers, tokens, took = await flood(fleet, 8.0, {"authorization": f"Bearer {KEY}"}, RATED)
    assert set(answers) == {200, 429}
    # 100 a second and the 500 that may be had at once, half of which the gateways keep; within a request each.
    assert 0.6 * 800 < tokens <= 1.02 * (100 * took + 500) + GATEWAYS * 35


async def test_a_tenant_that_a_client_claims_to_be_has_no_effect(fleet: Stack) -> None:
    for headers in (
        {"x-tenant": "rated"},
        {"x-kvsteer-tenant": "rated"},
        {"authorization": "Bearer wrong"},
        {},
    ):
        answers, *_ = await flood(fleet, 0.5, headers)
        assert set(answers) == {200}
    told = Counter(
        record["admission"]["tenant"]
        for i in range(GATEWAYS)
        for record in fleet.admin("/decisions?last=20", i)["decisions"]
    )
    assert told["others"] > 0


async def test_a_key_is_nowhere_to_be_seen(fleet: Stack) -> None:
    await flood(fleet, 0.3, {"authorization": f"Bearer {KEY}"})
    for i in range(GATEWAYS):
        assert KEY not in exposition(fleet, i)
        assert KEY not in str(fleet.admin("/decisions?last=1000", i))


async def test_without_redis_the_caps_hold_and_leases_are_back_within_5_seconds(fleet: Stack) -> None:
    redis = fleet.children["redis"]
    redis.signal(signal.SIGSTOP)
    try:
        await until_async(_async(lambda: all(alone(fleet))), 10, "every gateway knows that it is alone")
        answers, tokens, took = await flood(fleet, 6.0, {"authorization": f"Bearer {KEY}"}, RATED)
    finally:
        redis.signal(signal.SIGCONT)
    assert set(answers) <= {200, 429}
    assert tokens <= 1.1 * (100 * took + 500) + GATEWAYS * 35
    began = time.monotonic()
    await until_async(_async(lambda: not any(alone(fleet))), 5, "every gateway trades again")
    assert time.monotonic() - began < bar(5)
    answers, *_ = await flood(fleet, 1.0, {})
    assert set(answers) == {200}


async def test_redis_killed_and_started_empty_under_load_costs_no_client_anything(fleet: Stack) -> None:
    redis, seconds = fleet.children["redis"], 9.0
    rated = asyncio.create_task(flood(fleet, seconds, {"authorization": f"Bearer {KEY}"}, RATED))
    others = asyncio.create_task(flood(fleet, seconds, {}))
    await asyncio.sleep(1.0)
    redis.kill()
    await asyncio.sleep(2.0)
    redis.restart()
    began = time.monotonic()
    await until_async(_async(lambda: not any(alone(fleet))), 5, "every gateway trades again within 5 s")
    assert time.monotonic() - began < bar(5)
    (answers, tokens, took), (free, *_) = await rated, await others
    assert set(answers) == {200, 429}
    assert set(free) == {200}
    # All the time at 100 a second, and the 500 that may be had at once: no second budget by any restart.
    assert 0.5 * 900 < tokens <= 1.1 * (100 * took + 500) + GATEWAYS * 35


def _async(condition: Any) -> Any:
    async def ask() -> Any:
        return await asyncio.to_thread(condition)

    return ask
