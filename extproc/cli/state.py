"""kvsteer state: what gateways share, from Redis and from their admin ports."""

import asyncio
import json
import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from extproc.cli.admin_port import ADMIN, call, fail, json_option
from extproc.cli.answers import STATE
from extproc.cli.inputs import FILE
from extproc.cli.policy_texts import tell_skipped
from extproc.cli.state_views import differences
from extproc.cli.terminal import console, plain, waiting
from extproc.config import load
from extproc.errors import ConfigError

#: Columns of a table that no terminal bounds.
_PIPED_WIDTH = 160
#: Seconds between the two looks of --check: what differs in both is no news under way.
_LOOKS_APART = 1.0


@click.command()
@click.option(
    "-c", "--config", "path", type=FILE, default="", help="A configuration: ask the Redis that it names."
)
@click.option(
    "--admin", "admins", multiple=True, metavar="URL", help="Admin port of a gateway; may be repeated."
)
@click.option("--check", is_flag=True, help="Compare the gateways' views; needs two --admin or more.")
@json_option
def command(path: str, admins: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Show the gateways, their leases, and what each shares and holds.

    Without -c and --admin the gateway at 127.0.0.1:9095 is asked. With --check each view is compared with the first
    one, twice within a second, and what differs in both is printed.
    """
    if check:
        _check(admins, as_json)
        return
    answer: dict[str, Any] = {}
    if path:
        answer |= _fleet(path)
    if admins or not path:
        answer["views"] = [call(admin, "/state", STATE) for admin in admins or (ADMIN,)]
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    _print(console(_PIPED_WIDTH), answer)


def _check(admins: tuple[str, ...], as_json: bool) -> None:
    if len(admins) < 2:
        fail("--check compares gateways: give --admin URL twice or more", 2)
    before = _look(admins)
    time.sleep(_LOOKS_APART)
    lasting = [sentence for what, sentence in _look(admins).items() if what in before]
    if as_json:
        click.echo(json.dumps({"differences": lasting}, indent=2))
    else:
        click.echo("\n".join(lasting) or f"{len(admins)} gateways agree")
    if lasting:
        sys.exit(3)


def _look(admins: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    first, *others = [call(admin, "/state", STATE) for admin in admins]
    return {
        (str(number), *what): sentence
        for number, other in enumerate(others)
        for what, sentence in differences(first, other).items()
    }


def _fleet(path: str) -> dict[str, Any]:
    try:
        settings = load(path).redis
    except ConfigError as error:
        fail(str(error), 2)
    if not settings.url:
        fail(
            f"{path}: redis.url is empty, so its gateway works alone, or workers share through a Redis of "
            "their own; ask each with --admin URL",
            2,
        )
    from redis.exceptions import RedisError  # not where only admin ports are asked

    from extproc.io.fleet_state import read_fleet
    from extproc.io.redis_check import cause

    try:
        with waiting(f"redis at {settings.place.shown()}"):
            return asyncio.run(read_fleet(settings))
    except (RedisError, OSError) as error:
        fail(f"redis at {settings.place.shown()} can't be asked: {cause(error)}", 1)


def _print(console: Console, answer: dict[str, Any]) -> None:
    if "gateways" in answer:
        tell_skipped(answer["skipped"])
        console.print(_table("gateways", answer["gateways"], "gateway version address streams heard"))
        console.print(_table("leases", answer["leases"], "lease holder token until"))
    for view in answer.get("views", []):
        why = f" ({view['shared_why']})" if view["shared_why"] else ""
        streams = f"{view['version']}, {view['streams']} streams"
        console.print(plain(f"{view['gateway']}: {streams}, shared: {view['shared']}{why}"))
        if view["leases"]:
            console.print(_table("leases", view["leases"], "lease held holder token remaining"))
        if view["journal"]:
            console.print_json(data=view["journal"])
        rows = [{"pool": pool["pool"], **row} for pool in view["pools"] for row in pool["replicas"]]
        console.print(_table("view", rows, "pool replica state incarnation entries requests tokens"))


def _table(title: str, rows: list[dict[str, Any]], columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for name in columns.split():
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*("" if row[name] is None else plain(str(row[name])) for name in columns.split()))
    return made
