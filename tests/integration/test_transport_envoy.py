"""The main job over each transport, behind a real Envoy: steering, streams, big bodies, a graceful stop."""

import asyncio
import io
import signal
from collections.abc import Iterator

import aiohttp
import orjson
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, ledger_tokens, until, until_async
from tests.integration.transports import TRANSPORTS

JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
async def asked_by_envoy(stack: Stack) -> None:
    """Envoy asks a gateway that was started, or started again, only once its health check has passed."""

    async def is_steered() -> bool:
        before = steered(stack)
        async with aiohttp.ClientSession() as session:
            await ask(session, stack, chat("is anybody there"))
        return steered(stack) > before

    await until_async(is_steered, 20, "Envoy asks the gateway")


@pytest.fixture(scope="module", params=TRANSPORTS)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    patient = {"message_timeout": "10s"}  # what is tested is what comes back, on a machine that may be busy
    settings = StackSettings(replicas=2, engine=QUICK, redis_url="", transport=request.param, envoy=patient)
    with Stack(settings) as running:
        yield running


def chat(text: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return orjson.dumps({"model": "demo", "messages": messages, "max_tokens": 8, **fields})


async def ask(session: aiohttp.ClientSession, stack: Stack, body: bytes) -> tuple[int, str, bytes]:
    url = f"{stack.url}/v1/chat/completions"
    async with session.post(url, data=io.BytesIO(body), headers=JSON) as answer:
        return answer.status, answer.headers.get("x-kvsteer-replica", ""), await answer.read()


async def test_requests_with_one_beginning_go_to_one_replica(stack: Stack) -> None:
    async with aiohttp.ClientSession() as session:
        answers = [await ask(session, stack, chat("a long beginning " * 500 + str(n))) for n in range(5)]
    assert {status for status, _, _ in answers} == {200}
    assert len({replica for _, replica, _ in answers}) == 1


async def test_a_hundred_at_once_are_all_steered_and_released(stack: Stack) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = steered(stack)
        bodies = [chat(f"request {n}", stream=bool(n % 2)) for n in range(100)]
        answers = await asyncio.gather(*(ask(session, stack, body) for body in bodies))
    assert [status for status, _, _ in answers] == [200] * 100
    assert steered(stack) - before == 100
    await until_async(lambda: asyncio.to_thread(lambda: ledger_tokens(stack) == 0), 10, "the ledger is empty")


async def test_a_body_of_eight_mebibytes_is_steered(stack: Stack) -> None:
    before = steered(stack)
    async with aiohttp.ClientSession() as session:
        status, replica, _ = await ask(session, stack, chat("x" * 8 * 2**20))
    assert (status, bool(replica)) == (200, True)
    assert steered(stack) == before + 1


async def test_a_client_that_leaves_leaves_nothing_charged(stack: Stack) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as session:
        calls = [ask(session, stack, chat("long", stream=True, max_tokens=2000)) for _ in range(20)]
        await asyncio.gather(*calls, return_exceptions=True)
    await until_async(lambda: asyncio.to_thread(lambda: ledger_tokens(stack) == 0), 10, "the ledger is empty")


async def test_a_graceful_stop_cuts_no_response_and_ends_by_itself(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        calls = [
            asyncio.ensure_future(ask(session, stack, chat(f"{n}", stream=True, max_tokens=400)))
            for n in range(30)
        ]
        await asyncio.sleep(0)
        gateway.signal(signal.SIGTERM)
        answers = await asyncio.gather(*calls)
    assert [status for status, _, _ in answers] == [200] * 30
    assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in answers)
    until(lambda: not gateway.running, 20, "the gateway ends")
    assert '"open_charges": 0' in gateway.said(3)
    gateway.restart()
    until(lambda: stack.admin_status(0, "/readyz") == 200, 20, "the gateway is back")


def steered(stack: Stack) -> int:
    """Decisions so far, as the gateway keeps them."""
    return len(stack.admin("/decisions?last=1000")["decisions"])
