"""kvsteer drain --pick: which replicas would be missed least."""

import json
from typing import Any
from urllib.parse import urlencode

import click

from extproc.cli.admin_port import call
from extproc.cli.answers import PICKED
from extproc.cli.terminal import plain


def show(count: int, pool: str, admin: str, as_json: bool) -> None:
    """Name `count` replicas of a pool ("" for the only one) and why. Changes nothing; exits as `call` does."""
    query = {"count": count} | ({"pool": pool} if pool else {})
    answer = call(admin, f"/scale-in?{urlencode(query)}", PICKED)
    if as_json:
        click.echo(json.dumps(answer))
        return
    for row in answer["picked"]:
        click.echo(line(row))
    named = len(answer["picked"])
    if named < count:
        each = " of each role" if answer.get("roles") else ""
        click.echo(
            f"{named or 'none'} of the {count} asked for: of those that serve one{each} has to stay", err=True
        )


def line(row: dict[str, Any]) -> str:
    """One replica, what losing it costs, and why."""
    return f"{plain(str(row['replica']))}: {row['seconds']:.2f} s of prompt work; {plain(str(row['why']))}"
