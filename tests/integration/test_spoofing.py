"""Nothing a client sends steers: not with a body nor without, not with the gateway alive nor dead."""

import signal
import urllib.request
from collections.abc import Iterator

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until, until_async
from tests.integration.patience import patient

HEADERS = [
    "x-gateway-destination-endpoint",
    "X-Gateway-Destination-Endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-pool",
    "x-mirror-cluster",
    "x-gateway-destination-endpoint-served",
    "x-kvsteer-expected-hit",
    "X-KVsteer-Request-Id",
    "test-epp-endpoint-selection",
    "x-prefiller-host-port",
    "X-Encoder-Hosts-Ports",
    "x-data-parallel-host-port",
    "X-Data-Parallel-Rank",
    "x-kv-cache-source-host-port",
]
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A gateway that hangs is waited for as little as by default."""
    settings = StackSettings(engine=[*QUICK, "--echo-headers"], redis_url="", envoy={"message_timeout": "1s"})
    with Stack(settings) as running:
        yield running


async def attempt(stack: Stack, session: aiohttp.ClientSession, name: str, value: str, body: bool) -> None:
    url = f"{stack.url}/v1/chat/completions" if body else f"{stack.url}/v1/models"
    headers = [(name, value), (name, value)]  # twice: a second copy must not survive either
    method = session.post(url, json=BODY, headers=headers) if body else session.get(url, headers=headers)
    async with method as answer:
        text = await answer.text()
        assert answer.status == 200, f"{name}: {value}: status {answer.status}: {text}"
        served = answer.headers["x-kvsteer-replica"]
        assert served in stack.replicas, f"{name}: {value} reached {served}"
        assert value not in answer.headers.get("x-received-headers", ""), (
            f"{name}: {value} reached the replica"
        )


async def everything(stack: Stack) -> None:
    admin = f"127.0.0.1:{stack.envoy_admin}"
    targets = [admin, f"127.0.0.1:{stack.gateway_ports[0][1]}", "[::1]:1", "junk", f"{admin},{admin}"]
    async with aiohttp.ClientSession() as session:
        for name in HEADERS:
            for value in targets:
                for body in (True, False):
                    await attempt(stack, session, name, value, body)


async def test_no_header_steers_while_the_gateway_lives(stack: Stack) -> None:
    await everything(stack)


async def test_no_header_steers_while_the_gateway_is_dead(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]
    gateway.kill()
    try:
        await everything(stack)
    finally:
        gateway.restart()
        stack.wait_gateway(0, gateway)


async def test_no_header_steers_while_the_gateway_hangs(stack: Stack) -> None:
    gateway = stack.children["gateway-0"]
    gateway.signal(signal.SIGSTOP)
    try:
        async with aiohttp.ClientSession() as session:
            for body in (True, False):
                await attempt(stack, session, HEADERS[0], f"127.0.0.1:{stack.envoy_admin}", body)
    finally:
        gateway.signal(signal.SIGCONT)
    until(lambda: stack.admin_status(0, "/readyz") == 200, 10, "the gateway answers again")


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
async def test_requests_without_a_body_are_steered(stack: Stack, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{stack.url}{path}") as answer:
        assert answer.status == 200
        assert answer.headers["x-kvsteer-replica"] in stack.replicas


def ext_proc_counts(stack: Stack) -> dict[str, str]:
    url = f"http://127.0.0.1:{stack.envoy_admin}/stats?filter=ext_proc"
    with urllib.request.urlopen(url, timeout=patient(5)) as told:
        return dict(line.split(": ") for line in told.read().decode().splitlines())


async def test_envoy_lets_the_gateway_change_every_header_that_it_changes(stack: Stack) -> None:
    async def is_steered() -> bool:  # not before Envoy has found the gateway well
        async with aiohttp.ClientSession() as session:
            await attempt(stack, session, HEADERS[0], f"127.0.0.1:{stack.envoy_admin}", True)
        return int(ext_proc_counts(stack)["http.llm.ext_proc.stream_msgs_received"]) > 0

    await until_async(is_steered, 10, "a request is steered")
    assert ext_proc_counts(stack)["http.llm.ext_proc.rejected_header_mutations"] == "0"
