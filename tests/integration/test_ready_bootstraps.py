"""The ready Envoy configurations of envoy/ before a real gateway: steered, not to be spoofed, served without it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.demo.stack import Stack, StackSettings
from tests.integration.patience import patient, until
from tests.integration.test_endpoint_picker import known_dead
from tests.integration.test_spoofing import HEADERS
from tests.integration.witness import EVENTS, Answer, Witnesses, WitnessStack, http2, witnesses

READY = Path(__file__).parents[2] / "envoy"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "hello"}]}'


class ReadyStack(WitnessStack):
    """A folder's `kvsteer.yaml` with this machine's addresses; the last witness is no replica."""

    def __init__(self, running: Witnesses, folder: str) -> None:
        super().__init__(running, StackSettings())
        self.shape = folder
        self.outside = running.addresses[-1]

    def start_engines(self) -> None:
        super().start_engines()
        self.replicas.remove(self.outside)

    def configuration(self, number: int) -> dict[str, Any]:
        grpc, admin = self.gateway_ports[number]
        tree: dict[str, Any] = yaml.safe_load((READY / self.shape / "kvsteer.yaml").read_text())
        tree["grpc"] = {"address": f"127.0.0.1:{grpc}"}
        tree["admin"] = {"address": f"127.0.0.1:{admin}"}
        tree["pools"][0] |= {"replicas": self.replicas, "metrics": {"enabled": False}, "engine": "vllm"}
        listen = {"listen": f"127.0.0.1:{self.port or 1}", "admin": f"127.0.0.1:{self.envoy_admin or 2}"}
        tree["envoy"] |= {**listen, "message_timeout": patient(1.0)}
        return tree


@pytest.fixture(scope="module")
def running() -> Iterator[Witnesses]:
    with witnesses(3) as started:
        yield started


@pytest.fixture(scope="module", params=["standalone", "original-dst", "full-duplex"])
def stack(request: pytest.FixtureRequest, running: Witnesses) -> Iterator[ReadyStack]:
    with ReadyStack(running, request.param) as started:
        until(lambda: is_steered(started, running), 10, "Envoy has found the gateway well")
        yield started


def ask(stack: Stack, body: bytes | None, *headers: tuple[str, str]) -> Answer:
    method, path = ("GET", "/v1/models") if body is None else ("POST", "/v1/chat/completions")
    return http2(stack.port, path, body, method=method, headers=headers)


def is_steered(stack: Stack, running: Witnesses) -> bool:
    """The gateway tells each replica its request's id."""
    answer = ask(stack, BODY)
    return answer.status == 200 and bool(running.seen[-1].all("x-kvsteer-request-id"))


@pytest.mark.parametrize("body", [BODY, None])
def test_the_replica_that_answers_is_the_one_that_was_chosen(
    stack: ReadyStack, running: Witnesses, body: bytes | None
) -> None:
    for _ in range(6):
        answer = ask(stack, body)
        (decision,) = stack.admin("/decisions?last=1")["decisions"]
        assert answer.status == 200
        assert answer.all("x-kvsteer-replica") == [decision["choice"]] == [running.seen[-1].at]
        assert running.seen[-1].all("x-kvsteer-request-id") == [decision["request_id"]]


def spoof(stack: ReadyStack, running: Witnesses) -> None:
    """Every owned header, twice, with an address that is no replica's and with Envoy's own admin port."""
    for name in HEADERS:
        for value in (stack.outside, f"127.0.0.1:{stack.envoy_admin}"):
            for body in (BODY, None):
                answer = ask(stack, body, (name.lower(), value), (name.lower(), value))
                assert answer.status == 200, f"{name}: {value}: {answer.status} {answer.body!r}"
                assert running.seen[-1].at in stack.replicas, f"{name}: {value} steered"
                assert value not in running.seen[-1].all(name.lower()), f"{name}: {value} came through"


def test_no_header_of_a_client_steers(stack: ReadyStack, running: Witnesses) -> None:
    spoof(stack, running)
    assert is_steered(stack, running)


def test_a_gateway_that_dies_cuts_no_answer_that_is_on_its_way(stack: ReadyStack, running: Witnesses) -> None:
    """But in full duplex, where Envoy 1.40 may."""
    before = len(running.seen)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http2, stack.port, "/slow/events", BODY)
        until(lambda: len(running.seen) > before, 10, "the answer is on its way")
        gateway = stack.children["gateway-0"]
        gateway.kill()
        answer = asked.result(timeout=patient(10))
    gateway.restart()
    stack.wait_gateway(0, gateway)
    assert answer.status == 200
    if stack.shape != "full-duplex":
        assert answer.body == b"".join(EVENTS)
    until(lambda: is_steered(stack, running), 10, "steered again")


def test_requests_are_served_and_not_to_be_spoofed_while_the_gateway_is_dead_and_steered_when_it_is_back(
    stack: ReadyStack, running: Witnesses
) -> None:
    gateway = stack.children["gateway-0"]
    gateway.kill()
    try:
        if stack.shape == "full-duplex":  # a body that was handed over before Envoy knows is lost
            until(lambda: known_dead(stack), 10, "Envoy knows that the gateway is dead")
        spoof(stack, running)
        assert not is_steered(stack, running)
    finally:
        gateway.restart()
        stack.wait_gateway(0, gateway)
    until(lambda: is_steered(stack, running), 10, "steered again")
