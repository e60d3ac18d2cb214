"""A gateway killed, hung, restarted or stopped: Envoy goes on, nobody sees an error, nothing is cut."""

import asyncio
import signal
import time
from collections.abc import Iterator

import aiohttp
import orjson
import pytest

from extproc.demo.drive import Outcome, ask
from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.noise import Span
from tests.integration.patience import bar

pytestmark = pytest.mark.alone

RATE = 200.0


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(engine=QUICK, redis_url="", envoy={"message_timeout": "1s"})) as running:
        yield running


def payload(number: int) -> bytes:
    messages = [{"role": "user", "content": f"request {number} " * 20}]
    return orjson.dumps({"model": "demo", "messages": messages, "max_tokens": 60, "stream": True})


async def offered(stack: Stack, seconds: float, faults: "asyncio.Task[None]") -> list[Outcome]:
    """Send RATE streamed requests a second, open loop, while the faults happen."""
    tasks, began = [], time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(int(RATE * seconds)):
            await asyncio.sleep(began + number / RATE - time.monotonic())
            tasks.append(asyncio.create_task(ask(session, stack.url, payload(number))))
        await faults
        return list(await asyncio.gather(*tasks))


def assert_unharmed(outcomes: list[Outcome]) -> None:
    bad = [o.failure for o in outcomes if o.failure]
    assert not bad, f"{len(bad)} of {len(outcomes)} requests failed: {sorted(set(bad))}"


def steered(stack: Stack) -> bool:
    return bool(stack.admin_status(0, "/readyz") == 200 and stack.admin("/decisions?last=1")["decisions"])


async def test_kill_9_under_200_streams_a_second_and_back_within_2_s(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]
    back = 0.0

    async def faults() -> None:
        nonlocal back
        await asyncio.sleep(2.0)
        gateway.kill()
        await asyncio.sleep(2.0)
        gateway.restart()
        span = Span(gateway.pid)
        await asyncio.to_thread(until, lambda: steered(stack), 15, "steering is back")
        back = span.seconds

    assert_unharmed(await offered(stack, 9.0, asyncio.create_task(faults())))
    assert back <= bar(2.0), f"steering came back {back:.2f} s after the restart"


async def test_a_hung_gateway_costs_a_timeout_and_no_error(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]

    async def faults() -> None:
        await asyncio.sleep(1.0)
        gateway.signal(signal.SIGSTOP)
        await asyncio.sleep(2.5)
        gateway.signal(signal.SIGCONT)

    assert_unharmed(await offered(stack, 6.0, asyncio.create_task(faults())))


async def test_a_graceful_stop_cuts_nothing_and_ends_by_itself(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]

    async def faults() -> None:
        await asyncio.sleep(1.0)
        gateway.signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: not gateway.running, 15, "the gateway ends")

    assert_unharmed(await offered(stack, 5.0, asyncio.create_task(faults())))
    assert '"open_charges": 0' in gateway.said(3), f"charges were left open:\n{gateway.said(3)}"
    assert "Traceback" not in gateway.log.read_text()
