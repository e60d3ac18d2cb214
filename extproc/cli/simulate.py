"""kvsteer simulate: policies against each other in virtual time."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from extproc.core.waiting import RoomSettings
from extproc.sim import texts
from extproc.sim.compare import LATE, Plan, compare
from extproc.sim.engine import EngineSettings
from extproc.sim.gateway import GatewaySettings
from extproc.sim.generators import GENERATORS
from extproc.sim.page import page
from extproc.sim.plan import Fleet
from extproc.sim.report import as_json, table_of
from extproc.sim.run import SimSettings
from extproc.sim.workload import WorkloadError

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
    "--replicas", default=4, show_default=True, type=click.IntRange(1), help="Equal replicas r0, r1, ..."
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
    "--gateways", default=1, show_default=True, type=click.IntRange(1), help="Each with a core of its own."
)
@click.option("--journal", default="20ms", show_default=True, help="How late gateways hear of each other.")
@click.option("--private", is_flag=True, help="Gateways don't hear of each other.")
@click.option(
    "--telemetry", default="1s", show_default=True, help="Time between samples of a replica; 0 for none."
)
@click.option("--delay", default="100ms", show_default=True, help="How late a sample comes.")
@click.option("--no-first-tokens", is_flag=True, help="Gateways don't see first tokens; the clock must tell.")
@click.option(
    "--speed", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Arrivals."
)
@click.option("--quantum", default="0s", show_default=True, help="Round arrivals down to this, for bursts.")
@click.option("--limit", type=click.IntRange(1), help="Only the first rows.")
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

    Exit status: 0, or 2 when an input or option is wrong. docs/simulator.md has the model and examples.
    """
    try:
        plan = _plan(given)
        inputs = _inputs(given, plan)
        results = _with_progress(plan)
    except (ValueError, WorkloadError) as error:
        click.echo(f"kvsteer simulate: {error}", err=True)
        sys.exit(2)
    title = _title(plan)
    if str(given["json_path"]) != "-":
        _print(table_of(results, title))
    if given["json_path"] is not None:
        with click.open_file(str(given["json_path"]), "w") as out:
            out.write(as_json(results, inputs, plan.seeds))
    if given["html_path"] is not None:
        given["html_path"].write_text(page(results, inputs, title), encoding="utf-8")


def _plan(given: dict[str, Any]) -> Plan:
    journal = None if given["private"] else texts.seconds(given["journal"])
    return Plan(
        workload=texts.workload(given["trace"], given["generate"]),
        policies=texts.policies(given["policies"]),
        seeds=texts.seeds(given["seeds"]),
        sim=SimSettings(
            fleet=_fleet(given),
            gateway=GatewaySettings(signalled=not given["no_first_tokens"]),
            gateways=given["gateways"],
            journal=journal,
            telemetry=texts.seconds(given["telemetry"]),
            delay=texts.seconds(given["delay"]),
        ),
        slo=texts.slo(given["slo"]),
        room=_room(given["room"]),
        speed=given["speed"],
        quantum=texts.seconds(given["quantum"]),
        limit=given["limit"],
        policy_settings=texts.policy_settings(given["sets"]),
    )


def _fleet(given: dict[str, Any]) -> Fleet:
    replicas: dict[str, EngineSettings] = {}
    for text in given["classes"]:
        name, count, settings = texts.replica_class(text)
        replicas.update({f"{name}{number}": settings for number in range(count)})
    if not replicas:
        settings = texts.engine_settings(texts.numbers(given["engine"]))
        replicas = {f"r{number}": settings for number in range(given["replicas"])}
    for text in given["slow"]:
        for name, factor in texts.numbers(text).items():
            if name not in replicas:
                raise ValueError(f"--slow {text}: there is no replica {name!r}; known: {', '.join(replicas)}")
            replicas[name] = EngineSettings(**{**asdict(replicas[name]), "speed": factor})
    return Fleet(replicas=replicas, events=[texts.fleet_event(text) for text in given["events"]])


def _room(text: str) -> RoomSettings:
    given: dict[str, Any] = dict(texts.pairs(text))
    for key, value in given.items():
        if key not in RoomSettings.__slots__:
            raise ValueError(
                f"late binding has no setting {key!r}; it has: {', '.join(RoomSettings.__slots__)}"
            )
        given[key] = value if key == "order" else texts.numbers(f"{key}={value}")[key]
    return RoomSettings(**given)


def _inputs(given: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """What a reader needs to repeat the comparison to the digit."""
    hidden = {"trace", "json_path", "html_path"}
    options = {key: value for key, value in given.items() if key not in hidden}
    return {"workload": plan.workload.name, **plan.workload.facts, "options": options}


def _title(plan: Plan) -> str:
    sim = plan.sim
    gateways = f"{sim.gateways} gateways" if sim.gateways > 1 else "1 gateway"
    if sim.gateways > 1:
        gateways += (
            " that don't hear of each other"
            if sim.journal is None
            else f", journal {sim.journal * 1000:g} ms"
        )
    return f"{plan.workload.name} at speed {plan.speed:g}, {len(sim.fleet.replicas)} replicas, {gateways}"


def _print(table: Any) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # a pipe has no width; let every column have its own
        console = Console(width=200)
    console.print(table)


def _with_progress(plan: Plan) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total = min(int(plan.workload.facts["requests"]), plan.limit or sys.maxsize)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        return compare(plan, _teller(bar, task))


def _teller(bar: Any, task: Any) -> Callable[[str, int, int], None]:
    def tell(policy: str, seed: int, over: int) -> None:
        bar.update(task, description=f"{policy}, seed {seed}", completed=over)

    return tell
