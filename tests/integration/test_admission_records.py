"""Every refusal, wait and degrade of real requests behind Envoy is in its record, with numbers that lead to it."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until, until_async

#: Tokens that may be in flight in the pool, and what a request takes of them beside its short prompt.
TOTAL, EACH = 1000, 256
#: An answer takes as long as any test does: whoever is let go holds its tokens until its client leaves.
_SLOW = ["--step-ms", "1000", "--tokens-per-chunk", "1"]
TENANTS: list[dict[str, Any]] = [
    {"name": "holder", "ids": ["holder"]},
    {"name": "small", "ids": ["small"], "tokens_in_flight": EACH - 1},
    {"name": "capped", "ids": ["capped"], "tokens_in_flight": 2 * EACH},
    {"name": "rated", "ids": ["rated"], "tokens_per_minute": 600},
    {"name": "bodied", "ids": ["bodied"], "body": 50},
    {"name": "hasty", "ids": ["hasty"], "waiting": 0},
    {"name": "lower", "ids": ["lower"], "degrade": [{"priority": 10}]},
    {"name": "moved", "ids": ["moved"], "degrade": [{"pool": "spare"}]},
    {"name": "lesser", "ids": ["lesser"], "degrade": [{"model": "small"}]},
    {"name": "patient", "ids": ["patient"]},
    {"name": "brief", "ids": ["brief"]},
    {"name": "over", "ids": ["over"]},
]
ADMISSION = {
    "mode": "on",
    "identity": {"source": "header", "header": "x-team"},
    "budget": {"replica_tokens": TOTAL, "cap": TOTAL, "every": "600s"},
    "queue": {"wait": "60s", "deadline_header": "x-patience"},
    "tenants": TENANTS,
}


class TwoPools(Stack):
    """Both engines know `large` alone; the other one's pool serves it as `small`."""

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        (pool,), (first, other) = made["pools"], self.replicas or ["127.0.0.1:1", "127.0.0.1:2"]
        made["pools"] = [
            {**pool, "models": ["large"], "replicas": [first]},
            {
                **pool,
                "name": "spare",
                "models": ["small"],
                "served_as": {"small": "large"},
                "replicas": [other],
            },
        ]
        return made


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    admission = {"gateway": {"admission": ADMISSION}}
    settings = StackSettings(replicas=2, model="large", redis_url="", engine=[*QUICK, *_SLOW], **admission)
    with TwoPools(settings) as running:
        until(lambda: totals(running) == [TOTAL, TOTAL], 10, "the budgets are what the replicas bear")
        yield running


def metric(stack: Stack, name: str) -> list[float]:
    """The values of a metric."""
    url = f"http://127.0.0.1:{stack.gateway_ports[0][1]}/metrics"
    with urllib.request.urlopen(url, timeout=60) as said:
        lines = said.read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")]


def totals(stack: Stack) -> list[float]:
    return metric(stack, "kvsteer_admission_budget_tokens")


async def in_flight(stack: Stack) -> float:
    """Tokens, in all pools."""
    return sum(await asyncio.to_thread(metric, stack, "kvsteer_admission_tenant_used_tokens"))


class Client:
    """Requests whose answers have begun, until they are let go of."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession) -> None:
        self.stack, self.session = stack, session
        self.going: list[aiohttp.ClientResponse] = []

    async def send(self, team: str, tokens: int = EACH, **headers: str) -> int:
        """The status of a request, which stays in flight if it is served."""
        body = {
            "model": "large",
            "stream": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": f"{team} asks"}],
        }
        url, told = f"{self.stack.url}/v1/chat/completions", {"x-team": team, **headers}
        said = await self.session.post(url, json=body, headers=told)
        if said.status == 200:
            self.going.append(said)
        return said.status

    async def leave(self, count: int = 1) -> None:
        """The clients of the last requests leave."""
        before = await in_flight(self.stack)
        for _ in range(count):
            self.going.pop().close()

        async def settled() -> bool:
            return await in_flight(self.stack) <= before - count * EACH

        await until_async(settled, 10, "what they had in flight is settled")

    async def record(self, team: str) -> dict[str, Any]:
        """What admission said of a tenant's last request, and where that went."""
        said = await asyncio.to_thread(self.stack.admin, "/decisions?last=100")
        last = next(each for each in said["decisions"] if each["admission"]["tenant"] == team)
        return {**last["admission"], "choice": last["choice"], "model": last["request"].get("model")}


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    """The pool is full: three requests are in flight, and a fourth has no room."""
    async with aiohttp.ClientSession() as session:
        made = Client(stack, session)
        for _ in range(3):
            assert await made.send("holder") == 200
        yield made
        await made.leave(len(made.going))


