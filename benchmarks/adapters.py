"""Adapter traffic in virtual time: how often a request finds its LoRA adapter loaded, and how many loads there are.

    .venv/bin/python -m benchmarks.adapters [--check] [--loading] [--requests 12000] [--rate 24]

Six emulated engines with eight slots each, forty adapters whose popularity is Zipf's (the n-th is asked for 1/n as
often as the first), one gateway that runs the core as the server does and hears samples twice a second. Beside the
rule that knows adapters, the same one that does not. The best assignment keeps every adapter in some slot for good,
as 48 slots hold 40: all requests but the first of each adapter find theirs.

With `--loading` no engine has an adapter at the start, the gateway loads them through the engines' API, which takes
as long, and requests wait for it; what waited counts as no hit.
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

from extproc.core.adapter_loads import Loading, LoadRules, Step
from extproc.core.adapters import AdapterRules, Adapters
from extproc.core.decide import decide
from extproc.core.dialects import Limits, read
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.traits import Traits
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
#: Loads that the gateway may begin in any minute, over all engines.
A_MINUTE: Final = 60
#: Seconds between looks at what is to be loaded.
_LOOK = 0.1
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


@dataclass(slots=True)
class Waiting:
    """A request that waits for its adapter."""

    world: "World"
    key: int
    body: dict[str, Any]
    arrived: float

    def due(self, _now: float) -> None:
        """It goes on."""
        self.world.place(self.key, self.body, self.arrived)


class World:
    """A gateway and its engines."""

    def __init__(self, *, knows: bool, loads: bool = False, seed: int = 1) -> None:
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
        self.loading = self._plan() if loads else None
        self._ledger = Ledger()
        self.engines: dict[str, Scheduler] = {}
        for number in range(REPLICAS):
            address = f"10.0.0.{number + 1}:8000"
            replica = self._pool.join(address, 0.0)
            if self.loading is not None and self._pool.adapters is not None:
                self._pool.adapters.listed(replica, {})
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
        if self.loading is not None:
            self._at(0.0, self._look, None)
        while self._heap:
            self._now, _, act, what = heappop(self._heap)
            act(what)
        slots = [engine.slots for engine in self.engines.values()]
        loads, minutes = self._loads(), (self._now - self._settled_time) / 60
        settled = (loads - self._settled_loads) / minutes / REPLICAS
        waited = self.loading.waits.ended["loaded"] if self.loading is not None else 0
        return Result(requests, sum(s.hits for s in slots) - waited, loads, settled, sorted(self._ttft))

    def _loads(self) -> int:
        return sum(engine.slots.loads for engine in self.engines.values())

    def _at(self, at: float, act: Callable[[Any], None], what: Any) -> None:
        heappush(self._heap, (at, next(self._order), act, what))

    def _arrive(self, rate: float) -> None:
        if self._left == self._settled_at:
            self._settled_time = self._now
            self._settled_loads = self._loads()
        self._left -= 1
        self._send()
        if self._left > 0:
            self._at(self._now + self._rng.expovariate(rate), self._arrive, rate)

    def _send(self) -> None:
        (name,) = self._rng.choices(self._names, self._weights)
        words = self._systems[name] + text(self._rng, 500)
        body = {"model": name, "prompt": words, "max_tokens": self._rng.randint(20, 60)}
        key, adapters = next(self._keys), self._pool.adapters
        waiting, prompt = Waiting(self, key, body, self._now), self._read(body)
        if adapters is None or not adapters.keeps(waiting, key, prompt, self._pool.replicas, self._now):
            self.place(key, body, self._now)

    def _read(self, body: dict[str, Any]) -> Prompt:
        return read("/v1/completions", orjson.dumps(body), self._limits)

    def place(self, key: int, body: dict[str, Any], arrived: float) -> None:
        """Decide a request, and send it."""
        decision = decide(self._pool, self._read(body), self._ledger, self._rng, key=key, now=self._now)
        assert decision.replica is not None
        job = self._reader.completion(body)
        sequence = Sequence(job.streams[0], job.outputs[0], stride=0, adapter=job.adapter)
        sequence.owner = key, arrived
        address = decision.replica.address
        self.engines[address].submit(sequence, self._now)
        self._arm(address)

    # -- loads -----------------------------------------------------------------------------------------

    def _plan(self) -> Loading:
        adapters = self._pool.adapters
        assert adapters is not None, "who loads knows adapters"
        paths = dict.fromkeys(self._names, "/lora")
        rules = LoadRules(paths=paths, most=SLOTS, a_minute=A_MINUTE, wait=60.0, idle=10.0)
        adapters.loading = Loading(adapters, rules)
        return adapters.loading

    def _look(self, _: None) -> None:
        """Begin what is to be done."""
        assert self.loading is not None
        while (step := self.loading.plan(self._pool.replicas, self._now)) is not None:
            self.loading.began(step, self._now)
            if step.unload:
                self.engines[step.replica.address].slots.drop(step.unload)
            self._at(self._now + LOAD, self._loaded, step)
        self.loading.let_go(self._pool.replicas, self._now)
        if self._left > 0 or len(self.loading.waits):
            self._at(self._now + _LOOK, self._look, None)

    def _loaded(self, step: Step) -> None:
        assert self.loading is not None
        self.engines[step.replica.address].slots.put(step.name)
        self.loading.done(step, LOAD, self._now)

    def _arm(self, address: str) -> None:
        at = self.engines[address].next_at
        if at is not None and self._armed.get(address, -1.0) < at:
            self._armed[address] = at
            self._at(max(at, self._now), self._advance, address)

    def _advance(self, address: str) -> None:
        for event in self.engines[address].advance(self._now):
            if event.ended:
                key, arrived = event.sequence.owner
                self._ttft.append(event.sequence.first_at - arrived)
                self._ledger.release(key, self._now)
                if self.loading is not None:
                    self.loading.ended(key, self._now)
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
    parser.add_argument("--loading", action="store_true", help="the gateway loads adapters, too")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a promise does not hold")
    given = parser.parse_args()
    blind = World(knows=False).run(given.requests, given.rate)
    knows = World(knows=True).run(given.requests, given.rate)
    print(line("without adapters", blind))
    print(line("knowing adapters", knows))
    shown = [knows]
    if given.loading:
        loads = World(knows=True, loads=True).run(given.requests, given.rate)
        print(line("loading adapters", loads))
        shown.append(loads)
    held = all(it.of_best >= LEAST_SHARE and it.settled_loads <= MOST_LOADS for it in shown)
    if given.check and not held:
        print(f"promised: {LEAST_SHARE} of the best assignment's hits, at most {MOST_LOADS:g} loads a minute")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
