"""Gateways that hear and look late, in overload and virtual time: where the horizon follows, replicas stay busy."""

import math
from random import Random

from extproc.core.waiting import RoomSettings
from extproc.sim.compare import Plan, settings_of
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import Gateway
from extproc.sim.generators import generated
from extproc.sim.journal import News
from extproc.sim.plan import uniform_fleet
from extproc.sim.run import SimSettings, Simulation

WATCH = 0.05  # seconds between looks at the engines


class Slow(Simulation):
    """Each gateway looks only every `every` seconds, and news take 20 ms and `lag` on average on top.

    Attributes:
        follows: whether the rooms are told of it.
        idle, whole: of the replicas, looked at while something waited: without a prompt to compute, and all.
    """

    def __init__(self, settings: SimSettings, every: float, lag: float, *, follows: bool) -> None:
        super().__init__(settings)
        self.every, self.lag, self.follows = every, lag, follows
        self.idle = self.whole = 0
        self._dice = Random(7)
        self._due: dict[int, float] = {}  # gateway -> since when a look is due
        self._told: dict[int, float] = {}  # gateway -> when its last news arrive: they stay in order
        self._at(WATCH, self._watch)

    def _watch(self, _: None) -> None:
        if any(gateway.waiting for gateway in self.gateways):
            self.whole += len(self.engines)
            self.idle += sum(not any(True for _ in engine.left(self.now)) for engine in self.engines.values())
        if self._alive:
            self._at(self.now + WATCH, self._watch)

    def _tell(self, sender: Gateway, news: News) -> None:
        arrives = self.now + 0.02 + self._dice.expovariate(1 / self.lag)
        arrives = self._told[sender.number] = max(arrives, self._told.get(sender.number, 0.0))
        self._at(arrives, self._bring, (sender, news, self.now))

    def _bring(self, what: tuple[Gateway, News, float]) -> None:
        sender, news, made = what
        for gateway in self.gateways:
            if gateway is not sender:
                gateway.hear(news, self.now, self.now - made if self.follows else 0.0)
                self._pump(gateway)

    def _pump(self, gateway: Gateway) -> None:
        if gateway.waiting and gateway.number not in self._due:
            self._due[gateway.number] = self.now
            self._at((math.floor(self.now / self.every) + 1) * self.every, self._look, gateway)

    def _look(self, gateway: Gateway) -> None:
        late = self.now - self._due.pop(gateway.number)
        if self.follows and gateway.room is not None:
            gateway.room.looked(late)
        super()._pump(gateway)


def played(*, follows: bool) -> tuple[float, float]:
    """Mean TTFT, and the share of the time in which replicas were idle while something waited."""
    fleet = uniform_fleet(4, EngineSettings(prefill_doubling=math.inf))
    plan = Plan(
        workload=generated("documents", {"requests": 600, "rate": 12, "documents": 1500, "seed": 5}),
        policies=["charged_cost+late"],
        seeds=[1],
        sim=SimSettings(fleet=fleet, gateways=4),
        room=RoomSettings(theta=0.25),
    )
    run = Slow(settings_of(plan, plan.policies[0], 1), 0.3, 0.1, follows=follows)
    outcome = run.run(plan.workload.rows())
    return sum(outcome.ttft) / len(outcome.ttft), run.idle / run.whole


def test_where_gateways_look_and_hear_late_replicas_run_dry_unless_the_horizon_follows() -> None:
    fixed, dry = played(follows=False)
    followed, idle = played(follows=True)
    assert dry > 0.1, "else this shows nothing"
    assert idle < 0.6 * dry
    assert followed < 0.95 * fixed
