"""Two pools and `envoy.model_header`: a dead gateway's clients choose by it, a living gateway goes by the body."""

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until


class TwoPools(Stack):
    """The first two replicas answer for `demo`, the others for `large`."""

    def configuration(self, number: int) -> dict[str, Any]:
        made = super().configuration(number)
        pool = made["pools"][0]
        made["pools"] = [
            {**pool, "name": "first", "models": ["demo"], "replicas": self.replicas[:2]},
            {**pool, "name": "second", "models": ["large"], "replicas": self.replicas[2:]},
        ]
        return made


@pytest.fixture(scope="module")
def pools() -> Iterator[Stack]:
    with TwoPools(StackSettings(engine=QUICK, redis_url="", envoy={"model_header": "x-model"})) as running:
        yield running


async def served(stack: Stack, model: str, header: str) -> set[str]:
    """Replicas by which requests were answered."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    found = set()
    async with aiohttp.ClientSession(headers={"x-model": header} if header else {}) as session:
        for _ in range(8):
            async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                found.add(answer.headers["x-kvsteer-replica"])
    return found


async def test_a_living_gateway_goes_by_the_body_whatever_the_header_says(pools: Stack) -> None:
    first, second = set(pools.replicas[:2]), set(pools.replicas[2:])
    for header in ("", "demo", "large", "unknown"):
        assert await served(pools, "demo", header) <= first, header
        assert await served(pools, "large", header) <= second, header


async def test_while_the_gateway_is_dead_the_header_chooses_the_pool(pools: Stack) -> None:
    first, second = set(pools.replicas[:2]), set(pools.replicas[2:])
    gateway = pools.children["gateway-0"]
    gateway.kill()
    try:
        assert await served(pools, "large", "large") <= second
        assert await served(pools, "demo", "demo") <= first
        assert await served(pools, "large", "") <= first, "without the header, the first pool takes it"
    finally:
        gateway.restart()
        pools.wait_gateway(0, gateway)
    until(lambda: pools.admin_status(0, "/readyz") == 200, 5, "the gateway is back")
