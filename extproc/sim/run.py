"""The simulation: a heap of events in virtual time between workload, gateways and replicas."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain
from random import Random
from typing import Any

from extproc.core.decide import Decision
from extproc.core.sample import Sample
from extproc.sim import plan
from extproc.sim.bounds import DAY, MOST_SECONDS, whole, within
from extproc.sim.checks import check
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.gateway import Gateway, GatewaySettings
from extproc.sim.jobs import Job, Row, Status
from extproc.sim.journal import Ended, FirstToken, Held, News, Placed
from extproc.sim.outcome import Outcome
from extproc.sim.workload import WorkloadError

#: Wall-clock time of virtual second 0, for engines' start times (any will do; counters are compared with it).
_EPOCH = 1.0e9
#: Seconds between sweeps of the gateways' indexes for what is too old.
_EXPIRE = 5.0
#: Gateways of one simulation, and replicas as all of them see them.
MOST_GATEWAYS = 256
_MOST_VIEWS = 100_000
#: Bounds of the telemetry: shortest time between samples and longest delay of news, in seconds; samples in all.
_LEAST_TELEMETRY = 0.01
_MOST_DELAY = 3600.0
_MOST_SAMPLES = 50_000_000


@dataclass(slots=True, frozen=True, kw_only=True)
class SimSettings:
    """One run. Seconds. `journal` is the delay of news between gateways; None keeps each gateway to itself.

    `telemetry` is the time between samples of a replica, 0 for none; `delay` is how late each arrives.
    `counters`: samples tell what was finished, "prompts" by first tokens too, "tokens" by prompt tokens; "" not.
    `drain` bounds how long the run goes on after the last arrival: what is left then is unfinished.
    """

    fleet: plan.Fleet
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    gateways: int = 1
    journal: float | None = 0.02
    telemetry: float = 1.0
    delay: float = 0.1
    counters: str = ""
    seed: int = 0
    drain: float = 7200.0
    span: float = 60.0

    def __post_init__(self) -> None:
        whole("gateways", self.gateways, 1, MOST_GATEWAYS)
        whole("replicas times gateways", len(self.fleet.replicas) * self.gateways, 1, _MOST_VIEWS)
        if self.journal is not None:
            within("journal, in seconds,", self.journal, 0, _MOST_DELAY)
        if self.telemetry:
            within("telemetry, in seconds, if not 0,", self.telemetry, _LEAST_TELEMETRY, DAY)
        within("delay, in seconds,", self.delay, 0, _MOST_DELAY)
        if self.counters not in ("", "prompts", "tokens"):
            raise ValueError(f"counters: there are none of {self.counters!r}; known: prompts, tokens")

    @property
    def longest(self) -> float:
        """Seconds of virtual time in which requests may arrive: bounded, and so that samples stay countable."""
        if not self.telemetry:
            return MOST_SECONDS
        return min(MOST_SECONDS, _MOST_SAMPLES * self.telemetry / (len(self.fleet.replicas) * self.gateways))


class Simulation:
    """One run of one policy over one workload."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.outcome = Outcome(settings.span)
        self.now = 0.0
        self._rng = Random(f"{settings.seed}/arrivals")  # noqa: S311 - a simulation's own dice
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0
        self._jobs: dict[int, Job] = {}
        self._down: dict[str, float] = {}  # replica -> when it is back; infinity for never
        self._retired: list[Engine] = []
        self.engines: dict[str, Engine] = {}
        self._started: dict[str, float] = {}
        self._left: set[str] = set()
        self._marks: dict[str, float] = {}
        self._counted = (0, 0)
        self._open = True  # arrivals still come
        self._thinking = 0  # sessions between an answer and their next turn
        self._last = 0.0
        self.gateways = [Gateway(i, settings.gateway, settings.seed, 0.0) for i in range(settings.gateways)]
        for name, engine in settings.fleet.replicas.items():
            self._add_engine(name, engine)

    def run(self, rows: Iterable[Row], progress: Callable[[int], None] | None = None) -> Outcome:
        """Play a workload, whose rows come in the order of arrival, to its end.

        Args:
            rows: requests that arrive by the clock; later turns of a session hang on their first.
            progress: called with the number of requests that are over, now and then.

        Raises:
            SimulationFault: a check on conservation failed.
            WorkloadError: a request would arrive later than a run may last.
        """
        self._plan()
        self._feed = iter(rows)
        self._next_arrival()
        heap, over = self._heap, self.outcome.number
        told = 0
        while heap:
            at, _, act, what = heappop(heap)
            if at > self._last + self.settings.drain and not self._open:
                break
            self.now = at
            act(what)
            if progress is not None and len(over) - told >= 256:
                told = len(over)
                progress(told)
        self._finish()
        return self.outcome

    # -- the agenda ------------------------------------------------------------------------------------

    def _at(self, time: float, act: Callable[[Any], None], what: Any = None) -> None:
        self._order += 1
        heappush(self._heap, (time, self._order, act, what))

    def _plan(self) -> None:
        for event in self.settings.fleet.events:
            self._at(event.at, self._fleet_event, event)
        if self.settings.telemetry > 0:
            self._at(0.0, self._scrape)
        self._at(_EXPIRE, self._expire)
        self._at(self.settings.span, self._mark)

    @property
    def _alive(self) -> bool:
        """Whether anything can still happen to a request."""
        return self._open or bool(self._jobs) or self._thinking > 0

    # -- requests --------------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        row = next(self._feed, None)
        if row is None:
            self._open = False
        else:
            self._arrival(max(row.at, self.now), self._take_arrival, row)

    def _arrival(self, at: float, act: Callable[[Any], None], row: Row) -> None:
        longest = self.settings.longest
        if not at <= longest:
            raise WorkloadError(
                f"a request would arrive {at:g} s after the start, but a run with these replicas, gateways and this "
                f"telemetry may last {longest:g} s; take fewer requests, a higher speed or rate, or rarer samples"
            )
        self._at(at, act, row)

    def _take_arrival(self, row: Row) -> None:
        self._next_arrival()
        self._arrive(row)

    def _next_turn(self, row: Row) -> None:
        self._thinking -= 1
        self._arrive(row)

    def _arrive(self, row: Row) -> None:
        self._last = self.now
        count = len(self.gateways)
        number = int(self._rng.random() * count) if count > 1 else 0
        job = Job(self.outcome.arrivals, row, self.now, number)
        self.outcome.arrivals += 1
        self._jobs[job.key] = job
        self._enter(job)

    def _enter(self, job: Job) -> None:
        """A request is at its gateway: it may go there, or have to wait for a replica."""
        gateway = self.gateways[job.gateway]
        if not gateway.arrive(job, self.now):
            self._send(job, gateway.decide(job, self.now))
            return
        self._pump(gateway)
        if job.key in gateway.waiting:
            self._tell(gateway, Held(job.key, job.row.prompt(), self.now))

    def _pump(self, gateway: Gateway) -> None:
        """Something changed: send what need not wait any more."""
        if not gateway.waiting:
            return
        while (job := gateway.next_due(self.now)) is not None:
            self._send(job, gateway.decide(job, self.now))
        if gateway.waiting and gateway.wake < gateway.alarm:
            gateway.alarm = gateway.wake
            self._at(gateway.wake, self._wake, gateway)

    def _wake(self, gateway: Gateway) -> None:
        if self.now == gateway.alarm:  # else an earlier one was set since, and rang
            gateway.alarm = math.inf
            self._pump(gateway)

    def _send(self, job: Job, decision: Decision) -> None:
        """A decision is out: connect to its replicas in order, and tell the other gateways."""
        gateway = self.gateways[job.gateway]
        if decision.replica is None:
            self._over(job, Status.REJECTED)
            return
        for replica in decision.order:
            if replica.address in self._down:
                continue
            if replica is not decision.replica:
                gateway.fall_back(decision, replica, self.now)
            engine = self.engines[replica.address]
            if not engine.fits(job):
                break
            job.replica = replica.address
            tokens = int(decision.tokens + decision.output)
            chains = decision.prompt.chains if decision.prompt else []
            self._tell(gateway, Placed(job.key, replica.address, chains, decision.work, tokens, self.now))
            wake = engine.wake
            engine.submit(job, self.now)
            if engine.wake != wake:
                self._at(engine.wake, self._advance, (engine, engine.wake))
            return
        self._over(job, Status.FAILED)

    def _advance(self, what: tuple[Engine, float]) -> None:
        engine, wake = what
        if engine.wake != wake:  # the run was cut short, or the engine died
            return
        firsts, ended = engine.advance(self.now)
        if engine.wake < math.inf:
            self._at(engine.wake, self._advance, (engine, engine.wake))
        for job in firsts:
            job.first = self.now
            gateway = self.gateways[job.gateway]
            gateway.first_token(job.key, self.now)
            self._tell(gateway, FirstToken(job.key, self.now))
            self._pump(gateway)
        for job in ended:
            self.gateways[job.gateway].answered(job)
            self._over(job, Status.FINISHED)
            self._pump(self.gateways[job.gateway])

    def _over(self, job: Job, status: Status) -> None:
        """A request is over: its charge is released and the session's next turn starts after its pause."""
        job.status = status
        job.finished = self.now
        gateway = self.gateways[job.gateway]
        gateway.ended(job.key, self.now, answered=status is Status.FINISHED)
        self._tell(gateway, Ended(job.key))
        del self._jobs[job.key]
        self.outcome.add(job)
        if job.row.after is not None:
            self._thinking += 1
            self._arrival(self.now + job.row.after.think, self._next_turn, job.row.after)
            self._last = self.now + job.row.after.think

    def _tell(self, sender: Gateway, news: News) -> None:
        if len(self.gateways) > 1 and self.settings.journal is not None:
            self._at(self.now + self.settings.journal, self._hear, (sender, news))

    def _hear(self, what: tuple[Gateway, News]) -> None:
        sender, news = what
        for gateway in self.gateways:
            if gateway is not sender:
                gateway.hear(news, self.now, self.settings.journal or 0.0)
                self._pump(gateway)

    # -- replicas --------------------------------------------------------------------------------------

    def _add_engine(self, name: str, settings: EngineSettings) -> None:
        """A new engine; one that left under the same name ends what it has, and counts in the sums."""
        if name in self.engines:
            self._retired.append(self.engines[name])
        self._left.discard(name)
        self._down.pop(name, None)
        self.engines[name] = Engine(name, settings, self.now)
        self._started[name] = _EPOCH + self.now
        self._marks[name] = 0.0
        self.outcome.busy.setdefault(name, [0.0] * len(self.outcome.hits))
        self.outcome.load.setdefault(name, [0] * len(self.outcome.hits))
        for gateway in self.gateways:
            gateway.join(name, self.now)

    def _fleet_event(self, event: plan.FleetEvent) -> None:
        name = event.replica
        if event.action == plan.JOIN:
            self._add_engine(name, next(iter(self.settings.fleet.replicas.values())))
        elif event.action == plan.LEAVE:
            self._left.add(name)
            for gateway in self.gateways:
                gateway.leave(name)
        elif event.action == plan.SLOW:
            engine = self.engines[name]
            engine.settings = replace(engine.settings, speed=event.value)
        else:
            back = self.now + event.value if event.action == plan.RESTART else math.inf
            self._die(name, back)

    def _die(self, name: str, back: float) -> None:
        """All on a replica fails. Of deaths that overlap, the last says when it is back."""
        self._down[name] = back
        for job in self.engines[name].drop_all():
            self._over(job, Status.FAILED)
        if back < math.inf:
            self._at(back, self._come_back, (self.engines[name], back))

    def _come_back(self, what: tuple[Engine, float]) -> None:
        engine, back = what
        name = engine.name
        if (
            self.engines[name] is engine and self._down.get(name) == back
        ):  # else it died again since, or joined anew
            del self._down[name]
            self._started[name] = _EPOCH + self.now
            engine.restart()

    def _scrape(self, _: None) -> None:
        for name, engine in self.engines.items():
            if name in self._left:
                continue
            sample = None if name in self._down else self._sample(engine)
            self._at(self.now + self.settings.delay, self._observe, (engine, sample))
        if self._alive:
            self._at(self.now + self.settings.telemetry, self._scrape)

    def _sample(self, engine: Engine) -> Sample:
        sample, counters = engine.sample(self.now, self._started[engine.name]), self.settings.counters
        return engine.counted(sample, prompts=counters == "prompts") if counters else sample

    def _observe(self, what: tuple[Engine, Any]) -> None:
        engine, sample = what
        name = engine.name
        if self.engines[name] is not engine:
            return  # the sample is of one that left, under whose name another joined
        for gateway in self.gateways:
            if sample is None:
                gateway.pool.failed(name, "connect", self.now)
            else:
                gateway.observe(name, sample)
                self._pump(gateway)

    def _expire(self, _: None) -> None:
        for gateway in self.gateways:
            gateway.pool.index.expire(self.now)
        if self._alive:
            self._at(self.now + _EXPIRE, self._expire)

    # -- counting --------------------------------------------------------------------------------------

    def _all_engines(self) -> Iterator[Engine]:
        return chain(self.engines.values(), self._retired)

    def _mark(self, _: None) -> None:
        """Close a bucket of the time series."""
        out = self.outcome
        hits = sum(e.hits for e in self._all_engines())
        computed = sum(e.computed for e in self._all_engines())
        out.hits.append(hits - self._counted[0])
        out.computed.append(computed - self._counted[1])
        self._counted = (hits, computed)
        for name, engine in self.engines.items():
            out.busy[name].append(engine.busy - self._marks[name])
            out.load[name].append(engine.running + len(engine.queue))
            self._marks[name] = engine.busy
        if self._alive:
            self._at(self.now + self.settings.span, self._mark)

    def _finish(self) -> None:
        out = self.outcome
        out.duration = self.now
        left = list(self._jobs.values())
        for job in left:
            out.add(job)
        for gateway in self.gateways:
            for word, times in gateway.troubles.items():
                out.troubles[word] = out.troubles.get(word, 0) + times
        if not left:
            check(out, list(self._all_engines()), self.gateways)
