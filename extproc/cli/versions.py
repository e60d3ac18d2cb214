"""kvsteer versions: what share of its conversations each version of a model gets, and how it does; changed live."""

import json
from typing import Any
from urllib.parse import urlencode

import click
from rich.table import Table
from rich.text import Text

from extproc.cli.admin_port import admin_option, call, json_option
from extproc.cli.inputs import me
from extproc.cli.terminal import console, plain


@click.group()
def command() -> None:
    """Versions of models: see how each does, give them shares, go back; in running gateways, within a second."""


@command.command("list")
@admin_option
@json_option
def list_(admin: str, as_json: bool) -> None:
    """Each model's versions side by side: share, requests, errors, P99 time to first token of the last minute."""
    found = call(admin, "/versions", "models")
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found["models"]:
        click.echo("no model has several versions; see pools[].version")
    for model in found["models"]:
        console().print(_table(model))


@command.command("set")
@click.argument("model")
@click.argument("weights", nargs=-1, required=True, metavar="VERSION=WEIGHT...")
@click.option("--why", required=True, help="The reason, for those who read it later.")
@click.option("--who", help="Who changes it; your user name and host unless given.")
@admin_option
@json_option
def set_(model: str, weights: tuple[str, ...], why: str, who: str | None, admin: str, as_json: bool) -> None:
    """Give versions of MODEL (* for pools without models) new weights, in percent; the others share the rest."""
    asked = {"model": model, "weights": ",".join(weights), "who": who or me(), "why": why}
    _tell(call(admin, f"/versions/set?{urlencode(asked)}", "versions", "POST"), as_json)


@command.command("rollback")
@click.argument("model")
@click.option("--why", required=True, help="The reason, for those who read it later.")
@click.option("--who", help="Who changes it; your user name and host unless given.")
@admin_option
@json_option
def rollback(model: str, why: str, who: str | None, admin: str, as_json: bool) -> None:
    """Put the weights of MODEL back that it had before. Repeated, it goes back step by step."""
    asked = {"model": model, "who": who or me(), "why": why}
    _tell(call(admin, f"/versions/rollback?{urlencode(asked)}", "versions", "POST"), as_json)


def _tell(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    shares = ", ".join(f"{row['version']} {row['share']:.1%}" for row in found["versions"])
    click.echo(plain(f"{found['model']}: change {found['number']}: {shares}; for {found['reaches']}"))


def _table(model: dict[str, Any]) -> Table:
    change = (
        f"change {model['number']} by {model['who']}: {model['why']}" if model["number"] else "as configured"
    )
    table = Table(title=Text(plain(f"{model['model']} ({change})")))
    for heading in ("version", "weight", "share", "requests", "errors", "TTFT P99", "pools"):
        table.add_column(heading, overflow="fold")
    for row in model["versions"]:
        errors = f"{row['errors'] / row['requests']:.1%}" if row["requests"] else "-"
        ttft = "-" if row["ttft_p99"] is None else f"{row['ttft_p99'] * 1000:.0f} ms"
        cells = (
            row["version"],
            f"{row['weight']:g}",
            f"{row['share']:.1%}",
            str(row["requests"]),
            errors,
            ttft,
        )
        table.add_row(*(Text(plain(cell)) for cell in (*cells, ", ".join(row["pools"]))))
    return table
