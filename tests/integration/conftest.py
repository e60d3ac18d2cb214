"""Real stacks for the tests: Envoy, Redis, gateways, emulated replicas. A module shares one."""

import asyncio
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.hurried import TIMES
from tests.integration.redis_server import PROGRAMS

#: Fast replicas with few, large chunks: what is tested is the gateway, not two cores' patience.
#: A body of 30 MiB is a prompt that fits.
_OPTIONS = """--prefill-speed 1000000 --max-model-len 10000000 --kv-tokens 20000000
    --reported-kv-tokens 2000000 --tokens-per-chunk 4 --max-running 4096"""
QUICK = _OPTIONS.split()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(StackSettings(engine=[*QUICK, "--echo-headers"], redis_url="")) as running:
        yield running


@pytest.fixture(scope="module", params=PROGRAMS)
def server(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of nothing but a Redis, of each kind that there is."""
    stack = Stack(StackSettings())
    try:
        with pytest.MonkeyPatch.context() as patch:
            if request.param:
                patch.setattr("extproc.demo.stack.redis_program", lambda: request.param)
            stack.start_redis()
        yield stack
    finally:
        stack.close()


@pytest.fixture(params=[TIMES, pytest.param(1, marks=pytest.mark.long)], ids=["hurried", "as_it_is"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many times as fast a replica's minutes pass in the stacks that the test starts (hurried.py)."""
    times: int = request.param
    if times > 1:
        command = [sys.executable, str(Path(__file__).with_name("hurried.py"))]
        monkeypatch.setattr("extproc.demo.stack._kvsteer", lambda: command)
    return times


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `condition()` holds and return it; fail saying what did not come true in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        time.sleep(0.01)
    return value


async def until_async(condition: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
    """As `until`, for a coroutine function."""
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds} s")
        await asyncio.sleep(0.01)
    return value


def ledger_tokens(stack: Stack, number: int = 0) -> float:
    """Tokens a gateway holds charged, by its metrics."""
    url = f"http://127.0.0.1:{stack.gateway_ports[number][1]}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("kvsteer_ledger_tokens "):
                return float(line.split()[1])
    raise AssertionError("kvsteer_ledger_tokens is not exposed")
