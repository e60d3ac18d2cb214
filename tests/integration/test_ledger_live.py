"""The ledger against real exchanges: 1,500 at once, cancelled clients, every kind of end."""

import asyncio
import os
import random
from collections.abc import Iterator

import aiohttp
import orjson
import pytest

from extproc.demo.drive import ask
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, ledger_tokens, until
from tests.integration.noise import Span
from tests.integration.patience import bar, patient

pytestmark = pytest.mark.alone

JSON = {"content-type": "application/json"}
SLOW_DECODE = ["--step-ms", "200"]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(engine=[*QUICK, *SLOW_DECODE], redis_url="")) as running:
        yield running


def payload(number: int, tokens: int = 40) -> bytes:
    messages = [{"role": "user", "content": f"request {number} " * 10}]
    return orjson.dumps({"model": "demo", "messages": messages, "max_tokens": tokens, "stream": True})


async def test_1500_streams_at_once_all_succeed(stack: Stack) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        outcomes = await asyncio.gather(*(ask(session, stack.url, payload(i)) for i in range(1500)))
    bad = [o.failure for o in outcomes if o.failure]
    assert not bad, f"{len(bad)} of 1500 failed: {sorted(set(bad))}"
    assert sum(o.replica in stack.replicas for o in outcomes) == 1500
    until(lambda: ledger_tokens(stack) == 0, 5, "the ledger is empty")


async def test_a_cancelled_clients_tokens_leave_the_ledger_within_100_ms(stack: Stack) -> None:
    took = []
    async with aiohttp.ClientSession(headers=JSON) as session:
        for number in range(10):
            answer = await session.post(f"{stack.url}/v1/chat/completions", data=payload(number, 2000))
            await answer.content.readline()
            assert await asyncio.to_thread(ledger_tokens, stack) > 200
            span = Span(os.getpid(), stack.children["gateway-0"].pid)
            answer.close()
            while await asyncio.to_thread(ledger_tokens, stack):
                assert span.seconds < patient(5), "the cancelled request was never released"
            took.append(span.seconds)
    took.sort()
    assert took[len(took) // 2] <= bar(0.1), f"median release {took[len(took) // 2] * 1000:.0f} ms: {took}"


async def test_after_any_mix_of_ends_the_ledger_is_exactly_0(stack: Stack) -> None:
    rng = random.Random(11)

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        kind = rng.choice(["whole", "whole", "cut_early", "cut_late", "garbage", "get", "timeout"])
        try:
            if kind == "whole":
                await ask(session, stack.url, payload(number, 8))
            elif kind == "garbage":
                await (await session.post(f"{stack.url}/v1/chat/completions", data=b"{]")).read()
            elif kind == "get":
                await (await session.get(f"{stack.url}/v1/models")).read()
            else:
                await cut(session, number, kind)
        except (TimeoutError, aiohttp.ClientError):
            pass

    async def cut(session: aiohttp.ClientSession, number: int, kind: str) -> None:
        wait = {"cut_early": 0.001, "cut_late": 0.5, "timeout": 0.05}[kind]
        async with asyncio.timeout(wait):
            async with session.post(f"{stack.url}/v1/chat/completions", data=payload(number, 400)) as answer:
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200), headers=JSON) as session:
        await asyncio.gather(*(one(session, i) for i in range(1000)))
    until(lambda: ledger_tokens(stack) == 0, 5, "the ledger is empty after 1,000 mixed exchanges")
    for replica in stack.admin("/replicas")["replicas"]:
        assert replica["requests_in_flight"] == 0
        assert replica["backlog_seconds"] == 0
