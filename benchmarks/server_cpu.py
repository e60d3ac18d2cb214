"""CPU of the ext_proc server per HTTP request behind a real Envoy: the full gateway beside a no-op on grpc.aio.

    .venv/bin/python -m benchmarks.server_cpu [--requests 4000] [--rounds 5] [--replicas 16] [--bytes 2048]

Twice, each time a gateway and a no-op that Envoy tells the same: with default settings, by which a third message
tells how each answer ended, and is learned from; and with `feedback.source: off`, the two messages of a request
alone.

One Envoy, one load, alternating between the servers in one run; user + system time of each server process
from /proc, divided by requests; medians over the rounds. The replicas are answered by Envoy itself, metrics
included, so that nothing else takes the two cores.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import uvloop
import yaml

from benchmarks.http_load import NUMBER, Load, request
from extproc.config import parse
from extproc.demo.processes import Child, answers, free_port, program
from extproc.demo.workload import text
from extproc.envoyconfig import bootstrap

_TICK = os.sysconf("SC_CLK_TCK")
_METRICS = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
    for name, value in [
        ("num_requests_running", 3.0),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", 0.25),
        ("prompt_tokens_total", 1000.0),
        ("generation_tokens_total", 1000.0),
    ]
)
_TYPE = "type.googleapis.com/envoy.extensions.filters"
_OFF: dict[str, Any] = {"feedback": {"source": "off"}}
#: What is compared: name of a setting -> what of it is not as by default.
_COMPARED: dict[str, dict[str, Any]] = {"default": {}, "off": _OFF}
#: As vLLM's by default, so that Envoy reads its usage where it is told to. Nothing of cached tokens: an answer that
#: is always the same can't tell what was, and to tell what was not would teach the gateway of caches that lose all.
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        ],
        "usage": {
            "prompt_tokens": 500,
            "completion_tokens": 7,
            "total_tokens": 507,
            "prompt_tokens_details": None,
        },
    }
)


def cpu_seconds(pid: int) -> float:
    """User + system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def payloads(size: int, count: int = 300, path: str = "/v1/chat/completions") -> list[bytes]:
    """Chat requests of about `size` bytes: 20 system prompts, two turns that a few share, a last one of their own."""
    rng = random.Random(3)
    systems = [text(rng, size // 2) for _ in range(20)]
    made = []
    for _ in range(count):
        messages = [
            {"role": "system", "content": rng.choice(systems)},
            {"role": "user", "content": text(rng, size // 6)},
            {"role": "assistant", "content": text(rng, size // 6)},
            {"role": "user", "content": NUMBER.decode() + text(rng, size // 6)},
        ]
        made.append(request(path, orjson.dumps({"model": "m", "messages": messages, "max_tokens": 64})))
    return made


class Bench:
    """Envoy with a listener for each server, and the servers.

    Args:
        folder: for files.
        replicas: how many addresses Envoy plays.
        servers: name -> settings that this one has beside the common ones. Those whose name begins with `noop` are
            no-ops, and Envoy tells them what it would tell a gateway with these settings.
    """

    def __init__(self, folder: Path, replicas: int, servers: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.upstream, self.admin = free_port(), free_port()
        self.own = servers
        self.listeners = {name: free_port() for name in servers}
        self.servers = {name: free_port() for name in servers}
        self.replicas = [f"127.0.0.{i + 1}:{self.upstream}" for i in range(replicas)]
        self.children: list[Child] = []

    def start(self) -> dict[str, Child]:
        """Start everything; returns the servers by name."""
        envoy = self.folder / "envoy.yaml"
        envoy.write_text(yaml.safe_dump(self.envoy()))
        argv = [program("envoy") or "envoy", "-c", str(envoy), "--concurrency", "1", "--use-dynamic-base-id"]
        self._child("envoy", [*argv, "--log-level", "error"], next(iter(self.listeners.values())))
        return {name: self._child(name, self._command(name), port) for name, port in self.servers.items()}

    def _command(self, name: str) -> list[str]:
        if name.startswith("noop"):
            return [sys.executable, "-m", "benchmarks.noop_server", str(self.servers[name])]
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(self.settings(name)))
        return [sys.executable, "-m", "extproc", "serve", "-c", str(path)]

    def _child(self, name: str, argv: list[str], port: int) -> Child:
        child = Child(name, argv, self.folder)
        self.children.append(child)
        child.wait_until(lambda: answers(port), 20)
        return child

    def settings(self, name: str) -> dict[str, Any]:
        """kvsteer.yaml of a gateway, or what Envoy is to believe of the no-op."""
        return {
            "grpc": {"address": f"127.0.0.1:{self.servers[name]}", "transport": "grpcio"},  # as the no-op
            "admin": {"address": f"127.0.0.1:{free_port()}"},
            "pools": [{"name": "bench", "engine": "vllm", "replicas": self.replicas}],
            "envoy": {"listen": f"127.0.0.1:{self.listeners[name]}", "admin": f"127.0.0.1:{self.admin}"},
            **self.own[name],
        }

    def envoy(self) -> dict[str, Any]:
        """The generated bootstrap, once for each server with names of its own, and replicas that Envoy plays."""
        whole: dict[str, Any] = {}
        for name in self.servers:
            tree = bootstrap(parse(yaml.safe_dump(self.settings(name)), "bench"))
            tree = json.loads(json.dumps(tree).replace("kvsteer_", f"{name}_"))
            tree["static_resources"]["listeners"][0]["name"] = name
            whole = whole or {**tree, "static_resources": {"listeners": [], "clusters": []}}
            for kind in ("listeners", "clusters"):
                whole["static_resources"][kind] += tree["static_resources"][kind]
        whole["static_resources"]["listeners"].append(upstream(self.upstream))
        return whole


def upstream(port: int) -> dict[str, Any]:
    """A listener that answers as replicas would, metrics too."""

    def direct(prefix: str, kind: str, body: str) -> dict[str, Any]:
        answer = {"status": 200, "body": {"inline_string": body}}
        header = {
            "header": {"key": "content-type", "value": kind},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
        return {
            "match": {"prefix": prefix},
            "direct_response": answer,
            "response_headers_to_add": [header],
        }

    routes = [direct("/metrics", "text/plain", _METRICS), direct("/", "application/json", _ANSWER)]
    manager = {
        "@type": f"{_TYPE}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "upstream",
        "route_config": {"virtual_hosts": [{"name": "u", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{_TYPE}.http.router.v3.Router"},
            }
        ],
    }
    return {
        "name": "upstream",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }


def measure(
    bench: Bench, servers: dict[str, Child], load: list[bytes], requests: int, rounds: int
) -> dict[str, list[float]]:
    """Microseconds of server CPU per request, a value a round, for each server."""
    figures: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, child in servers.items():
            before = cpu_seconds(child.pid)
            run = Load(bench.listeners[name], load, requests, 32)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run.run())
            if run.failed:
                raise SystemExit(f"{name}: {run.failed} of {requests} requests failed:\n{child.said()}")
            if number:  # the first round warms up
                figures[name].append((cpu_seconds(child.pid) - before) / requests * 1e6)
    return figures


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=2048)
    parser.add_argument("--limit", type=float, help="fail when a ratio is above this")
    args = parser.parse_args()
    names = {f"{kind}_{setting}": own for setting, own in _COMPARED.items() for kind in ("noop", "gateway")}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.replicas, names)
        try:
            servers = bench.start()
            figures = measure(bench, servers, payloads(args.bytes), args.requests, args.rounds)
        finally:
            for child in bench.children:
                child.stop()
    print(
        f"{args.bytes} bytes, {args.replicas} replicas, {args.requests} requests a round; CPU of a request:"
    )
    ratios = {setting: told(setting, figures) for setting in _COMPARED}
    above = [
        f"{setting} {ratio:.2f}" for setting, ratio in ratios.items() if args.limit and ratio > args.limit
    ]
    if above:
        raise SystemExit(f"above {args.limit}: {', '.join(above)}")


def told(setting: str, figures: dict[str, list[float]]) -> float:
    """Print the no-op's and the gateway's figures with one setting; returns the ratio of their medians."""
    medians = {}
    for kind in ("noop", "gateway"):
        values = figures[f"{kind}_{setting}"]
        medians[kind] = statistics.median(values)
        rounds = ", ".join(f"{value:.0f}" for value in values)
        print(f"{setting:>8} {kind:>8}: {medians[kind]:5.0f} us   (rounds: {rounds})")
    ratio = medians["gateway"] / medians["noop"]
    print(f"{setting:>8} {'ratio':>8}: {ratio:5.2f}")
    return ratio


if __name__ == "__main__":
    main()
