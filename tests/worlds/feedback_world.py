"""benchmarks/feedback.py in virtual time: the gateway's core before the emulated engine's scheduler."""

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec
import orjson

from benchmarks.feedback import Prediction
from extproc.core.announced import JUDGE, WATCHER
from extproc.core.decide import Decision
from extproc.core.dialects import Limits, read
from extproc.core.ending import COMPLETE, Ending
from extproc.core.fleet import Replica
from extproc.core.journal import decode, encode
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.shared import Shared
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.usage.record import Usage
from extproc.demo.workload import Arrival
from extproc.sim.emulated.books import Books
from extproc.sim.emulated.cache import BlockPool
from extproc.sim.emulated.jobs import Reader
from extproc.sim.emulated.scheduler import Scheduler
from extproc.sim.emulated.scheduler import Sequence as Answer
from extproc.sim.emulated.settings import EngineSettings

#: Seconds from an answer's end until the gateway hears of it, and between two samples.
_HEARD, _SCRAPE = 0.05, 0.5
#: Seconds between two batches of a gateway, and until all have read one.
_FLUSH, _DELAY = 0.1, 0.02


class Gateway:
    """One gateway's core, and its part in the journal."""

    def __init__(self, number: int, traits: Traits, names: list[str], *, learns: bool) -> None:
        self.name = f"gw-{number}"
        self.pool = Pool("p", traits=traits, distrust=0.5 if learns else None)
        for name in names:
            self.pool.join(name, 0.0)
        self.steering = Steering([self.pool], Rules(), random.Random(number))
        self.outbox = Outbox(self.name, number, [self.pool], self.steering.ledger, lambda: None)
        self.shared = Shared([self.pool], (self.name, number))

    def joins(self, *, judges: bool) -> None:
        """It has peers from now on: what it does is told, and one of them judges."""
        self.steering.ledger.listener = self.outbox
        if self.pool.feedback is not None:
            truth = self.pool.feedback.truth
            truth.role = lambda: JUDGE if judges else WATCHER
            truth.on_ruling = lambda slot, said: self.outbox.verdicts.ruled(*self._at(slot), 1, said)
            truth.on_outcome = self.outbox.verdicts.outcome if not judges else truth.on_outcome

    def _at(self, slot: int) -> tuple[Pool, Replica]:
        return self.pool, self.pool.replicas[self.pool.places[slot]]


