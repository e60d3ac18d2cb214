"""Policies against each other: every policy with every seed over the same workload."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings
from extproc.sim.jobs import BLOCK_TOKENS
from extproc.sim.plan import Fleet
from extproc.sim.report import Result
from extproc.sim.run import SimSettings, Simulation
from extproc.sim.summary import Slo, summarize
from extproc.sim.workload import Workload, shaped

#: What a policy's name ends with when its requests wait for a replica instead of being bound at arrival.
LATE = "+late"
#: Output tokens a gateway expects of a request before it has seen any.
_OUTPUT = 256


@dataclass(slots=True, frozen=True, kw_only=True)
class Plan:
    """A whole comparison. `quantum` in seconds; `sim` is what every run shares."""

    workload: Workload
    policies: Sequence[str]
    seeds: Sequence[int]
    sim: SimSettings
    slo: Slo = field(default_factory=Slo)
    room: RoomSettings = field(default_factory=RoomSettings)
    speed: float = 1.0
    quantum: float = 0.0
    limit: int | None = None
    policy_settings: dict[str, dict[str, float]] = field(default_factory=dict)


def traits_of(fleet: Fleet, telemetry: float) -> Traits:
    """What a gateway is told of its replicas: the first class as it should be, not how fast each one is."""
    engine = next(iter(fleet.replicas.values()))
    return Traits(
        prefill_speed=engine.prefill_speed,
        prefill_doubling=engine.prefill_doubling,
        max_running=engine.max_running,
        kv_tokens=engine.kv_tokens,
        output_tokens=_OUTPUT,
        stale_after=max(15.0, 5 * telemetry) if telemetry > 0 else float("inf"),
    )


def check_length(plan: Plan) -> None:
    """Refuse a workload that would take longer than a run may last, before it begins.

    Raises:
        ValueError: says how long it would take and what would do.
    """
    whole = int(plan.workload.facts["requests"])
    share = min((plan.limit or whole) / whole, 1.0)
    seconds = plan.workload.seconds * share / plan.speed + plan.workload.pauses
    longest = plan.sim.longest
    if seconds > longest:
        raise ValueError(
            f"arrivals would take {seconds:.0f} s, but a run with these replicas, gateways and this telemetry may "
            f"last {longest:.0f} s; take fewer requests, a higher speed or rate, shorter pauses, or rarer samples"
        )


def settings_of(plan: Plan, name: str, seed: int) -> SimSettings:
    """The settings of one run. A name that ends with `+late` binds late.

    Raises:
        ValueError: there is no such policy or setting, or it can't bind late.
    """
    policy = name.removesuffix(LATE)
    gateway = replace(
        plan.sim.gateway,
        policy=policy,
        policy_settings=plan.policy_settings.get(policy, {}),
        traits=traits_of(plan.sim.fleet, plan.sim.telemetry),
        room=plan.room if policy != name else None,
    )
    return replace(plan.sim, gateway=gateway, seed=seed, fleet=_cut(plan))


def _cut(plan: Plan) -> Fleet:
    """The fleet with caches in blocks as the workload's prompts are cut into."""
    block = int(plan.workload.facts.get("block_tokens", BLOCK_TOKENS))
    replicas = {name: replace(engine, block=block) for name, engine in plan.sim.fleet.replicas.items()}
    return replace(plan.sim.fleet, replicas=replicas)


def compare(plan: Plan, progress: Callable[[str, int, int], None] | None = None) -> list[Result]:
    """Run everything, one after the other.

    Args:
        plan: what to run.
        progress: called with a policy, a seed and the number of its requests that are over, now and then.
    """
    simulations = {  # all are made before the first runs, so that a wrong name costs no waiting
        (name, seed): settings_of(plan, name, seed) for name in plan.policies for seed in plan.seeds
    }
    for settings in simulations.values():
        Simulation(settings)
    results = []
    for name in plan.policies:
        result = Result(name)
        for seed in plan.seeds:
            simulation = Simulation(simulations[name, seed])
            rows = shaped(plan.workload.rows(), plan.speed, plan.quantum, plan.limit)
            told = (lambda over, n=name, s=seed: progress(n, s, over)) if progress else None
            outcome = simulation.run(rows, told)
            result.runs.append(summarize(outcome, plan.slo))
            result.outcome = result.outcome or outcome
            for word, times in outcome.troubles.items():
                result.troubles[word] = result.troubles.get(word, 0) + times
        results.append(result)
    return results
