"""What clients get from Envoy while no gateway answers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.alone import Envoy, envoy, replicas
from tests.integration.patience import bar

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Envoy, list[str]]]:
    tree = {"limits": {"body": "64KiB"}, "envoy": {"idle_timeout": "1s", "model_header": "x-model"}}
    with replicas(2) as addresses:
        pools = [
            {"name": "first", "models": ["m"], "replicas": addresses[:1]},
            {"name": "other", "models": ["n"], "replicas": addresses[1:]},
        ]
        with envoy(tmp_path_factory.mktemp("envoy"), {"pools": pools, **tree}) as started:
            yield started, addresses


def test_a_request_is_answered_and_the_replica_named(running: tuple[Envoy, list[str]]) -> None:
    started, (first, _) = running
    status, _, headers = started.request("POST", "/v1/chat/completions", CHAT)
    assert (status, headers["x-kvsteer-replica"]) == (200, first)


def test_a_request_without_a_body_is_answered(running: tuple[Envoy, list[str]]) -> None:
    started, (first, _) = running
    status, _, headers = started.request("GET", "/v1/models")
    assert (status, headers["x-kvsteer-replica"]) == (200, first)


@pytest.mark.parametrize("model", ["n", "m", "unknown"])
def test_a_model_that_is_named_in_a_header_goes_to_its_own_pool(
    running: tuple[Envoy, list[str]], model: str
) -> None:
    started, (first, other) = running
    status, body, headers = started.request("POST", "/v1/chat/completions", CHAT, {"x-model": model})
    assert (status, headers["x-kvsteer-replica"]) == (200, other if model == "n" else first)
    assert json.loads(body)["x-model"] == model


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_header_of_a_client_steers_or_reaches_the_replica(
    running: tuple[Envoy, list[str]], method: str
) -> None:
    started, (first, other) = running
    sent = {
        "x-gateway-pool": "other",
        "X-Gateway-Destination-Endpoint": other,
        "x-kvsteer-request-id": "1",
        "x-mirror-cluster": "kvsteer_pool_other",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-max-retries": "50",
        "x-mine": "kept",
    }
    status, body, headers = started.request(method, "/", CHAT if method == "POST" else None, sent)
    seen = json.loads(body)
    assert (status, headers["x-kvsteer-replica"]) == (200, first)
    assert seen["x-mine"] == "kept"
    assert not {name.lower() for name in sent} - {"x-mine"} & set(seen)


def test_a_body_above_the_limit_passes_while_nobody_holds_it(running: tuple[Envoy, list[str]]) -> None:
    """Envoy keeps the limit where it buffers, which it does for the gateway only."""
    started, _ = running
    assert started.request("POST", "/", b" " * 200_000)[0] == 200


def test_a_silent_replica_is_504_as_json(running: tuple[Envoy, list[str]]) -> None:
    started, _ = running
    began = time.monotonic()
    status, body, _ = started.request("POST", "/", CHAT, {"x-test-sleep": "3"})
    assert (status, json.loads(body)["error"]["code"]) == (504, "timeout")
    assert time.monotonic() - began < bar(2.5)


def test_dead_replicas_are_passed_by_and_all_dead_are_503_as_json(tmp_path: Path) -> None:
    with replicas(1) as alive:
        tree = {"pools": [{"replicas": [*alive, "127.0.0.1:1"]}]}
        with envoy(tmp_path, tree) as started:
            answers = [started.request("POST", "/", CHAT) for _ in range(20)]
    assert [status for status, _, _ in answers] == [200] * 20
    assert {headers["x-kvsteer-replica"] for _, _, headers in answers} == set(alive)
    with envoy(tmp_path, {"pools": [{"replicas": ["127.0.0.1:1"]}]}) as started:
        status, body, _ = started.request("POST", "/", CHAT)
    assert (status, json.loads(body)["error"]["code"]) == (503, "upstream_unavailable")
