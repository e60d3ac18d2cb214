"""kvsteer drain and undrain: take a replica out of service and put it back."""

import json
import re
import sys
import time
from typing import Any

import click
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from extproc.cli.admin_port import admin_option, call, fail, json_option, replica_path
from extproc.cli.answers import ORDER, REPLICAS
from extproc.cli.pick import show
from extproc.cli.terminal import plain, progress
from extproc.io.orders import MOST

#: Seconds of a unit; a number alone is seconds.
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: Seconds that a drain is watched at least where other gateways must hear of it: five times what they take.
_SETTLE = 0.5
#: Exit status when Redis did not take an order, so that other gateways don't know of it yet.
_UNWRITTEN = 4
#: Most characters that are shown of what was given.
_SHOWN = 60
#: Seconds between looks at what is still in flight.
_LOOK = 0.25


@click.command()
@click.argument("replica", required=False)
@click.option(
    "--deadline",
    metavar="TIME",
    help="After this the replica is dropped, e.g. 90s, 10m, 1h; at most 7d. Without one it may take its time.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Watch until nothing is in flight.")
@click.option(
    "--pick",
    type=click.IntRange(1, 50),
    metavar="N",
    help="Only name the N replicas that would be missed least, and why; nothing is drained.",
)
@click.option(
    "--pool", default="", metavar="NAME", help="With --pick: of which pool, where there are several."
)
@admin_option
@json_option
def command(
    replica: str | None,
    deadline: str | None,
    wait: bool,
    pick: int | None,
    pool: str,
    admin: str,
    as_json: bool,
) -> None:
    """Send REPLICA (ip:port) nothing new, and watch its requests and tokens fall to 0.

    Streams that run there go on to their end. The order is kept in Redis, where there is one, and then holds for
    every gateway and across restarts, until `kvsteer undrain`. A replica whose deadline passed is removed, and
    stays so until it is undrained or discovery names it no more.
    """
    if (replica is None) == (pick is None):
        fail("drain wants either a replica (ip:port) or --pick N", 2)
    if pick is not None:
        show(pick, pool, admin, as_json)
        return
    assert replica is not None
    query = "" if deadline is None else f"?deadline={_patience(deadline)}"
    order = call(admin, replica_path(replica, "drain") + query, ORDER, "POST")
    address = order["replica"]  # in its canonical form
    settle = _SETTLE if order["reaches"].startswith("every") else 0.0
    left = _watch(admin, address, settle, quiet=as_json) if wait else _in_flight(admin, address)
    state = left.pop("state") or order["state"]
    if as_json:
        click.echo(json.dumps({**order, **left, "state": state}))
    else:
        click.echo(plain(f"{address}: {state} for {order['reaches']}; {_said(state, left['requests'])}"))
    _exit_unwritten(order)


@click.command()
@click.argument("replica")
@admin_option
@json_option
def undrain(replica: str, admin: str, as_json: bool) -> None:
    """Let REPLICA (ip:port) take new requests again.

    One that its drain's deadline removed joins its pool again, and warms up.
    """
    order = call(admin, replica_path(replica, "undrain"), ORDER, "POST")
    told = plain(f"{order['replica']}: {order['state']} for {order['reaches']}")
    click.echo(json.dumps(order) if as_json else told)
    _exit_unwritten(order)


def seconds(text: str, option: str = "--deadline") -> float:
    """Seconds of a time such as 90s, 10m or 1h. Exits with 2 when it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if not match:
        fail(f"{option} {text[:_SHOWN]}: is no time; write for example 90s, 10m or 1h", 2)
    return float(match[1]) * _UNITS[match[2]]


def _patience(text: str) -> float:
    """Seconds of a deadline that a gateway takes. Exits with 2 when it is none."""
    found = seconds(text)
    if not 1 <= found <= MOST:
        fail(f"--deadline {text[:_SHOWN]}: must be from 1s to {MOST / 86_400:.0f}d", 2)
    return found


def _exit_unwritten(order: dict[str, Any]) -> None:
    if order.get("written") is False:  # a gateway of an older release does not say
        sys.exit(_UNWRITTEN)


def _said(state: str, requests: int) -> str:
    if state == "removed":
        return "its deadline passed; kvsteer undrain brings it back"
    return f"{requests} requests in flight"


def _in_flight(admin: str, replica: str) -> dict[str, Any]:
    answer = call(admin, "/replicas", REPLICAS)
    rows = [row for row in answer["replicas"] if row["replica"] == replica]
    states = [row["state"] for row in [*rows, *(answer.get("removed") or [])] if row["replica"] == replica]
    return {
        "state": states[0] if states else None,
        "requests": sum(row["requests_in_flight"] for row in rows),
        "tokens": sum(row["tokens_in_flight"] for row in rows),
    }


def _watch(admin: str, replica: str, settle: float, *, quiet: bool) -> dict[str, Any]:
    """Look until nothing is in flight, for `settle` seconds at least: other gateways may still send meanwhile."""
    began = time.monotonic()
    left = _in_flight(admin, replica)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with progress(*columns, quiet=quiet) as bars:
        bar = bars.add_task("", total=max(left["requests"], 1))
        while left["requests"] or time.monotonic() - began < settle:
            words = f"{left['requests']} requests, {left['tokens']:,} tokens in flight"
            bars.update(bar, description=words, completed=bars.tasks[0].total - left["requests"])
            time.sleep(_LOOK)
            left = _in_flight(admin, replica)
        bars.update(bar, description="nothing in flight", completed=bars.tasks[0].total)
    return left
