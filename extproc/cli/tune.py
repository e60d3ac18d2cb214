"""kvsteer tune: better settings for a policy, searched for on a trace. It says them; it never applies them."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from extproc.cli.inputs import Finite
from extproc.cli.terminal import progress
from extproc.errors import KvsteerError
from extproc.sim import texts
from extproc.sim.bounds import FASTEST, MOST_REQUESTS, SLOWEST, shown
from extproc.sim.checks import SimulationFault
from extproc.sim.compare import LATE, Plan, check_length
from extproc.sim.plan import MOST_REPLICAS, uniform_fleet
from extproc.sim.run import MOST_GATEWAYS, SimSettings
from extproc.sim.tune import OBJECTIVES, ROOM, SAME, Found, Settings, grid, search, star


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--generate", metavar="NAME[:K=V,..]", help="Make the workload, as for simulate.")
@click.option("--policy", default="charged_cost", show_default=True, help=f"NAME or NAME{LATE}.")
@click.option(
    "--try",
    "tried",
    multiple=True,
    metavar="KEY=V:V:..",
    help=f"Values of a setting; {ROOM}KEY: of late binding.",
)
@click.option("--set", "sets", multiple=True, metavar="POLICY.KEY=V", help="What is set at present.")
@click.option(
    "--for",
    "objective",
    default="ttft_mean",
    show_default=True,
    type=click.Choice(list(OBJECTIVES)),
    help="What to make better.",
)
@click.option(
    "--replicas", default=4, show_default=True, type=click.IntRange(1, MOST_REPLICAS), help="Equal replicas."
)
@click.option("--engine", default="", metavar="K=V,..", help="The replicas' settings, as for simulate.")
@click.option(
    "--gateways",
    default=1,
    show_default=True,
    type=click.IntRange(1, MOST_GATEWAYS),
    help="Each with a core of its own.",
)
@click.option("--speed", default=1.0, show_default=True, type=Finite(SLOWEST, FASTEST), help="Arrivals.")
@click.option("--limit", type=click.IntRange(1, MOST_REQUESTS), help="Only the first rows.")
@click.option("--seeds", default="0,1,2", show_default=True, help="All of them are played in the last round.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(**given: Any) -> None:
    """Search settings of a policy on a TRACE or a generated workload, in the simulator.

    Without --try, each setting is tried alone at half and at twice its default; with it, every combination of the
    values given. All are played on a part of the workload, the better third on more, the best on all of it and with
    every seed, beside the settings as they are. Nothing is changed anywhere: the report says what to change.
    """
    try:
        plan = _plan(given)
        late = plan.policies[0].endswith(LATE)
        candidates = grid(_tried(given["tried"], late)) if given["tried"] else star(plan.policies[0])
        found = _with_progress(plan, candidates, given["objective"])
    except (ValueError, KvsteerError, SimulationFault) as error:
        click.echo(f"kvsteer tune: {error}", err=True)
        sys.exit(1 if isinstance(error, SimulationFault) else 2)
    if given["as_json"]:
        click.echo(json.dumps(_record(found, given), indent=1))
    else:
        click.echo("\n".join(_report(found, given["policy"], given["objective"])))


def _plan(given: dict[str, Any]) -> Plan:
    policies = texts.option("--policy", texts.policies, given["policy"])
    if len(policies) != 1:
        raise ValueError(f"--policy {given['policy']}: one policy is tuned at a time")
    engine = texts.option(
        "--engine", lambda text: texts.engine_settings(texts.numbers(text)), given["engine"]
    )
    plan = Plan(
        workload=texts.workload(given["trace"], given["generate"]),
        policies=policies,
        seeds=texts.option("--seeds", texts.seeds, given["seeds"]),
        sim=SimSettings(fleet=uniform_fleet(given["replicas"], engine), gateways=given["gateways"]),
        speed=given["speed"],
        limit=given["limit"],
        policy_settings=texts.policy_settings(given["sets"], policies),
    )
    check_length(plan)
    return plan


def _with_progress(plan: Plan, candidates: Sequence[Settings], objective: str) -> Found:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("requests played"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with progress(*columns) as bar:
        task = bar.add_task("")

        def tell(done: int, whole: int) -> None:
            bar.update(task, completed=done, total=whole)

        return search(plan, candidates, objective, tell)


def _tried(given: tuple[str, ...], late: bool) -> dict[str, list[float]]:
    """What --try says: setting -> values. `late`: whether the policy binds late, so that the room's count."""
    found: dict[str, list[float]] = {}
    for text in given:
        name, values = texts.option("--try", _values, text)
        if name in found:
            raise ValueError(f"--try {shown(text)}: given twice; write all values of a setting at once")
        if name.startswith(ROOM) and not late:
            raise ValueError(
                f"--try {shown(text)}: nothing waits; settings of late binding need --policy NAME{LATE}"
            )
        found[name] = values
    return found


