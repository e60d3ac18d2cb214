"""kvsteer versions: what share of its conversations each version of a model gets, and how it does; changed live."""

import json
from math import floor, log10
from typing import Any
from urllib.parse import urlencode

import click
from rich.table import Table
from rich.text import Text

from extproc.cli.admin_port import admin_option, call, json_option
from extproc.cli.answers import VERSIONS, WEIGHTS
from extproc.cli.inputs import me
from extproc.cli.terminal import console, plain
from extproc.io.weight_orders import word


@click.group()
def command() -> None:
    """Versions of models: see how each does, give them shares, go back; in running gateways, within a second."""


@command.command("list")
@admin_option
@json_option
def list_(admin: str, as_json: bool) -> None:
    """Each model's versions side by side: share, requests, errors, P99 time to first token of the last minute."""
    found = call(admin, "/versions", VERSIONS)
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
    asked = {"model": model, "weights": ",".join(weights), **_words(who, why)}
    _tell(call(admin, f"/versions/set?{urlencode(asked)}", WEIGHTS, "POST"), as_json)


@command.command("rollback")
@click.argument("model")
@click.option("--why", required=True, help="The reason, for those who read it later.")
@click.option("--who", help="Who changes it; your user name and host unless given.")
@admin_option
@json_option
def rollback(model: str, why: str, who: str | None, admin: str, as_json: bool) -> None:
    """Put the weights of MODEL back that it had before. Repeated, it goes back step by step."""
    asked = {"model": model, **_words(who, why)}
    _tell(call(admin, f"/versions/rollback?{urlencode(asked)}", WEIGHTS, "POST"), as_json)


def percent(share: float) -> str:
    """A share 0..1 in percent, with as many places that neither it nor what is left to all looks like nothing."""
    least = round(min(share, 1 - share) * 100, 12)
    places = 1 - floor(log10(least)) if least > 0 else 1
    return f"{share:.{min(max(places, 1), 12)}%}"


def _words(who: str | None, why: str) -> dict[str, str]:
    """Who changes it and why, as the gateway takes them."""
    words = {"who": me() if who is None else who, "why": why}
    try:
        return {name: word(words, name) for name in words}
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None


def _tell(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    shares = ", ".join(f"{row['version']} {percent(row['share'])}" for row in found["versions"])
    click.echo(plain(f"{found['model']}: change {found['number']}: {shares}; for {found['reaches']}"))
    if found.get("stepped_back"):
        names = ", ".join(found["stepped_back"])
        click.echo(
            plain(f"{names}: taken back by the guard; stays at 0 until `versions set` gives it weight"),
            err=True,
        )


def _table(model: dict[str, Any]) -> Table:
    change = (
        f"change {model['number']} by {model['who']}: {model['why']}" if model["number"] else "as configured"
    )
    table = Table(title=Text(plain(f"{model['model']} ({change})")))
    for heading in (
        "version",
        "weight",
        "share",
        "in flight",
        "requests",
        "errors",
        "left",
        "TTFT P99",
        "before",
        "pools",
    ):
        table.add_column(heading, overflow="fold")
    for row in model["versions"]:
        cells = (
            row["version"],
            f"{row['weight']:g}"
            + (" (taken back)" if row["version"] in (model.get("stepped_back") or ()) else ""),
            percent(row["share"]),
            "-" if row.get("in_flight") is None else str(row["in_flight"]),
            *_seen(row),
            " / ".join(_seen(row["before_change"])) if row.get("before_change") else "-",
            ", ".join(row["pools"]) or "of another configuration",
        )
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _seen(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Requests, errors, clients that left without an answer, and P99 time to first token."""
    left = row.get("left") or 0
    errors = f"{row['errors'] / row['requests']:.1%}" if row["requests"] else "-"
    ttft = "-" if row["ttft_p99"] is None else f"{row['ttft_p99'] * 1000:.0f} ms"
    return str(row["requests"]), errors, str(left), ttft
