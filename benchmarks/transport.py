"""CPU of a server for each HTTP request behind a real Envoy: no-op and full gateway, on grpc.aio and on `fast`.

    .venv/bin/python -m benchmarks.transport [--requests 4000] [--rounds 5] [--replicas 16] [--bytes 2048 32768]

One Envoy, one load, one run, taking turns; user + system time of each server process from /proc, divided by
requests; medians over the rounds. Envoy plays the replicas. `--check` fails above the limits that are promised.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.server_cpu import Bench, measure, payloads

_OFF: dict[str, Any] = {"feedback": {"source": "off"}}
#: name -> the module of a no-op server.
_NOOPS = {"noop_aio": "benchmarks.noop_server", "noop_fast": "benchmarks.noop_fast"}
#: What the fast one may take of the other: no-op, then the gateway by bytes of a request.
_NOOP_LIMIT = 0.15
_LIMITS = {2048: 0.25, 32768: 0.35}


class TransportBench(Bench):
    """Two gateways and two no-ops behind one Envoy."""

    def _command(self, name: str) -> list[str]:
        if name in _NOOPS:
            return [sys.executable, "-m", _NOOPS[name], str(self.servers[name])]
        return super()._command(name)

    def settings(self, name: str) -> dict[str, Any]:
        """As the base class, with the transport that the name says."""
        tree = super().settings(name)
        tree["grpc"]["transport"] = "fast" if name == "gateway_fast" else "grpcio"
        return tree


def ratios(medians: dict[str, float]) -> dict[str, float]:
    """fast / grpc.aio, for the no-op and for the gateway; and what the gateway adds on `fast`, in us."""
    return {
        "noop": medians["noop_fast"] / medians["noop_aio"],
        "gateway": medians["gateway_fast"] / medians["gateway_aio"],
    }


def run(size: int, args: argparse.Namespace) -> dict[str, float]:
    """Measure with bodies of `size` bytes, print, and return the ratios."""
    names = dict.fromkeys([*_NOOPS, "gateway_aio", "gateway_fast"], _OFF)
    with tempfile.TemporaryDirectory() as folder:
        bench = TransportBench(Path(folder), args.replicas, names)
        try:
            servers = bench.start()
            figures = measure(bench, servers, payloads(size), args.requests, args.rounds)
        finally:
            for child in bench.children:
                child.stop()
    medians = {name: statistics.median(values) for name, values in figures.items()}
    print(f"{size} bytes, {args.replicas} replicas, {args.requests} requests a round:")
    for name, values in figures.items():
        rounds = ", ".join(f"{value:.0f}" for value in values)
        print(f"{name:>13}: {medians[name]:6.0f} us of CPU a request   (rounds: {rounds})")
    made = ratios(medians)
    print("  " + ", ".join(f"{name} fast/aio {value:.2f}" for name, value in made.items()))
    return made


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--bytes", type=int, nargs="+", default=[2048, 32768])
    parser.add_argument("--check", action="store_true", help="fail above the promised ratios")
    args = parser.parse_args()
    wrong = []
    for size in args.bytes:
        made = run(size, args)
        if made["noop"] > _NOOP_LIMIT and size == min(args.bytes):
            wrong.append(f"no-op: {made['noop']:.2f} > {_NOOP_LIMIT}")
        limit = _LIMITS.get(size, 1.0)
        if made["gateway"] > limit:
            wrong.append(f"gateway at {size} bytes: {made['gateway']:.2f} > {limit}")
    if args.check and wrong:
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    main()
