"""Conformance case 6, InferencePoolAppProtocol: replicas that speak HTTP/2 alone; other tests have HTTP/1.1."""

import hashlib
import json
from collections.abc import Iterator

import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.h2c_witness import h2c_witnesses
from tests.integration.witness import http2


class H2cStack(Stack):
    """Envoy and a gateway before replicas that run already."""

    def start_engines(self) -> None:
        """They do."""


@pytest.fixture(scope="module", params=["buffered", "full_duplex"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    gateway = {"requests": {"test_selection": True}, "feedback": {"source": "headers"}}
    made = H2cStack(
        StackSettings(
            redis_url="",
            envoy={"request_body_mode": request.param, "retries": 0},
            gateway=gateway,
            pool={"metrics": {"enabled": False}, "app_protocol": "h2c"},
        )
    )
    with h2c_witnesses(2) as addresses:
        made.replicas = addresses
        try:
            made.start()
            until(lambda: all(chosen(made, each) == each for each in addresses), 10, "picks are followed")
            yield made
        finally:
            made.close()


def chosen(stack: Stack, address: str) -> str:
    """Who answers a request that names an endpoint."""
    answer = http2(
        stack.port, "/v1/models", None, method="GET", headers=[("test-epp-endpoint-selection", address)]
    )
    return str(json.loads(answer.body)["at"])


@pytest.mark.parametrize("trailers", [None, [("x-sum", "9")]], ids=["", "trailers"])
@pytest.mark.parametrize("size", [0, 62_001, 2**20])
def test_6_replicas_that_speak_http2_get_every_byte_and_their_trailers_come_back(
    stack: Stack, size: int, trailers: list[tuple[str, str]] | None
) -> None:
    body = b"x" * size
    for address in stack.replicas:
        headers = [("test-epp-endpoint-selection", address)]
        answer = http2(stack.port, "/v1/chat/completions", body, headers=headers, trailers=trailers)
        assert answer.status == 200
        assert json.loads(answer.body) == {"at": address, "sha": hashlib.sha256(body).hexdigest()}
        assert answer.trailers == [("x-checksum", "77")]
