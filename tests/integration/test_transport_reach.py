"""A real Envoy reaches the gateway as `envoy-config` says: over a unix socket, and over TLS with certificates."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml

from extproc.config import parse
from extproc.demo.processes import program
from extproc.demo.stack import Stack, StackSettings
from extproc.envoyconfig import render
from tests.integration.certificates import make_certificates
from tests.integration.conftest import QUICK
from tests.integration.patience import patient

BODY = orjson.dumps({"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls(folder: Path, name: str = "127.0.0.1", ca: str = "ca") -> dict[str, Any]:
    """`grpc.tls` and `envoy.tls`, with a certificate for both sides."""
    return {
        "grpc": {
            "cert_file": f"{folder}/server.pem",
            "key_file": f"{folder}/server.key",
            "client_ca_file": f"{folder}/ca.pem",
        },
        "envoy": {
            "ca_file": f"{folder}/{ca}.pem",
            "server_name": name,
            "cert_file": f"{folder}/client.pem",
            "key_file": f"{folder}/client.key",
        },
    }


class Reached(Stack):
    """A stack whose gateway listens as `grpc` says."""

    def __init__(self, grpc: dict[str, Any], envoy: dict[str, Any]) -> None:
        patient = {"message_timeout": "10s", **envoy}
        super().__init__(
            StackSettings(replicas=1, engine=QUICK, redis_url="", transport="fast", envoy=patient)
        )
        self._grpc = grpc
        self.asked = True

    def configuration(self, number: int) -> dict[str, Any]:
        tree = super().configuration(number)
        return {**tree, "grpc": {**tree["grpc"], **self._grpc}}


@contextmanager
def reached(grpc: dict[str, Any], envoy: dict[str, Any], asked: bool = True) -> Iterator[Stack]:
    made = Reached(grpc, envoy)
    made.asked = asked  # whether Envoy finds the gateway well
    with made as stack:
        yield stack


def steered(stack: Stack) -> int:
    """Decisions so far."""
    return len(stack.admin("/decisions?last=10")["decisions"])


async def ask(stack: Stack) -> int:
    url, head = f"{stack.url}/v1/chat/completions", {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(url, data=BODY, headers=head) as answer:
        await answer.read()
        return answer.status


def test_envoy_steers_over_a_unix_socket(tmp_path: Path) -> None:
    with reached({"socket": str(tmp_path / "kvsteer.sock")}, {"gateways": []}) as stack:
        assert asyncio.run(ask(stack)) == 200
        assert steered(stack) == 1


def test_envoy_steers_over_tls_with_certificates_on_both_sides(certificates: Path) -> None:
    made = tls(certificates)
    with reached({"tls": made["grpc"]}, {"tls": made["envoy"]}) as stack:
        assert asyncio.run(ask(stack)) == 200
        assert steered(stack) == 1


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_envoy_steers_over_tls_with_a_certificate_of_the_gateways_own_making(transport: str) -> None:
    with reached({"transport": transport, "tls": {"self_signed": True}}, {}) as stack:
        assert asyncio.run(ask(stack)) == 200
        assert steered(stack) == 1


@pytest.mark.parametrize(("name", "ca"), [("10.9.9.9", "ca"), ("127.0.0.1", "other")])
def test_a_gateway_that_envoy_cannot_trust_is_not_asked_and_clients_are_served(
    certificates: Path, name: str, ca: str
) -> None:
    made = tls(certificates, name, ca)
    with reached({"tls": made["grpc"]}, {"tls": made["envoy"]}, asked=False) as stack:
        assert asyncio.run(ask(stack)) == 200
        assert steered(stack) == 0


@pytest.mark.parametrize("shape", ["socket", "tls", "several gateways over tls", "tls by a host's name"])
def test_envoy_accepts_the_bootstrap(shape: str, certificates: Path, tmp_path: Path) -> None:
    made = tls(certificates, "gateway.example" if "name" in shape else "127.0.0.1")
    many = {"gateways": ["10.0.0.8:1", "10.0.0.9:1"]} if "several" in shape else {}
    grpc = {"socket": "/run/kvsteer.sock"} if shape == "socket" else {"tls": made["grpc"]}
    envoy = {} if shape == "socket" else {"tls": made["envoy"], **many}
    tree = {
        "pools": [{"replicas": ["10.0.0.1:8000"]}],
        "grpc": {"transport": "fast", **grpc},
        "envoy": envoy,
    }
    path = tmp_path / "envoy.yaml"
    path.write_text(render(parse(yaml.safe_dump(tree), shape)))
    argv = [program("envoy") or "envoy", "--mode", "validate", "--log-level", "warn", "-c", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=patient(60), check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower(), done.stderr
