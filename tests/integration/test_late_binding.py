"""Requests that wait in the gateway: let go in time, freed when the client leaves, harmless when the gateway dies."""

import asyncio
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from extproc.demo.drive import Outcome, ask
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import bar, patient

pytestmark = pytest.mark.alone

JSON = {"content-type": "application/json"}
SPEED = 2000  # prompt tokens a second
ENGINE = ["--prefill-speed", str(SPEED), "--step-budget", "256", "--tokens-per-chunk", "4"]
POOL = {"late_binding": True, "capacity": {"prefill_speed": float(SPEED)}}


def made(replicas: int = 1, gateways: int = 1, transport: str = "fast") -> Stack:
    """A stack that binds late: slow engines, first tokens observed."""
    redis = {} if gateways > 1 else {"redis_url": ""}
    return Stack(
        StackSettings(
            replicas=replicas,
            gateways=gateways,
            engine=ENGINE,
            pool=POOL,
            gateway={"feedback": {"observer": True}},
            transport=transport,
            **redis,
        )
    )


@pytest.fixture(scope="module", params=["grpcio", "fast"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with made(transport=request.param) as running:
        yield running


def payload(name: str, tokens: int) -> bytes:
    """A prompt of about so many tokens that shares nothing with one of another name."""
    text = (f"{name} " * (4 * tokens))[: 4 * tokens]
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": True}
    return orjson.dumps(body)


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=JSON) as session:
        yield session


def metric(stack: Stack, name: str, gateway: int = 0) -> float:
    """The sum of a metric's series of a gateway; labels may be part of the name."""
    url = f"http://127.0.0.1:{stack.gateway_ports[gateway][1]}/metrics"
    with urllib.request.urlopen(url, timeout=patient(2.0)) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def held(stack: Stack) -> int:
    return int(sum(metric(stack, "kvsteer_held_requests", n) for n in range(stack.settings.gateways)))


def held_by_others(stack: Stack) -> list[int]:
    return [stack.admin("/state", n)["journal"]["held_by_others"] for n in (0, 1)]


async def begun(tasks: "list[asyncio.Task[Outcome]]", stack: Stack, count: int) -> None:
    """So many requests wait in the gateways."""
    await asyncio.to_thread(until, lambda: held(stack) == count, 5, f"{count} requests are held")
    assert not any(task.done() for task in tasks)


async def test_an_idle_fleet_holds_nothing(stack: Stack) -> None:
    async with client() as session:
        for number in range(3):
            outcome = await ask(session, stack.url, payload(f"idle{number}", 40))
            assert not outcome.failure
    assert [record["held_seconds"] for record in stack.admin("/decisions?last=3")["decisions"]] == [0.0] * 3


async def test_a_request_waits_until_the_replica_is_nearly_free_and_its_wait_is_no_engine_time(
    stack: Stack,
) -> None:
    async with client() as session:
        first = asyncio.create_task(ask(session, stack.url, payload("first", 4 * SPEED)))  # 4 s of work
        await asyncio.to_thread(
            until, lambda: metric(stack, "kvsteer_ledger_tokens") > SPEED, 5, "it was sent"
        )
        began = time.monotonic()
        second = asyncio.create_task(ask(session, stack.url, payload("second", SPEED // 10)))
        await begun([first, second], stack, 1)
        assert (await second).failure == (await first).failure == ""
        waited = time.monotonic() - began
    record = stack.admin("/decisions?last=1")["decisions"][0]
    assert 2.0 < record["held_seconds"] < waited, "it was held for as long as the first was computed"
    until(lambda: stack.admin("/decisions?last=1")["decisions"][0]["ending"], 5, "its end is told")
    ending = stack.admin("/decisions?last=1")["decisions"][0]["ending"]
    assert ending["first_token_seconds"] < bar(1.5), "the wait is not the engine's"
    assert held(stack) == 0
    assert metric(stack, "kvsteer_held_seconds_count") >= 1


async def test_a_client_that_leaves_while_it_is_held_frees_everything_within_100_ms(stack: Stack) -> None:
    took = []
    async with client() as session:
        for number in range(5):
            first = asyncio.create_task(ask(session, stack.url, payload(f"long{number}", 2 * SPEED)))
            await asyncio.to_thread(
                until, lambda: metric(stack, "kvsteer_ledger_tokens") > SPEED, 5, "it was sent"
            )
            second = asyncio.create_task(ask(session, stack.url, payload(f"leaves{number}", 100)))
            await begun([first, second], stack, 1)
            second.cancel()
            began = time.monotonic()
            freed = lambda: not held(stack) and metric(stack, "kvsteer_open_streams") <= 1  # noqa: E731
            while not await asyncio.to_thread(freed):
                assert time.monotonic() - began < patient(5), "what the client left is never freed"
            took.append(time.monotonic() - began)
            first.cancel()
            await asyncio.to_thread(
                until, lambda: metric(stack, "kvsteer_open_streams") == 0, 5, "all is over"
            )
    took.sort()
    assert took[len(took) // 2] <= bar(0.1), f"median {took[len(took) // 2] * 1000:.0f} ms: {took}"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_gateway_that_ends_while_it_holds_requests_costs_no_client_an_error(
    how: signal.Signals,
) -> None:
    with made() as stack:
        async with client() as session:
            first = asyncio.create_task(ask(session, stack.url, payload("first", 3 * SPEED)))
            await asyncio.to_thread(
                until, lambda: metric(stack, "kvsteer_ledger_tokens") > SPEED, 5, "it was sent"
            )
            tasks = [first]
            tasks += [asyncio.create_task(ask(session, stack.url, payload(f"n{i}", 100))) for i in range(5)]
            await begun(tasks, stack, 5)
            stack.children["gateway-0"].signal(how)
            began = time.monotonic()
            outcomes = await asyncio.gather(*tasks)
        assert [outcome.failure for outcome in outcomes] == [""] * 6
        assert time.monotonic() - began < bar(8.0), "they went on at once"
        if how == signal.SIGTERM:
            gateway = stack.children["gateway-0"]
            await asyncio.to_thread(until, lambda: not gateway.running, 15, "the gateway ends")
            assert '"open_charges": 0' in gateway.said(3), gateway.said(3)


async def test_what_one_of_two_gateways_holds_the_other_leaves_room_for() -> None:
    with made(gateways=2) as stack:
        async with client() as session:
            first = asyncio.create_task(ask(session, stack.url, payload("first", 3 * SPEED)))
            sent = lambda: max(metric(stack, "kvsteer_ledger_tokens", n) for n in (0, 1)) > SPEED  # noqa: E731
            await asyncio.to_thread(until, sent, 5, "it was sent")
            tasks = [asyncio.create_task(ask(session, stack.url, payload(f"n{i}", 200))) for i in range(8)]
            await begun(tasks, stack, 8)
            own = [metric(stack, "kvsteer_held_requests", n) for n in (1, 0)]
            await asyncio.to_thread(
                until, lambda: held_by_others(stack) == own, 2, "each knows what the other holds"
            )
            outcomes = await asyncio.gather(first, *tasks)
        assert [outcome.failure for outcome in outcomes] == [""] * 9
        assert held(stack) == 0
        until(lambda: held_by_others(stack) == [0, 0], 5, "nothing of the others is believed to wait")


async def test_what_a_dead_gateway_held_is_forgotten_by_the_others_and_no_client_sees_an_error() -> None:
    with made(gateways=2) as stack:
        async with client() as session:
            first = asyncio.create_task(ask(session, stack.url, payload("first", 5 * SPEED)))
            sent = lambda: max(metric(stack, "kvsteer_ledger_tokens", n) for n in (0, 1)) > SPEED  # noqa: E731
            await asyncio.to_thread(until, sent, 5, "it was sent")
            tasks = [asyncio.create_task(ask(session, stack.url, payload(f"n{i}", 200))) for i in range(8)]
            await begun(tasks, stack, 8)
            await asyncio.to_thread(
                until, lambda: held_by_others(stack)[1] > 0, 2, "the other knows what is held"
            )
            stack.children["gateway-0"].signal(signal.SIGKILL)
            forgot = lambda: stack.admin("/state", 1)["journal"]["held_by_others"] == 0  # noqa: E731
            await asyncio.to_thread(until, forgot, 6, "what it held is forgotten with it")
            outcomes = await asyncio.gather(first, *tasks)
        assert [outcome.failure for outcome in outcomes] == [""] * 9
