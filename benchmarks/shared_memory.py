"""What a million (hash, replica) pairs take: in gateways that placed, heard of or loaded them, and in Redis.

    .venv/bin/python -m benchmarks.shared_memory [--check]

One gateway places prompts of 30 hashes, a second hears of them by the journal, and a third starts when all are told
and loads the snapshot. Each is a process of its own, and its resident memory is compared with what it had before it
began to share. Of Redis the most that it ever used (used_memory) counts, above what it uses empty: the journal, and
two snapshots while a new one takes the place of the one before. Promised: 200 MB a gateway, 100 MB in Redis.
"""

import argparse
import asyncio
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import uvloop

from benchmarks.index_memory import resident
from benchmarks.journal_gates import Gate
from extproc.core.prompt import Chain, Prompt
from extproc.core.reach import MOST_BEHIND
from extproc.demo.stack import Stack, StackSettings
from extproc.serving import calm_the_collector

_PAIRS = 1_000_000
_LENGTH = 30
#: Prompts placed in a row, and the pause (s) after them: some 1,500 a second.
_BURST, _PAUSE = 6, 0.004
#: Most bytes above idle, in a gateway and in Redis.
_MOST_GATEWAY, _MOST_REDIS = 200e6, 100e6
#: Seconds between two snapshots.
_SNAPSHOTS = MOST_BEHIND / 1000
#: Seconds until everything must be known everywhere.
_LONGEST = 180.0
_MB = 1e6


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait. Raises SystemExit when it never comes true."""
    deadline = time.monotonic() + _LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {_LONGEST:.0f} s")
        await asyncio.sleep(0.1)


async def place_all(gate: Gate) -> None:
    """Place prompts of hashes that nobody had before until all pairs are there."""
    rng = random.Random(1)
    ends = [1024 * (i + 1) for i in range(_LENGTH)]
    for number in range(-(-_PAIRS // _LENGTH)):
        chain = Chain([rng.getrandbits(60) for _ in range(_LENGTH)], ends)
        gate.place(Prompt(dialect="d", kind="generate", chains=[chain], size=ends[-1]))
        if number % _BURST == 0:
            await asyncio.sleep(_PAUSE)


async def hold(url: str, name: str, tells: bool, ready: Any, done: Any, results: Any) -> None:
    """One gateway: tells or hears until it knows all, then waits for `done`; reports its memory."""
    gate = Gate(url, name)
    for replica in gate.pool.replicas:
        gate.pool.presume(replica, 2**32)
    calm_the_collector()
    idle = most = resident()
    await gate.start()
    if tells:
        await place_all(gate)
    await until(lambda: len(gate.pool.index) >= _PAIRS, f"{name} knows all pairs")
    ready.release()
    while not done.is_set():
        most = max(most, resident())
        await asyncio.sleep(0.2)
    results.put((name, len(gate.pool.index), most - idle))
    await gate.stop()


def _run(*arguments: Any) -> None:
    uvloop.run(hold(*arguments))


class Watch:
    """Notes the most memory that Redis uses."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._stopped = threading.Event()
        self.empty = self.most = self._used()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The most bytes above what it used when empty."""
        self._stopped.set()
        self._thread.join()
        return self.most - self.empty

    def _look(self) -> None:
        while not self._stopped.wait(0.1):
            self.most = max(self.most, self._used())

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory"])


def measure(url: str, client: Any) -> tuple[list[tuple[str, int, int]], int]:
    """Name, pairs and bytes above idle of each gateway; bytes of Redis."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    ready, done = context.Semaphore(0), context.Event()
    watch, gates = Watch(client), []

    def start(name: str, tells: bool) -> None:
        gates.append(context.Process(target=_run, args=(url, name, tells, ready, done, results), daemon=True))
        gates[-1].start()

    def await_ready(count: int) -> None:
        for _ in range(count):
            if not ready.acquire(timeout=_LONGEST + 10):
                raise SystemExit("a gateway does not come to know all pairs")

    start("hears", False)
    start("places", True)
    await_ready(2)
    time.sleep(2 * _SNAPSHOTS + 2)  # a snapshot of everything, and the next in its place
    start("loads", False)
    await_ready(1)
    time.sleep(_SNAPSHOTS)
    done.set()
    found = [results.get(timeout=30) for _ in gates]
    for gate in gates:
        gate.join()
    return found, watch.stop()


def main() -> None:
    """Run and print; with --check exit 1 when a promise is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stack = Stack(StackSettings())
    try:
        stack.start_redis()
        with redis.Redis.from_url(stack.redis_url) as client:
            gateways, stored = measure(stack.redis_url, client)
    finally:
        stack.close()
    for name, pairs, size in gateways:
        print(f"gateway that {name}: {pairs} pairs, {size / _MB:.0f} MB above idle")
    print(f"Redis: {stored / _MB:.0f} MB at most")
    held = max(size for _, _, size in gateways) <= _MOST_GATEWAY and stored <= _MOST_REDIS
    print("every promise held" if held else "missed")
    if check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
