"""The files of envoy/istio, envoy/envoy-gateway and envoy/ai-gateway before a real gateway, in a bare Envoy."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.demo.stack import StackSettings
from tests.integration import mesh_world
from tests.integration.patience import patient, until
from tests.integration.test_envoy_validate import ENVOY
from tests.integration.test_ready_bootstraps import BODY, ask, is_steered
from tests.integration.test_spoofing import HEADERS
from tests.integration.witness import EVENTS, Witnesses, WitnessStack, http2, witnesses

Make = Callable[[list[str], list[str]], tuple[dict[str, Any], list[dict[str, Any]]]]
#: How Envoy is configured, and whose settings the gateway has.
MESHES: dict[str, tuple[Make, str]] = {
    "istio": (mesh_world.istio, "kubernetes"),
    "istio-pool": (mesh_world.istio_pool, "kubernetes"),
    "envoy-gateway": (mesh_world.envoy_gateway, "kubernetes"),
    "ai-gateway": (mesh_world.ai_gateway, "ai-gateway"),
    "ai-gateway-open": (mesh_world.ai_gateway_open, "ai-gateway"),
}
#: Those that make Envoy's side from an InferencePool alone, in which nothing says who answered.
POOLS = ("istio-pool", "ai-gateway", "ai-gateway-open")


class MeshStack(WitnessStack):
    """A mesh's Envoy and a gateway with the settings of envoy/; the last witness is no replica."""

    def __init__(self, running: Witnesses, mesh: str) -> None:
        super().__init__(running, StackSettings())
        self.mesh = mesh
        self.make, self._whose = MESHES[mesh]
        self.outside = running.addresses[-1]

    def start_engines(self) -> None:
        super().start_engines()
        self.replicas.remove(self.outside)

    def bootstrap(self) -> str:
        gateways = [f"127.0.0.1:{grpc}" for grpc, _ in self.gateway_ports]
        made = self.make(self.replicas, gateways)
        text = str(yaml.safe_dump(mesh_world.bootstrap(self.port, self.envoy_admin, *made)))
        return text.replace("message_timeout: 1s", f"message_timeout: {patient(1.0):g}s")

    def configuration(self, number: int) -> dict[str, Any]:
        """The file, with this machine's addresses in place of a cluster's."""
        grpc, admin = self.gateway_ports[number]
        tree: dict[str, Any] = yaml.safe_load((mesh_world.ENVOY / self._whose / "kvsteer.yaml").read_text())
        tree["grpc"]["address"], tree["admin"]["address"] = f"127.0.0.1:{grpc}", f"127.0.0.1:{admin}"
        tree["pools"][0].pop("discovery")
        tree["pools"][0] |= {"replicas": self.replicas, "metrics": {"enabled": False}, "engine": "vllm"}
        return tree


@pytest.fixture(scope="module")
def running() -> Iterator[Witnesses]:
    with witnesses(3) as started:
        yield started


@pytest.fixture(scope="module", params=sorted(MESHES))
def stack(request: pytest.FixtureRequest, running: Witnesses) -> Iterator[MeshStack]:
    with MeshStack(running, request.param) as started:
        until(lambda: is_steered(started, running), 10, "Envoy has found the gateway well")
        yield started


def validated(path: Path) -> tuple[int, str]:
    command = [str(ENVOY), "--mode", "validate", "--log-level", "warn", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)
    return done.returncode, done.stderr


def test_envoy_accepts_it_without_a_word(stack: MeshStack) -> None:
    code, said = validated(stack.folder / "envoy.yaml")
    assert (code, "deprecated" in said.lower()) == (0, False), said


def test_a_cluster_that_balances_by_locality_takes_no_steering(tmp_path: Path) -> None:
    """The trap that envoy/istio warns of."""
    listener, (engines, pickers) = mesh_world.istio(["10.0.0.1:80"], ["10.0.0.2:80"])
    engines["common_lb_config"] = {"locality_weighted_lb_config": {}}
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(mesh_world.bootstrap(1, 2, listener, [engines, pickers])))
    code, said = validated(path)
    assert code != 0
    assert "load_balancing_policy cannot be combined" in said


@pytest.mark.parametrize("body", [BODY, None])
def test_the_replica_that_answers_is_the_one_that_was_chosen(
    stack: MeshStack, running: Witnesses, body: bytes | None
) -> None:
    for _ in range(4):
        answer = ask(stack, body)
        (decision,) = stack.admin("/decisions?last=1")["decisions"]
        assert answer.status == 200
        assert decision["choice"] == running.seen[-1].at
        assert answer.all("x-kvsteer-replica") == ([] if stack.mesh in POOLS else [decision["choice"]])
        assert decision["outcome"] == ("steered" if body else "no_body")


def test_a_body_above_the_defaults_of_meshes_arrives_as_it_was_sent(
    stack: MeshStack, running: Witnesses
) -> None:
    """Envoy Gateway's listeners hold 32 KiB unless told."""
    body = b'{"model": "demo", "prompt": "' + b"token " * 300_000 + b'"}'
    assert http2(stack.port, "/v1/completions", body).status == 200
    assert running.seen[-1].body == body


def test_a_streamed_answer_comes_byte_for_byte(stack: MeshStack) -> None:
    answer = http2(stack.port, "/events", BODY)
    assert (answer.status, answer.body) == (200, b"".join(EVENTS))
    assert answer.all("set-cookie") == ["a=1", "b=2"]


def test_no_header_of_a_client_steers(stack: MeshStack, running: Witnesses) -> None:
    for name in HEADERS:
        for body in (BODY, None):
            answer = ask(stack, body, (name.lower(), stack.outside), (name.lower(), stack.outside))
            assert answer.status == 200, f"{name}: {answer.status} {answer.body!r}"
            assert running.seen[-1].at in stack.replicas, f"{name} steered"
            assert stack.outside not in running.seen[-1].all(name.lower()), f"{name} came through"


def test_without_a_gateway_requests_are_served_where_that_is_promised(
    stack: MeshStack, running: Witnesses
) -> None:
    """By EnvoyFilter and EnvoyExtensionPolicy; by pools that fail open what has no body, and the rest by chance."""
    header = (HEADERS[0], stack.outside)
    gateway = stack.children["gateway-0"]
    gateway.kill()
    try:
        without, with_body = ask(stack, None, header), ask(stack, BODY, header)
    finally:
        gateway.restart()
        stack.wait_gateway(0, gateway)
    served = {"istio": (200, 200), "envoy-gateway": (200, 200), "ai-gateway": (500, 500)}
    by_chance = (200, with_body.status)  # Envoy may have handed the body over, and has none left
    assert (without.status, with_body.status) == served.get(stack.mesh, by_chance)
    assert {*without.all("x-kvsteer-replica"), *with_body.all("x-kvsteer-replica")} <= {*stack.replicas, "-"}
    until(lambda: is_steered(stack, running), 10, "steered again")
