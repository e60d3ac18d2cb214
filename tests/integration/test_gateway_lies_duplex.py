"""envoy/full-duplex before a gateway that fails: what a request costs, with a body and without.

Envoy hands a body over as it comes and keeps none of it, so what `BUFFERED` survives is an error here; a request
without a body has nothing to lose.
"""

import time
from collections.abc import Iterator

import pytest

from tests.integration.alone import Envoy, envoy, replicas, until
from tests.integration.lying_gateway import lying_gateway
from tests.integration.test_gateway_lies import BODY, settings, slow

IDLE = 3.0  # s


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, list[str]]]:
    with replicas(3) as addresses, lying_gateway(addresses[2]) as port:
        tree = settings("full-duplex", addresses[:2], port)
        tree["envoy"]["idle_timeout"] = IDLE
        with envoy(tmp_path_factory.mktemp("envoy"), tree) as started:
            until(lambda: slow(started), 10, "Envoy asks the gateway")
            yield started, addresses


def fault(started: Envoy, method: str, path: str) -> tuple[int, dict[str, str]]:
    """Status and headers of a request on which the gateway fails.

    One that ends well goes before: after five errors in a row Envoy would not ask this gateway for a while.
    """
    assert started.request("GET", "/close")[0] == 200
    status, _, headers = started.request(method, path, BODY if method == "POST" else None)
    return status, headers


FAULTS = ["abort", "crash", "wrong-kind", "empty", "garbage", "twice", "outside"]


@pytest.mark.parametrize("what", [*FAULTS, "close"])
def test_a_request_without_a_body_is_served(running: tuple[Envoy, list[str]], what: str) -> None:
    started, addresses = running
    status, headers = fault(started, "GET", f"/{what}")
    assert (status, headers["x-kvsteer-replica"] in addresses[:2]) == (200, True)


@pytest.mark.parametrize("at", ["", "-at-body"])
@pytest.mark.parametrize("what", FAULTS)
def test_a_body_that_was_handed_over_is_an_error_at_once(
    running: tuple[Envoy, list[str]], what: str, at: str
) -> None:
    started, _ = running
    assert fault(started, "POST", f"/{what}{at}")[0] == 500, "504 would be the idle timeout"


@pytest.mark.parametrize(("method", "what"), [("GET", "silent"), ("POST", "silent"), ("POST", "close")])
def test_nothing_but_the_idle_timeout_ends_the_wait_for_a_gateway_that_says_nothing(
    running: tuple[Envoy, list[str]], method: str, what: str
) -> None:
    started, _ = running
    began = time.monotonic()
    assert fault(started, method, f"/{what}")[0] == 504
    assert time.monotonic() - began > IDLE * 0.9
