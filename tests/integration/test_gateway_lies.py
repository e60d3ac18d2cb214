"""The ready configurations before a gateway that is dead, hung, slow, crashing or lying: what clients get.

A gateway that fails costs a client its steering, and at most one `message_timeout`; never its answer, but for one
fault, which Envoy makes an error whatever it is told: a header value that HTTP does not allow.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.alone import Envoy, envoy, replicas, until
from tests.integration.lying_gateway import lying_gateway

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
TIMEOUT = 1.0  # s, of a message
STALL = 4.0  # s that a busy machine may stand still; Envoy's other limits are far longer
READY = Path(__file__).parents[2] / "envoy"


def settings(shape: str, addresses: list[str], port: int) -> dict[str, Any]:
    """The ready configuration of this name, for these replicas and a gateway at this port; quick, no feedback."""
    tree: dict[str, Any] = yaml.safe_load((READY / shape / "kvsteer.yaml").read_text())
    tree["pools"][0]["replicas"] = addresses
    tree["grpc"] = {"address": f"127.0.0.1:{port}"}
    tree["envoy"] |= {"listen": "127.0.0.1:0", "message_timeout": TIMEOUT, "access_log": False}
    tree["feedback"] = {"source": "off"}
    return tree


@pytest.fixture(scope="module", params=["standalone", "original-dst"])
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(shape: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, list[str]]]:
    with replicas(3) as addresses, lying_gateway(addresses[2]) as port:
        tree = settings(shape, addresses[:2], port)
        with envoy(tmp_path_factory.mktemp("envoy"), tree) as started:
            until(lambda: slow(started), 10, "Envoy asks the gateway")
            yield started, addresses


def listens(started: Envoy) -> bool:
    """Whether Envoy takes requests, which it does once it has asked for the gateway's health."""
    try:
        return started.request("GET", "/")[0] == 200
    except OSError:
        return False


def slow(started: Envoy) -> bool:
    """Whether the gateway is asked: one that is silent is waited for."""
    began = time.monotonic()
    if not listens(started):
        return False
    started.request("GET", "/silent")
    return time.monotonic() - began > TIMEOUT / 2


@pytest.mark.parametrize(
    "fault",
    [
        *(
            fault + at
            for fault in ("abort", "crash", "close", "wrong-kind", "empty")
            for at in ("", "-at-body")
        ),
        *(fault + at for fault in ("garbage", "twice") for at in ("", "-at-body")),
        "authority",
    ],
)
def test_a_fault_costs_the_steering_and_no_request(running: tuple[Envoy, list[str]], fault: str) -> None:
    started, addresses = running
    began = time.monotonic()
    status, _, headers = started.request("POST", f"/{fault}", BODY)
    assert (status, headers["x-kvsteer-replica"] in addresses[:2]) == (200, True)
    assert time.monotonic() - began < TIMEOUT + STALL


@pytest.mark.parametrize("fault", ["outside", "outside-at-body"])
def test_a_choice_outside_of_the_pool_leads_nowhere(
    running: tuple[Envoy, list[str]], shape: str, fault: str
) -> None:
    """`override_host` passes it by and balances; an address is either in bounds or refused."""
    started, addresses = running
    status, body, headers = started.request("POST", f"/{fault}", BODY)
    if shape == "original-dst":
        assert (status, body) == (403, b"RBAC: access denied")
    else:
        assert (status, headers["x-kvsteer-replica"] in addresses[:2]) == (200, True)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("fault", ["silent", "silent-at-body"])
def test_silence_costs_one_timeout(running: tuple[Envoy, list[str]], fault: str, method: str) -> None:
    started, addresses = running
    began = time.monotonic()
    status, _, headers = started.request(method, f"/{fault}", BODY if method == "POST" else None)
    took = time.monotonic() - began
    assert (status, headers["x-kvsteer-replica"] in addresses[:2]) == (200, True)
    assert took < TIMEOUT + STALL
    assert took > TIMEOUT * 0.9 or (fault, method) == ("silent-at-body", "GET")


def test_a_value_that_http_does_not_allow_is_an_error_and_never_a_header(
    running: tuple[Envoy, list[str]],
) -> None:
    started, _ = running
    status, body, _ = started.request("POST", "/bad-value", BODY)
    assert (status, body) == (500, b"")


def test_a_gateway_that_takes_connections_and_says_nothing_costs_no_request(
    shape: str, tmp_path: Path
) -> None:
    with replicas(1) as addresses, socket.create_server(("127.0.0.1", 0)) as deaf:
        tree = settings(shape, addresses, deaf.getsockname()[1])
        with envoy(tmp_path, tree) as started:
            until(lambda: listens(started), 10, "Envoy takes requests")
            for method in ("GET", "POST"):
                began = time.monotonic()
                assert started.request(method, "/", BODY if method == "POST" else None)[0] == 200
                assert time.monotonic() - began < TIMEOUT + STALL