def _values(text: str) -> tuple[str, list[float]]:
    """ "gain=2:3:5" -> "gain", [2.0, 3.0, 5.0]."""
    name, equals, words = text.partition("=")
    if name.strip() == f"{ROOM}order":
        raise ValueError(
            "the order of waiting is a word, shortest or fcfs, and only numbers are tuned; compare the two with "
            "kvsteer simulate --room order=fcfs"
        )
    try:
        values = [float(word) for word in words.split(":")]
    except ValueError:
        equals = ""
        values = []
    if not equals or not name.strip() or not all(map(math.isfinite, values)):
        raise ValueError("write SETTING=VALUE:VALUE, for example gain=2:3:5")
    return name.strip(), list(dict.fromkeys(values))


def _report(found: Found, policy: str, objective: str) -> list[str]:
    lines = [f"{policy}, {objective}: mean over the seeds (least to most), last round, best first"]
    for trial in found.trials:
        span = f"{trial.value:.4f} ({min(trial.values):.4f} to {max(trial.values):.4f})"
        lines.append(f"  {span}   {_words(trial.settings)}")
    lines.append("")
    if not math.isfinite(found.present.value):
        return [*lines, "Nothing was measured: too few requests were answered. Use a longer workload."]
    if found.best is found.present:
        return [*lines, "The settings as they are came out best. Nothing to change."]
    lines += [f"Best: {_words(found.best.settings)}, {found.gain:.1%} better than as it is."]
    if not found.is_clear:
        lines.append(f"WARNING: {_noise(found)}; keep what you have.")
    lines += [
        "It is best on this workload; try it on another day's before you trust it. Nothing was applied. To apply:"
    ]
    return [*lines, *_to_apply(found.best.settings, policy)]


def _to_apply(settings: Settings, policy: str) -> list[str]:
    own = {name: value for name, value in settings.items() if not name.startswith(ROOM)}
    room = {name.removeprefix(ROOM): value for name, value in settings.items() if name.startswith(ROOM)}
    lines = []
    if own:
        inside = ", ".join(f"{name}: {value:g}" for name, value in own.items())
        lines.append(
            f"  policy: {{name: {policy.removesuffix(LATE)}, settings: {{{inside}}}}}     # of the pool"
        )
    if room:
        lines.append("  late binding: " + ", ".join(f"{name}={value:g}" for name, value in room.items()))
    return lines


def _noise(found: Found) -> str:
    if len(found.best.values) < 2:
        return "one seed can't tell chance from better"
    if found.gain <= found.noise:
        return f"that is within noise ({found.noise:.1%} over these seeds)"
    return f"less than {SAME:.0%} is not worth a change"


def _words(settings: Settings) -> str:
    return " ".join(f"{name}={value:g}" for name, value in settings.items()) or "as it is"


def _record(found: Found, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy": given["policy"],
        "objective": given["objective"],
        "best": found.best.settings,
        "gain": round(found.gain, 6) if math.isfinite(found.gain) else None,
        "clear": found.is_clear,
        "trials": [
            {"settings": trial.settings, "values": [v if math.isfinite(v) else None for v in trial.values]}
            for trial in found.trials
        ],
    }