class World:
    """Gateways that learn or do not, before four engines; the first drops its cache every so many seconds.

    The first of several gateways judges. Clients' requests go to them in turn.
    """

    def __init__(self, settings: EngineSettings, *, learns: bool, every: float, gateways: int = 1) -> None:
        traits = Traits(prefill_speed=settings.prefill_speed, output_tokens=40)
        self.settings, self.every = settings, every
        self.names = [f"10.0.0.{number}:80" for number in range(1, 5)]
        self.gateways = [Gateway(n, traits, self.names, learns=learns) for n in range(gateways)]
        for number, gateway in enumerate(self.gateways if gateways > 1 else ()):
            gateway.joins(judges=number == 0)
        self.pool = self.gateways[0].pool
        self.engines: dict[str, Scheduler] = {}
        for name in self.names:
            self.engines[name] = Scheduler(settings, Books(), BlockPool(settings.usable_blocks))
        self.told_bytes = self._entries = self._turn = 0
        self.told: list[Prediction] = []
        self._reader = Reader(settings)
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = count()
        self._armed: set[str] = set()
        self.now = self.end = 0.0

    def play(self, workload: Sequence[Arrival]) -> None:
        """Everything from the first arrival to the last answer."""
        self.end = workload[-1].at
        for arrival in workload:
            self._at(arrival.at, self._arrive, arrival)
        self._at(self.every, self._drop, None)
        self._at(0.0, self._scrape, None)
        if len(self.gateways) > 1:
            self._at(_FLUSH, self._tell, None)
        while self._heap:
            self.now, _, act, what = heappop(self._heap)
            act(what)

    def _at(self, at: float, act: Callable[[Any], None], what: Any) -> None:
        heappush(self._heap, (max(at, self.now), next(self._order), act, what))

    def _drop(self, _: None) -> None:
        self.engines[self.names[0]].pool.drop()
        if self.now < self.end:
            self._at(self.now + self.every, self._drop, None)

    def _scrape(self, _: None) -> None:
        for name, engine in self.engines.items():
            for gateway in self.gateways:
                gateway.pool.observe(name, _sample(engine, self.settings, self.now))
        for gateway in self.gateways:
            gateway.pool.tick(self.now)
        if self.now < self.end:
            self._at(self.now + _SCRAPE, self._scrape, None)

    def _tell(self, _: None) -> None:
        """Each gateway adds what it has to tell to the journal, which all read a moment later."""
        for gateway in self.gateways:
            if gateway.outbox.has_news(self.now):
                self._entries += 1
                batch = gateway.outbox.batch(self.now)
                data = encode(batch)
                self.told_bytes += len(msgspec.msgpack.encode((batch.outcomes, batch.ruled))) - 3
                self._at(self.now + _DELAY, self._hear, (data, (self._entries, 0)))
        if self.now < self.end + 10:
            self._at(self.now + _FLUSH, self._tell, None)

    def _hear(self, entry: tuple[bytes, tuple[int, int]]) -> None:
        for gateway in self.gateways:
            gateway.shared.hear(decode(entry[0]), entry[1], self.now)

    def _arrive(self, arrival: Arrival) -> None:
        prompt = read("/v1/chat/completions", orjson.dumps(arrival.body), Limits())
        self._turn += 1
        gateway = self.gateways[self._turn % len(self.gateways)]
        decision = gateway.steering.decide(prompt, gateway.pool, gateway.steering.new_key(), self.now)
        assert decision.replica is not None
        job = self._reader.chat(arrival.body)
        answer = Answer(job.streams[0], job.outputs[0])
        answer.owner = gateway, decision
        self.engines[decision.replica.address].submit(answer, self.now)
        self._arm(decision.replica.address)

    def _arm(self, name: str) -> None:
        at = self.engines[name].next_at
        if at is not None and name not in self._armed:
            self._armed.add(name)
            self._at(at, self._step, name)

    def _step(self, name: str) -> None:
        self._armed.discard(name)
        for progress in self.engines[name].advance(self.now):
            answer = progress.sequence
            if progress.ended:
                _, said = answer.owner
                truth = (answer.stream.prompt_tokens, said.cached, answer.cached)
                self.told.append(
                    Prediction(said.at, name, said.tokens, *truth, answer.first_at - answer.arrived)
                )
                self._at(self.now + _HEARD, self._over, answer)
        self._arm(name)

    def _over(self, answer: Answer) -> None:
        gateway, decision = self._owner(answer)
        assert decision.replica is not None
        gateway.steering.ledger.release(decision.key, self.now)
        ending = Ending()
        ending.by, ending.status, ending.served = COMPLETE, 200, decision.replica.address
        ending.usage = Usage(answer.stream.prompt_tokens, answer.output, answer.cached)
        gateway.steering.learn(decision, ending, self.now)

    def _owner(self, answer: Answer) -> tuple[Gateway, Decision]:
        owner: tuple[Gateway, Decision] = answer.owner
        return owner


def _sample(engine: Scheduler, settings: EngineSettings, now: float) -> Sample:
    books = engine._books
    return Sample(
        at=now,
        running=float(engine.running),
        waiting=float(engine.waiting),
        kv_used=engine.pool.usage,
        kv_capacity=settings.reported_kv_tokens,
        block_size=settings.block_size,
        max_running=settings.max_running,
        hit_tokens=float(books.hit_tokens),
        query_tokens=float(books.queried_tokens),
        prompt_tokens=float(books.prompt_tokens),
        generated_tokens=float(books.generated_tokens),
        started=1e9,
    )
