"""What the journal costs and how late it is: gateways without Envoy that share through a real Redis.

    .venv/bin/python -m benchmarks.journal [delay] [commands] [snapshot] [--check] [--rounds 3] [--ahead]

Each gateway is a process of its own.

    delay      from a pick until another gateway has applied it, four gateways, at 5,000 placements a second in all.
               Promised: P50 at most 30 ms. The best of the rounds counts: other work on the machine only ever adds.
    commands   Redis commands a second of four gateways, of every kind (INFO commandstats), at 500 and at 5,000
               placements a second. Promised: at most 1.2 times as many.
    snapshot   to write and to load the index at a million pairs.

Four gateways at 5,000 a second take more than a core. Where other work is on the machine, --ahead (as root, on Linux)
puts them and Redis before it, so that delays are those of a machine that is free.
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from statistics import quantiles
from typing import Any, NamedTuple

import redis

from benchmarks.index_memory import resident
from benchmarks.journal_gates import REPLICAS, Did, Gate, put_ahead, run_gates
from extproc.core.prompt import Chain
from extproc.demo.stack import Stack, StackSettings
from extproc.io.tasks import Supervisor

_GATEWAYS = 4
_SECONDS = 6.0
_WARM = 1.0
_FEW, _MANY = 500.0, 5000.0
_MOST_P50, _MOST_RATIO = 0.030, 1.2
#: Calls that are this benchmark's own.
_OURS = frozenset({"info", "client|list", "flushall", "memory|usage"})


class Seen(NamedTuple):
    """One rate: delays in seconds, and calls a second of each Redis command."""

    p50: float
    p99: float
    calls: dict[str, float]
    cores: float

    @property
    def commands(self) -> float:
        """Calls a second in all."""
        return sum(self.calls.values())


def calls(client: Any) -> dict[str, int]:
    """Calls of each command so far, without our own. What a script calls counts as well."""
    stats = {
        name.removeprefix("cmdstat_"): said["calls"] for name, said in client.info("commandstats").items()
    }
    return {name: count for name, count in stats.items() if name not in _OURS}


class Counter:
    """Counts Redis' commands while gateways are busy."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.each: dict[str, float] = {}

    def __call__(self) -> None:
        """From when all share until shortly before they end."""
        while self._client.execute_command("CLIENT", "LIST").count(b"name=kvsteer-journal-in") < _GATEWAYS:
            time.sleep(0.02)
        time.sleep(_WARM + 0.5)
        before, began = calls(self._client), time.monotonic()
        time.sleep(_SECONDS - 1)
        after, took = calls(self._client), time.monotonic() - began
        self.each = {name: (n - before.get(name, 0)) / took for name, n in after.items()}


def run(url: str, rate: float, client: Any, ahead: bool) -> Seen:
    """One rate; prints its line."""
    client.flushall()
    counter = Counter(client)
    found: list[Did] = run_gates(url, _GATEWAYS, rate, _SECONDS, _WARM, counter, ahead)
    cuts = quantiles([delay for did in found for delay in did.delays], n=100)
    seen = Seen(cuts[49], cuts[98], counter.each, sum(did.cpu for did in found) / _SECONDS)
    most = sorted(seen.calls.items(), key=lambda item: -item[1])[:3]
    print(
        f"{rate:6.0f} placements/s: {sum(did.made for did in found) / _SECONDS:6.0f} made; pick to others "
        f"P50 {seen.p50 * 1e3:5.1f} ms, P99 {seen.p99 * 1e3:5.1f} ms; {seen.commands:4.0f} Redis commands/s "
        f"({', '.join(f'{name} {count:.0f}' for name, count in most)}); {seen.cores:.2f} cores in "
        f"{_GATEWAYS} processes; stream {client.memory_usage('kvsteer:journal') / 2**20:.1f} MiB",
        flush=True,
    )
    return seen


def delay(url: str, client: Any, rounds: int, ahead: bool) -> bool:
    """Whether the promise of the delay held in some round."""
    best = min(run(url, _MANY, client, ahead).p50 for _ in range(rounds))
    print(f"best round: P50 {best * 1e3:.1f} ms, promised {_MOST_P50 * 1e3:.0f}")
    return best <= _MOST_P50


def commands(url: str, client: Any, ahead: bool) -> bool:
    """Whether commands grow with gateways and not with requests."""
    ratio = run(url, _MANY, client, ahead).commands / run(url, _FEW, client, ahead).commands
    print(f"Redis commands at ten times the rate: x{ratio:.2f}, promised {_MOST_RATIO}")
    return ratio <= _MOST_RATIO


async def snapshot(url: str, client: Any, pairs: int = 1_000_000) -> None:
    """Write and load the snapshot of a million pairs."""
    client.flushall()
    first, late = Gate(url, "first"), Gate(url, "late")
    rng, length = random.Random(1), 30
    gc.collect()
    idle, empty = resident(), client.info("memory")["used_memory"]
    for replica in first.pool.replicas:
        first.pool.presume(replica, 2**32)
    for step in range(pairs // length):
        hashes = [rng.getrandbits(60) for _ in range(length)]
        ends = [1024 * (i + 1) for i in range(length)]
        first.pool.place(first.pool.replicas[step % REPLICAS], [Chain(hashes, ends)], time.monotonic())
    filled = resident()
    tasks = Supervisor()
    first.lease.willing = lambda: True
    first.sharing.leases.start(tasks)
    while not first.lease.held:  # noqa: ASYNC110 - a benchmark
        await asyncio.sleep(0.05)
    began = time.monotonic()
    await first.sharing.snapshots.write(first.pool)
    wrote = time.monotonic() - began
    stored = client.info("memory")["used_memory"] - empty
    for replica in late.pool.replicas:
        late.pool.presume(replica, 2**32)
    holds: list[float] = []
    watch = asyncio.create_task(beat(holds))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    loaded = await late.sharing.snapshots.load()
    took = time.monotonic() - began
    watch.cancel()
    holds.sort()
    print(
        f"snapshot of {len(first.pool.index)} pairs: written in {wrote:.2f} s, {stored / 2**20:.1f} MiB in Redis; "
        f"{loaded} loaded in {took:.2f} s; the loop was held {holds[-1] * 1e3:.1f} ms at most, "
        f"P99 {holds[int(len(holds) * 0.99)] * 1e3:.1f} ms; index of the writer {(filled - idle) / 2**20:.0f} MiB"
    )
    await tasks.close()
    for gate in (first, late):
        await gate.sharing.stop()


async def beat(holds: list[float]) -> None:
    """Note how long the loop takes for a turn."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(0)
        now = time.monotonic()
        holds.append(now - last)
        last = now


def main() -> None:
    """Run what was asked for, or everything; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=[[], "delay", "commands", "snapshot"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ahead", action="store_true")
    args = parser.parse_args()
    wanted = set(args.what) or {"delay", "commands", "snapshot"}
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    stack, held = Stack(StackSettings()), True
    try:
        stack.start_redis()
        ahead = args.ahead and put_ahead(stack.children["redis"].pid)
        if args.ahead and not ahead:
            print("not put ahead of other work, which needs Linux and root")
        with redis.Redis.from_url(stack.redis_url) as client:
            if "delay" in wanted:
                held = delay(stack.redis_url, client, args.rounds, ahead) and held
            if "commands" in wanted:
                held = commands(stack.redis_url, client, ahead) and held
            if "snapshot" in wanted:
                asyncio.run(snapshot(stack.redis_url, client))
    finally:
        stack.close()
    if args.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
