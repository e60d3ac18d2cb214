"""What a real Envoy does to the gateway when it dies or stands still, over each transport: nothing is left behind."""

import asyncio
import signal
from collections.abc import Iterator

import aiohttp
import orjson
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, ledger_tokens, until, until_async
from tests.integration.transports import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    patient = {"message_timeout": "10s"}
    settings = StackSettings(replicas=2, engine=QUICK, redis_url="", transport=request.param, envoy=patient)
    with Stack(settings) as running:
        yield running


async def ask(session: aiohttp.ClientSession, stack: Stack, tokens: int) -> int:
    """A streamed request's status, once its answer has come whole."""
    asked = [{"role": "user", "content": "hello " * 200}]
    body = orjson.dumps({"model": "demo", "messages": asked, "max_tokens": tokens, "stream": True})
    head = {"content-type": "application/json"}
    async with session.post(f"{stack.url}/v1/chat/completions", data=body, headers=head) as answer:
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        return answer.status


async def nothing_is_left(stack: Stack) -> None:
    async def empty() -> bool:
        return await asyncio.to_thread(ledger_tokens, stack) == 0

    await until_async(empty, 15, "the ledger is empty")


async def load(session: aiohttp.ClientSession, stack: Stack, tokens: int) -> list["asyncio.Task[int]"]:
    """Fifty answers under way."""
    calls = [asyncio.ensure_future(ask(session, stack, tokens)) for _ in range(50)]

    async def under_way() -> bool:
        return await asyncio.to_thread(ledger_tokens, stack) > 0

    await until_async(under_way, 10, "requests are under way")
    return calls


async def test_an_envoy_that_is_killed_leaves_nothing_and_its_successor_is_served(stack: Stack) -> None:
    envoy = stack.children["envoy"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        calls = await load(session, stack, 4000)
        envoy.kill()
        await asyncio.gather(*calls, return_exceptions=True)  # what was cut is Envoy's own doing
    await nothing_is_left(stack)
    envoy.restart()
    until(stack._envoy_is_live, 20, "Envoy is back")

    async def answered() -> bool:
        async with aiohttp.ClientSession() as session:
            return await ask(session, stack, 4) == 200

    await until_async(answered, 10, "a request is answered")
    await nothing_is_left(stack)


async def test_an_envoy_that_stands_still_for_a_while_loses_no_request(stack: Stack) -> None:
    envoy = stack.children["envoy"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        calls = await load(session, stack, 400)
        envoy.signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)  # the fault itself
        envoy.signal(signal.SIGCONT)
        assert await asyncio.gather(*calls) == [200] * 50
    await nothing_is_left(stack)
