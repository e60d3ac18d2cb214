"""An hour's soak in minutes: whether memory stays flat, in gateways and in Redis.

    .venv/bin/python -m benchmarks.soak [--minutes 60] [--rate 300] [--check]

Two gateways behind one Envoy share through a real Redis; every request is a chat of its own with a beginning that
others share. All that is kept for a time is kept a fifteenth of it (the journal 4 s, snapshots every second, index
entries 10 s), so that a quarter of a minute is a minute: everything is dropped and made anew as often as in an hour.

After a warm-up of 60,000 requests, resident memory of each gateway and used_memory of Redis are looked at once a
second, and a line is fitted to each. Promised: over the whole time it rises by less than 3 % (a gateway) and 5 %
(Redis, of which one look meets a snapshot and another does not), or 2 MB, and no request fails.
"""

import argparse
import asyncio
import random
import sys
import threading
import time
from itertools import count
from pathlib import Path
from statistics import linear_regression
from typing import Any

import orjson
import redis
import uvloop
import yaml

from benchmarks.http_load import request
from benchmarks.played import Open, Played
from extproc.demo.processes import Child
from extproc.demo.stack import StackSettings

#: By how much time is compressed.
_FASTER = 15.0
#: Requests after which everything was dropped once, and the allocator and bounded caches have what they need.
_WARM = 60_000
#: Most growth as shares of what is there, and growth (bytes) that is noise.
_GATEWAY, _REDIS, _NOISE = 0.03, 0.05, 2e6
_MB = 1e6


class Soaked(Played):
    """The stack, with gateways that forget sooner."""

    def __init__(self) -> None:
        super().__init__(StackSettings(gateways=2, replicas=4, pool={"index": {"ttl": "10s"}}))

    def spawn_gateway(self, number: int) -> Child:
        """As the stack's, in a hurry."""
        path = self.folder / f"kvsteer-{number}.yaml"
        path.write_text(yaml.safe_dump(self.configuration(number)))
        argv = [sys.executable, "-m", "benchmarks.soak", "--gateway", str(path)]
        return self._child(f"gateway-{number}", argv)


def hurry(path: str) -> None:
    """Serve, with what has no setting kept for a fifteenth of its time."""
    from extproc.cli import main as kvsteer
    from extproc.core import reach
    from extproc.io import journal_stream, state_snapshot

    for module, names in (
        (journal_stream, ("_KEEP", "_KEEP_LEAST")),
        (reach, ("MOST_BEHIND",)),
        (state_snapshot, ("_TTL", "_LEFTOVER_TTL")),
    ):
        for name in names:
            value = getattr(module, name)
            setattr(module, name, type(value)(value / _FASTER))
    sys.argv = ["kvsteer", "serve", "-c", path]
    kvsteer()


class Chats(Open):
    """Every request is one that never was: of 2 KB a quarter is shared with others."""

    _numbers = count()

    def payload(self, rng: random.Random) -> bytes:
        """A new chat."""
        messages = [
            {"role": "system", "content": f"{rng.randrange(50)} " * 128},
            {"role": "user", "content": f"{next(self._numbers)} {rng.randbytes(768).hex()}"},
        ]
        body = {"model": "m", "messages": messages, "max_tokens": 64}
        return request("/v1/chat/completions", orjson.dumps(body))


class Looks:
    """Memory of every process, once a second."""

    def __init__(self, pids: dict[str, int], client: Any) -> None:
        self._pids, self._client = pids, client
        self._stopped = threading.Event()
        self.rows: dict[str, list[tuple[float, float]]] = {name: [] for name in [*pids, "redis"]}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            for name, pid in self._pids.items():
                self.rows[name].append((now, resident_of(pid)))
            self.rows["redis"].append((now, float(self._client.info("memory")["used_memory"])))


def resident_of(pid: int) -> float:
    """Resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) * 1024
    raise SystemExit(f"process {pid} is gone")


def growth(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """Bytes at the middle, and by how many the fitted line rises from first to last."""
    slope, start = linear_regression([at for at, _ in rows], [size for _, size in rows])
    first, last = rows[0][0], rows[-1][0]
    return start + slope * (first + last) / 2, slope * (last - first)


def soak(rate: float, seconds: float) -> tuple[dict[str, list[tuple[float, float]]], Chats]:
    """Run it; what the looks saw, and the load."""
    with Soaked() as stack, redis.Redis.from_url(stack.redis_url) as client:
        pids = {name: child.pid for name, child in stack.children.items() if name.startswith("gateway")}
        looks, load = Looks(pids, client), Chats(stack.port, rate, _WARM / rate + seconds)
        timer = threading.Timer(_WARM / rate, looks.start)
        timer.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(load.run())
        looks.stop()
    return looks.rows, load


def main() -> None:
    """Run and print; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="uncompressed")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second, as they are sent")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--gateway", metavar="CONFIG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gateway:
        hurry(args.gateway)
        return
    rows, load = soak(args.rate, args.minutes * 60 / _FASTER)
    held = not load.failed
    for name, seen in rows.items():
        size, grown = growth(seen)
        held = held and grown <= max(_NOISE, size * (_REDIS if name == "redis" else _GATEWAY))
        print(f"{name:>10}: {size / _MB:6.1f} MB, grown by {grown / _MB:+.2f} MB ({grown / size:+.1%})")
    print(f"{load.sent} requests, {load.failed} failed: " + ("held" if held else "missed"))
    if args.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