def is_full(told: dict[str, Any]) -> bool:
    """Whether the numbers say that the request had no room in its pool."""
    return bool(told["pool_used_here"] + told["tokens"] > told["pool_total"] == TOTAL)


async def test_a_request_that_goes_to_another_pool_or_model_has_the_numbers_of_the_pool_that_was_full(
    stack: Stack, client: Client
) -> None:
    for team, to, model in (
        ("moved", {"pool": "spare"}, "large"),
        ("lesser", {"model": "small"}, "small"),
    ):
        assert await client.send(team) == 200
        told = await client.record(team)
        assert (told["verdict"], told["reason"], told["pool"]) == ("degrade", "pool_full", "spare")
        assert (told["degraded_to"], told["choice"], told["model"]) == (to, stack.replicas[1], model)
        assert is_full(told)
        assert EACH < told["tokens_there"] < TOTAL


async def test_a_request_that_goes_at_a_lower_priority_takes_what_is_above_the_budget(client: Client) -> None:
    assert await client.send("lower") == 200
    told = await client.record("lower")
    assert (told["verdict"], told["reason"], told["degraded_to"]) == (
        "degrade",
        "pool_full",
        {"priority": "10"},
    )
    assert is_full(told)
    assert told["pool_used_here"] + told["tokens"] <= 1.1 * TOTAL


async def test_whoever_is_refused_for_its_tenants_sake_has_its_tenants_bounds_in_the_record(
    client: Client,
) -> None:
    assert await client.send("small") == 429
    told = await client.record("small")
    assert (told["verdict"], told["reason"]) == ("reject", "tenant_too_large")
    assert told["tokens"] > told["tenant_in_flight_most"]

    assert await client.send("bodied") == 429
    told = await client.record("bodied")
    assert (told["verdict"], told["reason"]) == ("reject", "tenant_too_large")
    assert told["bytes"] > told["bytes_allowed"] == 50

    assert await client.send("rated", **{"x-patience": "0.3"}) == 429
    told = await client.record("rated")
    assert (told["verdict"], told["reason"]) == ("reject", "tenant_rate")
    assert told["rate_left"] < told["tokens"]
    assert told["per_minute"] == 600

    assert await client.send("hasty") == 429
    told = await client.record("hasty")
    assert (told["verdict"], told["reason"]) == ("reject", "tenant_queue_full")
    assert told["tenant_waiting"] == told["tenant_waiting_most"] == 0
    assert is_full(told)

    await client.leave()
    assert await client.send("capped") == 200
    assert await client.send("capped", **{"x-patience": "0.3"}) == 429
    told = await client.record("capped")
    assert (told["verdict"], told["reason"]) == ("reject", "tenant_in_flight")
    assert told["tenant_in_flight"] + told["tokens"] > told["tenant_in_flight_most"] == 2 * EACH


async def test_whoever_would_wait_too_long_or_did_has_both_times_in_the_record(client: Client) -> None:
    for who, patience in (("brief", 0.001), ("over", 4.0)):
        assert await client.send(who, **{"x-patience": str(patience)}) == 503
        told = await client.record(who)
        assert (told["verdict"], told["may_wait"]) == ("reject", patience)
        if told["reason"] == "waited_too_long":  # nobody waited before, so that no wait could be predicted
            assert told["waited"] >= patience
        else:
            assert told["reason"] == "deadline"
            assert told["retry_after"] > patience
        assert is_full(told)


async def test_whoever_waited_and_went_has_the_wait_and_why_in_the_record(
    stack: Stack, client: Client
) -> None:
    waiting = asyncio.create_task(client.send("patient"))

    async def waits() -> bool:
        return sum(await asyncio.to_thread(metric, stack, "kvsteer_admission_waiting_requests")) == 1

    await until_async(waits, 10, "it waits")
    client.going.pop(0).close()
    assert await waiting == 200
    told = await client.record("patient")
    assert (told["verdict"], told["reason"]) == ("queue", "pool_full")
    assert 0 < told["waited"] <= told["may_wait"] == 60
    assert is_full(told)
