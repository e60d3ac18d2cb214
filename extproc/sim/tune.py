"""A search for settings of a policy on a workload: all candidates on a little of it, the best on all of it.

Successive halving (Jamieson and Talwalkar, 2016): each round plays more of the workload with fewer candidates, so
that most of the time goes to those that may win. The last round plays everything with every seed. The settings as
they are stay to the end, since they are what the best is compared with.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, stdev
from typing import Final

from extproc.core.policies import check_policy, policy_settings
from extproc.sim.compare import LATE, Plan, compare, settings_of
from extproc.sim.texts import room

#: What can be searched for -> whether more of it is better.
OBJECTIVES: Final = {
    "ttft_mean": False, "ttft_p50": False, "ttft_p90": False, "ttft_p99": False, "tpot_mean": False,
    "good_share": True, "goodput": True, "hit_share": True,
}  # fmt: skip
#: A round keeps one of so many candidates, and the next plays so many times as much.
_FACTOR: Final = 3
#: Least requests of a round; fewer say nothing.
_LEAST: Final = 500
#: Most candidates of one search.
_MOST: Final = 600
#: Settings of the waiting room are written with this before their names.
ROOM: Final = "room."
#: A difference below this share of the default is none, whatever the seeds say.
SAME: Final = 0.01

Settings = dict[str, float]


@dataclass(slots=True)
class Trial:
    """Settings that differ from the present ones, and the objective they reached in the last round, by seed."""

    settings: Settings
    values: list[float]

    @property
    def value(self) -> float:
        """Mean over the seeds; NaN before the first round."""
        return mean(self.values) if self.values else math.nan


@dataclass(slots=True)
class Found:
    """The trials of the last round, best first; `present` is among them."""

    trials: list[Trial]
    present: Trial
    is_more_better: bool

    @property
    def best(self) -> Trial:
        """The trial that came out best."""
        return self.trials[0]

    @property
    def gain(self) -> float:
        """How much better the best is than the present settings, as a share of these; 0 when they are the best.

        NaN when nothing can be compared, as where no request was answered.
        """
        if not math.isfinite(self.best.value) or not math.isfinite(self.present.value):
            return math.nan
        change = self.best.value - self.present.value
        return (change if self.is_more_better else -change) / abs(self.present.value or 1.0)

    @property
    def noise(self) -> float:
        """Two standard errors of that share over the seeds; infinity with one seed, which can't tell."""
        values = zip(self.best.values, self.present.values, strict=True)
        pairs = [pair for pair in values if all(map(math.isfinite, pair))]
        if len(pairs) < 2:
            return math.inf
        shares = [(ours - theirs) / abs(theirs or 1.0) for ours, theirs in pairs]
        return 2 * stdev(shares) / math.sqrt(len(shares))

    @property
    def is_clear(self) -> bool:
        """Whether the best is better than the present settings by more than chance explains."""
        return self.gain > max(self.noise, SAME)


def grid(tried: Mapping[str, Sequence[float]]) -> list[Settings]:
    """Every combination of the values given for each setting.

    Raises:
        ValueError: there are more than can be played.
    """
    count = math.prod(len(values) for values in tried.values())
    if count > _MOST:
        raise ValueError(f"{count} combinations are too many; at most {_MOST}: try fewer values")
    return [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]


def star(policy: str) -> list[Settings]:
    """Each setting of a policy alone, at half and at twice its default, where the policy takes that."""
    name = policy.removesuffix(LATE)
    tried = [
        {key: value * factor}
        for key, value in policy_settings(name).items()
        if value
        for factor in (0.5, 2.0)
    ]
    return [changes for changes in tried if _takes(name, changes)]


def _takes(policy: str, settings: Settings) -> bool:
    try:
        check_policy(policy, settings)
    except ValueError:
        return False
    return True


def search(
    plan: Plan,
    candidates: Sequence[Settings],
    objective: str,
    progress: Callable[[int, int], None] | None = None,
) -> Found:
    """Find the best of `candidates` for the one policy of `plan`, and compare it with the plan's own settings.

    Args:
        plan: workload, policy with its present settings, seeds, fleet.
        candidates: what to change; the empty change is added.
        objective: one of OBJECTIVES.
        progress: called with requests played so far and in all, about.

    Raises:
        ValueError: no candidate, an unknown objective, or settings the policy does not take.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"there is no objective {objective!r}; known: {', '.join(OBJECTIVES)}")
    present = Trial({}, [])
    trials = [present, *(Trial(dict(changes), []) for changes in candidates if changes)]
    if len(trials) == 1:
        raise ValueError(f"{plan.policies[0]} has no settings to try")
    for trial in trials:  # before the first runs, so that a wrong name costs no waiting
        settings_of(changed(plan, trial.settings), plan.policies[0], 0)
    sign = -1.0 if OBJECTIVES[objective] else 1.0
    rounds = schedule(len(trials), _requests(plan), len(plan.seeds))
    whole, done = sum(count * limit * seeds for count, limit, seeds in rounds), 0
    for count, limit, seeds in rounds:
        kept = sorted(trials, key=lambda trial: sign * trial.value)[:count] if present.values else trials
        trials = kept if present in kept else [*kept, present]
        for trial in trials:
            trial.values = _play(plan, trial.settings, objective, limit, seeds)
            done += limit * seeds
            if progress:
                progress(min(done, whole), whole)
    trials.sort(key=lambda trial: sign * trial.value)
    return Found(trials, present, OBJECTIVES[objective])


def schedule(trials: int, requests: int, seeds: int) -> list[tuple[int, int, int]]:
    """Rounds as (trials, requests, seeds): the last with all requests and seeds, those before it with one seed."""
    rounds = [(min(trials, _FACTOR), requests, seeds)]
    count, limit = _FACTOR, requests
    while count < trials:
        count, limit = min(count * _FACTOR, trials), max(limit // _FACTOR, min(_LEAST, requests))
        rounds.insert(0, (count, limit, 1))
    return rounds


def changed(plan: Plan, changes: Mapping[str, float]) -> Plan:
    """The plan with other settings of its policy, or of the waiting room where a name begins with "room."."""
    policy = plan.policies[0].removesuffix(LATE)
    own = {name: value for name, value in changes.items() if not name.startswith(ROOM)}
    waiting = {name.removeprefix(ROOM): value for name, value in changes.items() if name.startswith(ROOM)}
    if "order" in waiting:
        raise ValueError(f"{ROOM}order is a word, not a number; compare orders with kvsteer simulate --room")
    present = {name: getattr(plan.room, name) for name in plan.room.__slots__}
    settings = {**plan.policy_settings.get(policy, {}), **own}
    return replace(plan, policy_settings={policy: settings}, room=room({**present, **waiting}))


def _play(plan: Plan, changes: Settings, objective: str, limit: int, seeds: int) -> list[float]:
    shown = replace(changed(plan, changes), limit=limit, seeds=plan.seeds[:seeds])
    worst = 0.0 if OBJECTIVES[objective] else math.inf
    return [worst if (v := run[objective]) is None else v for run in compare(shown)[0].runs]


def _requests(plan: Plan) -> int:
    """Requests of the whole workload. `limit` counts sessions' first turns only, which is near enough."""
    whole = int(plan.workload.facts["requests"])
    return min(whole, plan.limit) if plan.limit else whole
