"""What the journal costs and how late it is: gateways without Envoy that share through a real Redis.

.venv/bin/python -m benchmarks.journal [rates] [snapshot]

Each gateway is a process of its own; delays are from a pick until others have applied it.
"""

import asyncio
import gc
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from itertools import count
from statistics import quantiles
from typing import Any

import redis
import uvloop

from benchmarks.index_memory import resident
from extproc.config import RedisSettings
from extproc.core.decide import Decision, bind
from extproc.core.journal import Batch, unpack_chain
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.reach import Position
from extproc.core.shared import Shared
from extproc.core.steering import Rules, Steering
from extproc.demo.stack import Stack, StackSettings
from extproc.io.sharing import Sharing
from extproc.io.tasks import Supervisor

_GATEWAYS = 4
_REPLICAS = 16
_SECONDS = 6.0
_WARM = 1.0
#: Shortest sleep of who makes the placements.
_TICK = 0.002
#: Hashes of a prompt: 8 KiB.
_HASHES = 8
#: Requests in flight of each gateway; the oldest ends when another begins.
_OPEN = 200


class Gate:
    """What decides, and what shares."""

    def __init__(self, url: str, name: str) -> None:
        now = time.monotonic()
        pool = Pool("chat", now=now)
        for number in range(_REPLICAS):
            pool.join(f"10.0.0.{number}:8000", now)
        settings = RedisSettings(url=url)
        self.pool, self.steering = pool, Steering([pool], Rules(), random.Random(name))
        self.sharing = Sharing(settings, self.steering, name)
        self.lease = self.sharing.leases.of("snapshot")
        self.rng = random.Random(name)
        self.open: list[int] = []

    async def start(self) -> None:
        """Begin to share."""
        await self.sharing.start()

    async def stop(self) -> None:
        """End."""
        await self.sharing.stop()

    def place(self, prompt: Prompt) -> None:
        """Bind a request to a replica at random, and end the oldest: the journal is measured, not deciding."""
        key, now = self.steering.new_key(), time.monotonic()
        decision = Decision(key, self.pool, prompt, now)
        decision.tokens, decision.output, decision.work = prompt.size / 4, 256.0, prompt.size / 8
        bind(decision, self.rng.choice(self.pool.replicas), self.steering.ledger)
        self.open.append(key)
        if len(self.open) > _OPEN:
            self.steering.ledger.release(self.open.pop(0), now)


def prompts(rng: random.Random) -> Iterator[Prompt]:
    """Sessions that come back; the last hash of each prompt is the time in ns at which it was made."""
    chains: list[list[int]] = []
    for number in count():
        if number % 4 == 0 or not chains:
            chains.append([rng.getrandbits(60) for _ in range(_HASHES)])
            chains = chains[-500:]
        hashes = [*rng.choice(chains), time.monotonic_ns()]
        ends = [1024 * (i + 1) for i in range(len(hashes))]
        yield Prompt(dialect="d", kind="generate", chains=[Chain(hashes, ends)], size=ends[-1])


def listen(gate: Gate, delays: list[float]) -> None:
    """Note how long after its pick each placement of another gateway is applied: one machine has one such clock."""
    shared = gate.sharing.shared

    def hear(batch: Batch, position: Position, now: float, lag: float = 0.0) -> bool:
        news = Shared.hear(shared, batch, position, now, lag)
        if news:
            done = time.monotonic_ns()
            for row in batch.placed:
                chain = unpack_chain(row.chains[0])
                if chain is not None:
                    delays.append((done - chain.hashes[-1]) / 1e9)
        return news

    setattr(shared, "hear", hear)  # noqa: B010 - a probe


async def drive(gate: Gate, rate: float) -> int:
    """Placements at random moments; how many were made."""
    rng, source = random.Random(1), prompts(random.Random(gate.pool.name))
    due = time.monotonic()
    end = due + _SECONDS
    for number in count():
        due += rng.expovariate(rate)
        if due > end:
            return number
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(max(wait, _TICK))
        elif number % 16 == 0:
            await asyncio.sleep(0)
        gate.place(next(source))
    raise AssertionError


async def one(url: str, name: str, rate: float, results: Any) -> None:
    """One gateway in its own process: how many placed, CPU seconds, delays."""
    gate, delays = Gate(url, name), list[float]()
    await gate.start()
    await asyncio.sleep(_WARM)
    listen(gate, delays)
    cpu = time.process_time()
    made = await drive(gate, rate)
    cpu = time.process_time() - cpu
    await asyncio.sleep(0.3)
    results.put((made, cpu, delays))
    await gate.stop()


def _one(url: str, name: str, rate: float, results: Any) -> None:
    uvloop.run(one(url, name, rate, results))


def calls(client: Any) -> dict[str, int]:
    """Calls of each command so far."""
    stats = client.info("commandstats").items()
    return {name.removeprefix("cmdstat_"): said["calls"] for name, said in stats}


def run(url: str, rate: float, client: Any) -> float:
    """One rate; prints its line, and returns Redis commands a second."""
    client.flushall()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    gates = [
        context.Process(target=_one, args=(url, f"gw-{n}", rate / _GATEWAYS, results))
        for n in range(_GATEWAYS)
    ]
    for gate in gates:
        gate.start()
    while len(client.execute_command("CLIENT", "LIST").split(b"name=kvsteer-journal-in")) <= _GATEWAYS:
        time.sleep(0.02)
    time.sleep(_WARM + 0.5)
    before, began = calls(client), time.monotonic()
    time.sleep(_SECONDS - 1)
    after, took = calls(client), time.monotonic() - began
    found = [results.get(timeout=60) for _ in gates]
    for gate in gates:
        gate.join()
    each = {name: (n - before.get(name, 0)) / took for name, n in after.items()}
    cuts = quantiles([delay for _, _, delays in found for delay in delays], n=100)
    print(
        f"{rate:6.0f} placements/s: {sum(made for made, _, _ in found) / _SECONDS:6.0f} made; pick to others "
        f"P50 {cuts[49] * 1e3:5.1f} ms, P99 {cuts[98] * 1e3:5.1f} ms; XADD {each.get('xadd', 0):4.0f}/s, "
        f"XREAD {each.get('xread', 0):4.0f}/s; {sum(cpu for _, cpu, _ in found) / _SECONDS:.2f} cores in "
        f"{_GATEWAYS} processes; stream {client.memory_usage('kvsteer:journal') / 2**20:.1f} MiB",
        flush=True,
    )
    return each.get("xadd", 0.0) + each.get("xread", 0.0)


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
        first.pool.place(first.pool.replicas[step % _REPLICAS], [Chain(hashes, ends)], time.monotonic())
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


async def main() -> None:
    """Run what was asked for, or everything."""
    wanted = set(sys.argv[1:]) or {"rates", "snapshot"}
    stack = Stack(StackSettings())
    try:
        stack.start_redis()
        with redis.Redis.from_url(stack.redis_url) as client:
            if "rates" in wanted:
                few = run(stack.redis_url, 500, client)
                many = run(stack.redis_url, 5000, client)
                print(f"XADD and XREAD at ten times the rate: x{many / few:.2f}")
            if "snapshot" in wanted:
                await snapshot(stack.redis_url, client)
    finally:
        stack.close()


if __name__ == "__main__":
    asyncio.run(main())
