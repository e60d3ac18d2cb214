"""Gateways without Envoy that share through a real Redis, each a process of its own, for the benchmarks of sharing.

What a gateway does for a request beside deciding: it charges the ledger, places the prompt in the index, and tells
the others. Requests are made up, and each goes to a replica at random.
"""

import asyncio
import multiprocessing
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import uvloop

from extproc.config import RedisSettings
from extproc.core.decide import Decision, bind
from extproc.core.journal import Batch
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.reach import Position
from extproc.core.shared import Shared
from extproc.core.steering import Rules, Steering
from extproc.io.sharing import Sharing
from extproc.serving import calm_the_collector

REPLICAS = 16
#: As `feedback.distrust` is by default: what others place is watched too.
_DISTRUST = 0.5
#: Shortest sleep of who makes the placements.
_TICK = 0.002
#: Hashes of a prompt: 8 KiB, and the one that tells when it was made.
_HASHES = 8
#: Requests in flight of each gateway; the oldest ends when another begins.
_OPEN = 200
#: Niceness of sessions that are put ahead.
_AHEAD = -15
#: Bytes of a hash and its end on the wire (core/journal.py).
_PAIR = 12
_MOMENT = Struct("<Q")


class Gate:
    """What decides, and what shares."""

    def __init__(self, url: str, name: str) -> None:
        now = time.monotonic()
        pool = Pool("chat", distrust=_DISTRUST, now=now)
        for number in range(REPLICAS):
            pool.join(f"10.0.0.{number}:8000", now)
        self.pool, self.steering = pool, Steering([pool], Rules(), random.Random(name))
        self.sharing = Sharing(RedisSettings(url=url), self.steering, name)
        self.lease = self.sharing.leases.of("snapshot:chat")
        self.rng = random.Random(name)
        self.open: deque[int] = deque()

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
            self.steering.ledger.release(self.open.popleft(), now)


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


class Did(NamedTuple):
    """What a gateway did: placements, CPU seconds, and the delays (s) of others' placements."""

    made: int
    cpu: float
    delays: list[float]


def _listen(gate: Gate, delays: list[float]) -> None:
    """Note how long after its pick each placement of another gateway is applied: one machine has one such clock."""
    shared = gate.sharing.shared

    def hear(batch: Batch, position: Position, now: float, lag: float = 0.0) -> bool:
        news = Shared.hear(shared, batch, position, now, lag)
        if news:
            done = time.monotonic_ns()
            for row in batch.placed:
                data = row.chains[0]
                delays.append((done - _MOMENT.unpack_from(data, (len(data) // _PAIR - 1) * 8)[0]) / 1e9)
        return news

    setattr(shared, "hear", hear)  # noqa: B010 - a probe


async def _drive(gate: Gate, rate: float, seconds: float) -> int:
    """Placements at random moments; how many were made."""
    rng, source = random.Random(1), prompts(random.Random(gate.pool.name))
    due = time.monotonic()
    end = due + seconds
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


async def _one(url: str, name: str, rate: float, seconds: float, warm: float, results: Any) -> None:
    gate, delays = Gate(url, name), list[float]()
    await gate.start()
    calm_the_collector()  # as `kvsteer serve` does
    await asyncio.sleep(warm)
    _listen(gate, delays)
    cpu = time.process_time()
    made = await _drive(gate, rate, seconds)
    cpu = time.process_time() - cpu
    await asyncio.sleep(0.3)
    results.put(Did(made, cpu, delays))
    await gate.stop()


def put_ahead(pid: int) -> bool:
    """Give a process' session the cores before all others, as on a machine of its own; False where that can't be.

    Linux shares cores out by sessions first and by niceness within them (sched(7), "The autogroup feature").
    """
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(_AHEAD))
    except OSError:
        return False
    return True


def _run_one(ahead: bool, *arguments: Any) -> None:
    os.setsid()  # as a supervisor does
    if ahead:
        put_ahead(os.getpid())
    uvloop.run(_one(*arguments))


def run_gates(
    url: str,
    gateways: int,
    rate: float,
    seconds: float,
    warm: float,
    meanwhile: Callable[[], None],
    ahead: bool,
) -> list[Did]:
    """So many gateways make `rate` placements a second in all, for `seconds` after `warm` seconds without.

    `meanwhile` is called once all processes are started; `ahead` puts them before other work (`put_ahead`).
    """
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    gates = [
        context.Process(
            target=_run_one,
            args=(ahead, url, f"gw-{n}", rate / gateways, seconds, warm, results),
            daemon=True,
        )
        for n in range(gateways)
    ]
    for gate in gates:
        gate.start()
    meanwhile()
    found = [results.get(timeout=seconds + warm + 60) for _ in gates]
    for gate in gates:
        gate.join()
    return found
