"""The default policy against the best of the usual ones, on generated traffic of many shapes.

A row is a shape, a load, and a number of gateways. The default, bound at arrival and bound late, must not be behind
the best of cache_aware, prefix_hash and least_request in mean or P99 TTFT beyond what seeds explain. The shapes'
numbers and the seeds are others than those the policy was tuned on.
"""

from statistics import mean, stdev
from typing import NamedTuple

from extproc.sim.compare import LATE, Plan, compare
from extproc.sim.generators import generated
from extproc.sim.plan import uniform_fleet
from extproc.sim.run import SimSettings

OURS = ("charged_cost", f"charged_cost{LATE}")
THEIRS = ("cache_aware", "prefix_hash", "least_request")
#: Behind by less than this is a draw, whatever the seeds say: chance of ties and gateways, one seed against another.
_DRAW = {"ttft_mean": 0.03, "ttft_p99": 0.10}
_SHORT, _FULL = (101, 102), (201, 202, 203)


class Shape(NamedTuple):
    """A generator with its settings, replicas, and arrivals a second at moderate and at high load."""

    name: str
    generator: str
    settings: dict[str, float]
    replicas: int
    moderate: float
    high: float
    #: False where both are more than the running slots can take: the backlog only grows, so rows are shown, not held.
    held: bool = True


#: Long shared contexts and long answers: running slots are taken before prompts take all time, from 20/s on.
_HOT = {"prompts": 3, "prompt": 20_000, "length": 2000, "output": 300}

SHAPES = [
    Shape("many roots", "shared_prompts", {"groups": 700, "prompt": 5000, "question": 1200}, 4, 9, 14),
    Shape("few prompts", "shared_prompts", {"groups": 12, "prompt": 9000, "question": 500}, 4, 12, 20),
    Shape("hot prompt", "hot", {"share": 0.7, "prompt": 11_000, "length": 2500}, 4, 15, 24),
    Shape("hot prompts", "hot", {**_HOT, "share": 0.6}, 4, 15, 20),
    Shape("hot prompts over", "hot", {**_HOT, "share": 0.6}, 4, 21, 22, held=False),
    Shape("agents", "agents", {"turns": 26, "system": 6000, "user": 500, "think": 3.0}, 4, 16, 50),
    Shape("agents, 6 replicas", "agents", {"turns": 40, "system": 14_000, "output": 90}, 6, 20, 60),
    Shape("chat", "chat", {"turns": 8, "system": 2500, "user": 600}, 4, 14, 36),
    Shape("documents", "documents", {"documents": 120, "length": 9000}, 4, 10, 18),
    Shape("bursts", "bursts", {"size": 25, "groups": 16}, 4, 14, 24),
]


class Figures(NamedTuple):
    """Mean and P99 TTFT of one policy, by seed."""

    ttft_mean: list[float]
    ttft_p99: list[float]


def play_matrix(*, full: bool) -> int:
    """Print a line for each row and say who wins; returns how many rows the default loses."""
    seeds, requests = (_FULL, 4000) if full else (_SHORT, 2000)
    print(f"{'':38s}{'best of the others':>34s}{'at arrival':>20s}{'late':>20s}   (mean / P99 TTFT, s)")
    lost = 0
    for shape in SHAPES:
        for word, rate in (("moderate", shape.moderate), ("high", shape.high)):
            for gateways in (1, 4) if full else (1,) if word == "moderate" else (4,):
                name = f"{shape.name}, {word} ({rate:g}/s), {gateways} gw"
                lost += _row(name, shape, rate, gateways, seeds, requests) and shape.held
    return lost


def _row(name: str, shape: Shape, rate: float, gateways: int, seeds: tuple[int, ...], requests: int) -> bool:
    found = {policy: _figures(policy, shape, rate, gateways, seeds, requests) for policy in (*THEIRS, *OURS)}
    best = {
        metric: min((found[policy] for policy in THEIRS), key=lambda f: mean(getattr(f, metric)))
        for metric in _DRAW
    }
    names = {metric: next(p for p in THEIRS if found[p] is best[metric]) for metric in _DRAW}
    lost = [
        f"{policy} {metric}"
        for policy in OURS
        for metric in _DRAW
        if _is_behind(getattr(found[policy], metric), getattr(best[metric], metric), _DRAW[metric])
    ]
    theirs = f"{names['ttft_mean']}/{names['ttft_p99']}"
    sums = [f"{mean(best['ttft_mean'].ttft_mean):.3f} / {mean(best['ttft_p99'].ttft_p99):.2f}"]
    sums += [f"{mean(found[p].ttft_mean):.3f} / {mean(found[p].ttft_p99):.2f}" for p in OURS]
    verdict = f"{'LOST' if shape.held else 'shown only, behind'}: {', '.join(lost)}" if lost else ""
    print(f"{name:38s}{theirs:>26s} {sums[0]:>16s}{sums[1]:>18s}{sums[2]:>18s}   {verdict}", flush=True)
    return bool(lost)


def _figures(
    policy: str, shape: Shape, rate: float, gateways: int, seeds: tuple[int, ...], requests: int
) -> Figures:
    """One run for each seed, which draws the traffic as well as ties and gateways."""
    found = Figures([], [])
    for seed in seeds:
        settings = {**shape.settings, "requests": requests, "rate": rate, "seed": seed}
        sim = SimSettings(fleet=uniform_fleet(shape.replicas), gateways=gateways)
        plan = Plan(workload=generated(shape.generator, settings), policies=[policy], seeds=[seed], sim=sim)
        run = compare(plan)[0].runs[0]
        found.ttft_mean.append(run["ttft_mean"] or 0.0)
        found.ttft_p99.append(run["ttft_p99"] or 0.0)
    return found


def _is_behind(ours: list[float], theirs: list[float], draw: float) -> bool:
    """Whether ours is above theirs by more than a draw, and by more than two standard errors of the paired ratio."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    noise = 2 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return mean(ratios) > 1 + max(draw, noise)
