"""The traffic cases of the Gateway API Inference Extension's conformance suite, before a bare Envoy.

1 to 4 here, in both body modes; 5, 7 and 8 in test_endpoint_pickers.py, 6 in test_endpoint_picker_h2c.py.
"""

import asyncio
import re
import urllib.request
from collections.abc import Iterator, Sequence

import aiohttp
import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import patient
from tests.integration.witness import Witnesses, WitnessStack, http2, witnesses

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hello " * 50}]}


@pytest.fixture(scope="module")
def replicas() -> Iterator[Witnesses]:
    with witnesses(3, *HOSTS) as running:
        yield running


@pytest.fixture(scope="module", params=["buffered", "full_duplex"])
def stack(request: pytest.FixtureRequest, replicas: Witnesses) -> Iterator[Stack]:
    gateway = {"requests": {"test_selection": True}, "feedback": {"source": "headers"}}
    envoy = {"request_body_mode": request.param, "retries": 0}
    with WitnessStack(replicas, StackSettings(envoy=envoy, gateway=gateway)) as running:
        ready = until(lambda: asked(running, [replicas.addresses[0]]) == {replicas.addresses[0]}, 10, "ready")
        assert ready
        yield running


def asked(stack: Stack, endpoints: Sequence[str], requests: int = 1) -> set[str]:
    """Endpoints that answered so many requests, ten at a time, that name these; each is told truly."""

    async def one(session: aiohttp.ClientSession, turns: asyncio.Semaphore) -> str:
        headers = {"test-epp-endpoint-selection": ",".join(endpoints)}
        async with turns, session.post(f"{stack.url}/v1/chat/completions", json=BODY, headers=headers) as got:
            assert got.status == 200, await got.text()
            at: str = (await got.json())["at"]
            assert got.headers.get("x-conformance-test-served-endpoint", at) == at
            return at

    async def everything() -> set[str]:
        async with aiohttp.ClientSession() as session:
            turns = asyncio.Semaphore(10)
            return set(await asyncio.gather(*(one(session, turns) for _ in range(requests))))

    return asyncio.run(everything())


def known_dead(stack: Stack) -> bool:
    """By Envoy's health checks; who is only left out for a quarter of a second after errors comes back once more."""
    url = f"http://127.0.0.1:{stack.envoy_admin}/clusters"
    with urllib.request.urlopen(url, timeout=patient(5)) as told:
        lines = told.read().decode().splitlines()
    flags = [line for line in lines if re.match(r"kvsteer_gateways::.*::health_flags::", line)]
    return bool(flags) and all("/failed_active_hc" in line for line in flags)


def at(replicas: Witnesses, *hosts: str) -> set[str]:
    return {address for address in replicas.addresses if address.rpartition(":")[0] in hosts}


@pytest.mark.parametrize("hosts", [HOSTS[:1], HOSTS[1:2], HOSTS[2:], HOSTS[:2], HOSTS[1:], HOSTS])
def test_1_only_listed_endpoints_answer(stack: Stack, replicas: Witnesses, hosts: Sequence[str]) -> None:
    """GatewayFollowingEPPRouting."""
    served = asked(stack, hosts, 100)
    assert served <= at(replicas, *hosts)
    assert {address.rpartition(":")[0] for address in served} == set(hosts), "each of them is used"


def test_2_an_ip_is_any_of_its_ports_and_a_port_is_that_one(stack: Stack, replicas: Witnesses) -> None:
    """GatewayFollowingEPPRoutingWithDataParallelism."""
    of_first = sorted(at(replicas, HOSTS[0]))
    assert asked(stack, [HOSTS[0]], 100) == set(of_first)
    for address in of_first:
        assert asked(stack, [address], 10) == {address}
    assert asked(stack, of_first[:2], 100) == set(of_first[:2])
    mixed = [of_first[0], HOSTS[2]]
    assert asked(stack, mixed, 100) == {of_first[0], *at(replicas, HOSTS[2])}


def test_3_the_endpoint_that_served_is_told(stack: Stack, replicas: Witnesses) -> None:
    """GatewayDestinationEndpointServed."""
    for address in replicas.addresses:
        headers = [("test-epp-endpoint-selection", address)]
        for body, method in ((b'{"model": "demo"}', "POST"), (None, "GET")):
            answer = http2(stack.port, "/v1/models", body, method=method, headers=headers)
            assert answer.status == 200
            assert answer.all("x-conformance-test-served-endpoint") == [address]


@pytest.mark.parametrize("endpoints", ["10.9.9.9", "10.9.9.9:80,junk"])
def test_nothing_eligible_is_503_as_json(stack: Stack, endpoints: str) -> None:
    headers = [("test-epp-endpoint-selection", endpoints)]
    for body, method in ((b'{"model": "demo"}', "POST"), (None, "GET")):
        answer = http2(stack.port, "/v1/models", body, method=method, headers=headers)
        assert answer.status == 503
        assert answer.all("retry-after") == ["1"]
        assert b'"code":"no_replica"' in answer.body


def test_4_requests_are_answered_while_the_picker_is_away(stack: Stack, replicas: Witnesses) -> None:
    """EppUnAvailableFailOpen.

    In full duplex Envoy hands a body over as it comes, and has none left where the gateway dies before Envoy knows.
    """
    gateway = stack.children["gateway-0"]
    first = replicas.addresses[0]
    assert asked(stack, [first], 10) == {first}
    gateway.kill()
    try:
        if stack.settings.envoy["request_body_mode"] == "full_duplex":
            until(lambda: known_dead(stack), 10, "Envoy knows that the gateway is dead")
        assert len(asked(stack, [first], 100)) > 1, "by Envoy's own balancing"
    finally:
        gateway.restart()
        stack.wait_gateway(0, gateway)
    until(lambda: asked(stack, [first], 10) == {first}, 10, "the picker picks again")
