"""kvsteer simulate: policies against each other in virtual time."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from extproc.cli.inputs import Finite, cannot_write, check_outputs
from extproc.cli.terminal import console, counted, progress
from extproc.core.waiting import RoomSettings
from extproc.errors import KvsteerError
from extproc.sim import texts
from extproc.sim.bounds import FASTEST, MOST_REQUESTS, SLOWEST, shown
from extproc.sim.checks import SimulationFault
from extproc.sim.compare import LATE, Plan, check_length, compare
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import GatewaySettings
from extproc.sim.generators import GENERATORS
from extproc.sim.page import page
from extproc.sim.plan import MOST_REPLICAS, Fleet
from extproc.sim.report import Result, as_json, remarks, table_of
from extproc.sim.run import MOST_GATEWAYS, SimSettings

_DEFAULT_POLICIES = f"charged_cost{LATE},charged_cost,cache_aware,prefix_hash,least_request,round_robin"


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--generate", metavar="NAME[:K=V,..]", help=f"Make the workload: {', '.join(GENERATORS)}.")
@click.option(
    "--policies", default=_DEFAULT_POLICIES, show_default=True, help=f"NAME or NAME{LATE}, with commas."
)
@click.option("--set", "sets", multiple=True, metavar="POLICY.KEY=V", help="A setting of a policy.")
@click.option(
    "--room", default="", metavar="K=V,..", help="Late binding: theta, alpha, cap, most, patience, ..."
)
@click.option(
    "--replicas",
    default=4,
    show_default=True,
    type=click.IntRange(1, MOST_REPLICAS),
    help="Equal replicas r0, r1, ...",
)
@click.option("--engine", default="", metavar="K=V,..", help="Their settings: kv, prefill, chunk, speed, ...")
@click.option(
    "--class", "classes", multiple=True, metavar="NAME:count=N,K=V,..", help="Unequal replicas instead."
)
@click.option(
    "--slow", multiple=True, metavar="REPLICA=FACTOR", help="Speed factor of one replica, unannounced."
)
@click.option(
    "--event", "events", multiple=True, metavar="T:WHAT:REPLICA[:V]", help="fail restart join leave slow."
)
@click.option(
    "--gateways",
    default=1,
    show_default=True,
    type=click.IntRange(1, MOST_GATEWAYS),
    help="Each with a core of its own.",
)
@click.option("--journal", default="20ms", show_default=True, help="How late gateways hear of each other.")
@click.option("--private", is_flag=True, help="Gateways don't hear of each other.")
@click.option(
    "--telemetry", default="1s", show_default=True, help="Time between samples of a replica; 0 for none."
)
@click.option("--delay", default="100ms", show_default=True, help="How late a sample comes.")
@click.option("--no-first-tokens", is_flag=True, help="Gateways don't see first tokens; the clock must tell.")
@click.option(
    "--no-usage", is_flag=True, help="Gateways don't see how long answers were, and don't learn it."
)
@click.option("--speed", default=1.0, show_default=True, type=Finite(SLOWEST, FASTEST), help="Arrivals.")
@click.option("--quantum", default="0s", show_default=True, help="Round arrivals down to this, for bursts.")
@click.option("--limit", type=click.IntRange(1, MOST_REQUESTS), help="Only the first rows.")
@click.option(
    "--seeds", default="0", show_default=True, help="With commas: ties and gateways are drawn anew."
)
@click.option("--slo", default="ttft=2s,tpot=50ms", show_default=True, help="What counts for goodput.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, allow_dash=True), help="All numbers; - is stdout."
)
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="One file with table and charts.")
def command(**given: Any) -> None:
    """Play a TRACE (or a generated workload) against a modelled fleet, once for every policy and seed.

    The policies run in the same core as `kvsteer serve`. Time is virtual: an hour of traffic takes seconds. The
    first 10 % of arrivals are left out of the numbers. The same inputs and seeds give the same bytes.
    docs/simulator.md has the model.
    """
    try:
        plan = _plan(given)
        check_outputs({"--json": given["json_path"], "--html": given["html_path"]}, [given["trace"]])
        results = _with_progress(plan)
        _tell(given, plan, results)
    except (ValueError, KvsteerError, SimulationFault) as error:
        click.echo(f"kvsteer simulate: {error}", err=True)
        sys.exit(1 if isinstance(error, SimulationFault) else 2)


def _tell(given: dict[str, Any], plan: Plan, results: list[Result]) -> None:
    inputs, title = _inputs(given, plan), _title(plan)
    if str(given["json_path"]) != "-":
        _print(table_of(results, title))
        for line in remarks(results):
            click.echo(line)
    if given["json_path"] is not None:
        _write("--json", given["json_path"], as_json(results, inputs, plan.seeds))
    if given["html_path"] is not None:
        _write("--html", given["html_path"], page(results, inputs, title))


def _write(option: str, path: Path, text: str) -> None:
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(option, path, error) from None


def _plan(given: dict[str, Any]) -> Plan:
    policies = texts.option("--policies", texts.policies, given["policies"])
    plan = Plan(
        workload=texts.workload(given["trace"], given["generate"]),
        policies=policies,
        seeds=texts.option("--seeds", texts.seeds, given["seeds"]),
        sim=SimSettings(
            fleet=_fleet(given),
            gateway=GatewaySettings(signalled=not given["no_first_tokens"], measured=not given["no_usage"]),
            gateways=given["gateways"],
            journal=None if given["private"] else texts.option("--journal", texts.seconds, given["journal"]),
            telemetry=texts.option("--telemetry", texts.seconds, given["telemetry"]),
            delay=texts.option("--delay", texts.seconds, given["delay"]),
        ),
        slo=texts.option("--slo", texts.slo, given["slo"]),
        room=_room(given["room"], policies),
        speed=given["speed"],
        quantum=texts.option("--quantum", texts.seconds, given["quantum"]),
        limit=given["limit"],
        policy_settings=texts.policy_settings(given["sets"], policies),
    )
    check_length(plan)
    return plan


def _room(text: str, policies: list[str]) -> RoomSettings:
    """The settings of late binding. Raises ValueError when they are wrong, or given though nothing waits."""
    found = texts.option("--room", lambda words: texts.room(texts.pairs(words)), text)
    if text.strip() and not any(name.endswith(LATE) for name in policies):
        raise ValueError(
            f"--room {shown(text)}: nothing waits; settings of late binding need a NAME{LATE} in --policies"
        )
    return found


def _fleet(given: dict[str, Any]) -> Fleet:
    replicas: dict[str, EngineSettings] = {}
    for name in ("replicas", "engine"):
        if given["classes"] and _is_given(name):
            raise ValueError(
                f"--{name} and --class: the classes say what replicas there are; remove one of the two"
            )
    for text in given["classes"]:
        name, count, settings = texts.option("--class", texts.replica_class, text)
        for number in range(count):
            if f"{name}{number}" in replicas:
                raise ValueError(
                    f"--class {text}: there is a replica {name}{number} already; rename the class"
                )
            replicas[f"{name}{number}"] = settings
    if not replicas:
        settings = texts.option(
            "--engine", lambda text: texts.engine_settings(texts.numbers(text)), given["engine"]
        )
        replicas = {f"r{number}": settings for number in range(given["replicas"])}
    for text in given["slow"]:
        texts.option("--slow", lambda words: _slow(words, replicas), text)
    events = [texts.option("--event", texts.fleet_event, text) for text in given["events"]]
    return Fleet(replicas=replicas, events=events)


def _is_given(name: str) -> bool:
    """Whether an option was written, also with its default."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _slow(text: str, replicas: dict[str, EngineSettings]) -> None:
    """Give replicas the speeds that "r0=0.5,r1=2" names."""
    given = texts.numbers(text)
    if not given:
        raise ValueError("write REPLICA=FACTOR, for example r1=0.5")
    for name, factor in given.items():
        if name not in replicas:
            raise ValueError(f"there is no replica {name!r}; known: {', '.join(list(replicas)[:20])}")
        replicas[name] = replace(replicas[name], speed=factor)


def _inputs(given: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """What a reader needs to repeat the comparison to the digit."""
    hidden = {"trace", "json_path", "html_path"}
    options = {key: value for key, value in given.items() if key not in hidden}
    return {"workload": plan.workload.name, **plan.workload.facts, "options": options}


def _title(plan: Plan) -> str:
    sim = plan.sim
    gateways = counted(sim.gateways, "gateway")
    if sim.gateways > 1:
        gateways += (
            " that don't hear of each other"
            if sim.journal is None
            else f", journal {sim.journal * 1000:g} ms"
        )
    replicas = counted(len(sim.fleet.replicas), "replica")
    return f"{plan.workload.name} at speed {plan.speed:g}, {replicas}, {gateways}"


def _print(table: Any) -> None:
    console().print(table)


def _with_progress(plan: Plan) -> list[Result]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    total = min(int(plan.workload.facts["requests"]), plan.limit or sys.maxsize)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress(*columns) as bar:
        task = bar.add_task("", total=total)
        return compare(plan, _teller(bar, task))


def _teller(bar: Any, task: Any) -> Callable[[str, int, int], None]:
    def tell(policy: str, seed: int, over: int) -> None:
        bar.update(task, description=f"{policy}, seed {seed}", completed=over)

    return tell
