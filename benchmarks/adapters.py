"""Adapter traffic in virtual time: how often a request finds its LoRA adapter loaded, and how many loads there are.

    .venv/bin/python -m benchmarks.adapters [--check] [--requests 12000] [--rate 24]

Six emulated engines with eight slots each, forty adapters whose popularity is Zipf's (the n-th is asked for 1/n as
often as the first), one gateway that runs the core as the server does and hears samples twice a second. Beside the
rule that knows adapters, the same one that does not. The best assignment keeps every adapter in some slot for good,
as 48 slots hold 40: all requests but the first of each adapter find theirs.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

import orjson

from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.decide import decide
from extproc.core.dialects import Limits, read
from extproc.core.fleet import Traits
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.demo.workload import text
from extproc.engines import get
from extproc.sim.emulated.books import Books
from extproc.sim.emulated.cache import BlockPool
from extproc.sim.emulated.jobs import Reader
from extproc.sim.emulated.metrics import exposition
from extproc.sim.emulated.scheduler import Scheduler, Sequence
from extproc.sim.emulated.settings import EngineSettings

REPLICAS: Final = 6
SLOTS: Final = 8
ADAPTERS: Final = 40
#: Seconds that a load takes, in the engines and as the gateway is told.
LOAD: Final = 0.5
_SCRAPE = 0.5
#: Promised: the share of hits against the best assignment's, and most loads a minute of a replica once each adapter
#: was loaded for the first time.
LEAST_SHARE: Final = 0.9
MOST_LOADS: Final = 6.0
#: Requests that count as the beginning, in which everything is loaded for the first time.
_BEGINNING = 0.2


@dataclass(slots=True)
class Result:
    """What came of a run.

    Attributes:
        requests, hits, loads: over all engines.
        settled_loads: a minute and replica, after the beginning.
        ttft: sorted seconds to the first token.
    """

    requests: int
    hits: int
    loads: int
    settled_loads: float
    ttft: list[float]

    @property
    def share(self) -> float:
        """Part of the requests that found their adapter loaded."""
        return self.hits / self.requests

    @property
    def of_best(self) -> float:
        """That against the best assignment's: every adapter loaded once."""
        return self.share / (1 - min(ADAPTERS, self.requests) / self.requests)


class World:
    """A gateway and its engines."""

    def __init__(self, *, knows: bool, seed: int = 1) -> None:
        names = tuple(f"lora-{number}" for number in range(1, ADAPTERS + 1))
        self._settings = EngineSettings(
            model="base", adapters=names, max_loras=SLOTS, adapter_load_ms=LOAD * 1000, prefill_speed=10_000.0
        )
        self._names = names
        self._weights = [1 / number for number in range(1, ADAPTERS + 1)]
        self._rng = random.Random(seed)
        self._reader, self._limits, self._vllm = Reader(self._settings), Limits(), get("vllm")
        self._pool = Pool("bench", traits=Traits(prefill_speed=10_000.0, output_tokens=40), now=0.0)
        if knows:
            self._pool.adapters = Adapters(
                AdapterRules(slots=SLOTS, load=LOAD, names=dict.fromkeys(names, "base"))
            )
        self._ledger = Ledger()
        self.engines: dict[str, Scheduler] = {}
        for number in range(REPLICAS):
            address = f"10.0.0.{number + 1}:8000"
            self._pool.join(address, 0.0)
            self.engines[address] = Scheduler(
                self._settings, Books(), BlockPool(self._settings.usable_blocks)
            )
        self._systems = {name: text(self._rng, 1500) for name in names}
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order, self._keys = count(), count(1)
        self._armed: dict[str, float] = {}
        self._ttft: list[float] = []
        self._now = 0.0
        self._left = self._settled_at = self._settled_loads = 0.0

    def run(self, requests: int, rate: float) -> Result:
        """Send so many requests, so many a second."""
        self._left, self._settled_at = requests, requests * (1 - _BEGINNING)
        self._at(0.0, self._arrive, rate)
        self._at(0.0, self._scrape, None)
        while self._heap:
            self._now, _, act, what = heappop(self._heap)
            act(what)
        slots = [engine.slots for engine in self.engines.values()]
        loads, minutes = sum(s.loads for s in slots), (self._now - self._settled_time) / 60
        settled = (loads - self._settled_loads) / minutes / REPLICAS
        return Result(requests, sum(s.hits for s in slots), loads, settled, sorted(self._ttft))

    def _at(self, at: float, act: Callable[[Any], None], what: Any) -> None:
        heappush(self._heap, (at, next(self._order), act, what))

    def _arrive(self, rate: float) -> None:
        if self._left == self._settled_at:
            self._settled_time = self._now
            self._settled_loads = sum(engine.slots.loads for engine in self.engines.values())
        self._left -= 1
        self._send()
        if self._left > 0:
            self._at(self._now + self._rng.expovariate(rate), self._arrive, rate)

    def _send(self) -> None:
        (name,) = self._rng.choices(self._names, self._weights)
        words = self._systems[name] + text(self._rng, 500)
        body = {"model": name, "prompt": words, "max_tokens": self._rng.randint(20, 60)}
        prompt = read("/v1/completions", orjson.dumps(body), self._limits)
        key = next(self._keys)
        decision = decide(self._pool, prompt, self._ledger, self._rng, key=key, now=self._now)
        assert decision.replica is not None
        job = self._reader.completion(body)
        sequence = Sequence(job.streams[0], job.outputs[0], stride=0, adapter=job.adapter)
        sequence.owner = key
        address = decision.replica.address
        self.engines[address].submit(sequence, self._now)
        self._arm(address)

    def _arm(self, address: str) -> None:
        at = self.engines[address].next_at
        if at is not None and self._armed.get(address, -1.0) < at:
            self._armed[address] = at
            self._at(max(at, self._now), self._advance, address)

    def _advance(self, address: str) -> None:
        for event in self.engines[address].advance(self._now):
            if event.ended:
                self._ttft.append(event.sequence.first_at - event.sequence.arrived)
                self._ledger.release(event.sequence.owner, self._now)
        self._arm(address)

    def _scrape(self, _: None) -> None:
        for address, engine in self.engines.items():
            body = exposition(self._settings, engine._books, engine.gauges(), 1e9, 1e9)
            self._pool.observe(address, self._vllm.parse(body.encode(), self._now))
        self._pool.tick(self._now)
        if self._left > 0:
            self._at(self._now + _SCRAPE, self._scrape, None)


def line(name: str, result: Result) -> str:
    """A result in words."""
    p99 = result.ttft[int(len(result.ttft) * 0.99)]
    mean = sum(result.ttft) / len(result.ttft)
    return (
        f"{name:<24} hits {result.share:6.1%} ({result.of_best:.3f} of the best assignment's), {result.loads} loads, "
        f"{result.settled_loads:.2f} a minute and replica once settled; TTFT mean {mean * 1000:.0f} ms, "
        f"P99 {p99 * 1000:.0f} ms"
    )


def main() -> int:
    """Run both and say what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--rate", type=float, default=24.0, help="requests a second")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a promise does not hold")
    given = parser.parse_args()
    blind = World(knows=False).run(given.requests, given.rate)
    knows = World(knows=True).run(given.requests, given.rate)
    print(line("without adapters", blind))
    print(line("knowing adapters", knows))
    held = knows.of_best >= LEAST_SHARE and knows.settled_loads <= MOST_LOADS
    if given.check and not held:
        print(f"promised: {LEAST_SHARE} of the best assignment's hits, at most {MOST_LOADS:g} loads a minute")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
