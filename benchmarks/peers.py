"""CPU of a request beside others': a no-op in C++, and routers that stand in the place of gateway and Envoy together.

    .venv/bin/python -m benchmarks.peers [--cpp /tmp/noop_cpp/noop] [--router sglang=/opt/r/bin/sglang-router] ...

The C++ no-op is built as benchmarks/noop_cpp/README.md says. Routers are commands that take `--worker-urls`, `--host`
and `--port`: `sglang-router launch` and `vllm-router`, installed in an environment of their own. All get one load, by
turns, in one run. Replicas are played by an Envoy of their own, so that the other Envoy's CPU is what a proxy costs.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
import yaml

from benchmarks.http_load import Load
from benchmarks.server_cpu import cpu_seconds, payloads, upstream
from benchmarks.transport import TransportBench
from extproc.demo.processes import Child, free_port, program

_OFF: dict[str, Any] = {"feedback": {"source": "off"}}
#: Requests under way at once.
_CONNECTIONS = 32


class PeersBench(TransportBench):
    """The gateway on `fast` with and without feedback, no-ops, and other routers.

    Args:
        folder: for files.
        replicas: how many addresses are played.
        cpp: the C++ no-op's program; empty for none.
        routers: name -> the beginning of its command.
    """

    def __init__(self, folder: Path, replicas: int, cpp: str, routers: dict[str, list[str]]) -> None:
        names = {
            "noop_fast": _OFF,
            **({"noop_cpp": _OFF} if cpp else {}),
            "gateway_fast": _OFF,
            "gateway": {},
        }
        super().__init__(folder, replicas, names)
        self._cpp = cpp
        self._routers = routers
        self._played = self.upstream
        self.envoy_pid = 0

    def settings(self, name: str) -> dict[str, Any]:
        """Every gateway is on `fast`."""
        tree = super().settings(name)
        tree["grpc"]["transport"] = "fast"
        return tree

    def envoy(self) -> dict[str, Any]:
        """Without the replicas, which another Envoy plays."""
        tree = super().envoy()
        tree["static_resources"]["listeners"].pop()
        return tree

    def start(self) -> dict[str, Child]:
        """Replicas, Envoy, servers, then routers, which ask replicas for their health first."""
        path = self.folder / "replicas.yaml"
        path.write_text(yaml.safe_dump({"static_resources": {"listeners": [upstream(self._played)]}}))
        argv = [program("envoy") or "envoy", "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id"]
        self._child("replicas", [*argv, "--log-level", "error"], self._played)
        servers = super().start()
        self.envoy_pid = next(child.pid for child in self.children if child.name == "envoy")
        for name, command in self._routers.items():
            port = self.listeners[name] = free_port()
            urls = [f"http://{replica}" for replica in self.replicas]
            argv = [*command, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port)]
            servers[name] = self._child(name, [*argv, "--prometheus-port", str(free_port())], port)
        return servers

    def _command(self, name: str) -> list[str]:
        return [self._cpp, str(self.servers[name])] if name == "noop_cpp" else super()._command(name)


def measure(
    bench: PeersBench, servers: dict[str, Child], load: Sequence[bytes], requests: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """(server's, Envoy's) microseconds of CPU for a request, a pair a round, for each server."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, child in servers.items():
            pids = (child.pid, bench.envoy_pid)
            before = [cpu_seconds(pid) for pid in pids]
            run = Load(bench.listeners[name], load, requests, _CONNECTIONS)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run.run())
            if run.failed:
                raise SystemExit(f"{name}: {run.failed} of {requests} requests failed:\n{child.said()}")
            spent = [(cpu_seconds(pid) - was) / requests * 1e6 for pid, was in zip(pids, before, strict=True)]
            if number:  # the first round warms up
                figures[name].append((spent[0], spent[1]))
    return figures


def run(size: int, args: argparse.Namespace) -> None:
    """Measure with bodies of `size` bytes and print."""
    routers = {name: command.split() for name, _, command in (text.partition("=") for text in args.router)}
    with tempfile.TemporaryDirectory() as folder:
        bench = PeersBench(Path(folder), args.replicas, args.cpp, routers)
        try:
            servers = bench.start()
            figures = measure(bench, servers, payloads(size), args.requests, args.rounds)
        finally:
            for child in bench.children:
                child.stop()
    print(f"{size} bytes, {args.replicas} replicas, {args.requests} requests a round; us of CPU a request:")
    for name, pairs in figures.items():
        server, envoy = (statistics.median(column) for column in zip(*pairs, strict=True))
        rounds = ", ".join(f"{pair[0]:.0f}" for pair in pairs)
        beside = "" if name in routers else f"; Envoy {envoy:.0f}, together {server + envoy:.0f}"
        print(f"{name:>13}: {server:6.0f}{beside}   (rounds: {rounds})")


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpp", default=os.environ.get("KVSTEER_NOOP_CPP", ""), help="the C++ no-op")
    parser.add_argument(
        "--router", action="append", default=[], metavar="NAME=COMMAND", help="a router; may be repeated"
    )
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--bytes", type=int, nargs="+", default=[2048, 32768])
    args = parser.parse_args()
    for size in args.bytes:
        run(size, args)


if __name__ == "__main__":
    main()
