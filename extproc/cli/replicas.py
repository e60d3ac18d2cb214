"""kvsteer replicas: what a gateway believes of each replica."""

import json
from collections.abc import Sequence
from typing import Any, Final

import click
from rich.table import Table

from extproc.cli.admin_port import admin_option, call, json_option
from extproc.cli.answers import REPLICAS
from extproc.cli.terminal import console, plain

#: Columns of a table that no terminal bounds.
_PIPED_WIDTH = 160
#: Who took a replica out whose metrics can't be had (core/lifecycle.py), and what is said of them.
_METRICS: Final = "metrics"


@click.command()
@admin_option
@json_option
def command(admin: str, as_json: bool) -> None:
    """Show every replica: its state, headroom, load, cache and speeds.

    One that a drain's deadline removed is shown as removed until it is undrained, or gone from discovery.
    """
    answer = call(admin, "/replicas", REPLICAS)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    console(_PIPED_WIDTH).print(table(answer["replicas"], answer.get("removed") or []))


def table(rows: list[dict[str, Any]], removed: Sequence[dict[str, Any]] = ()) -> Table:
    """One row a replica; those that were removed come last."""
    made = Table()
    for name in (
        "pool",
        "replica",
        "state",
        "headroom",
        "in flight",
        "tokens",
        "backlog",
        "KV",
        "index",
        "cache came",
        "believed",
        "sample",
    ):
        made.add_column(
            name, justify="left" if name in ("pool", "replica", "state") else "right", overflow="fold"
        )
    for row in rows:
        made.add_row(
            *_named(row, *_remarks(row)),
            _number(row["headroom"], ".2f"),
            str(row["requests_in_flight"]),
            f"{row['tokens_in_flight']:,}",
            f"{row['backlog_seconds']:.2f} s",
            _number(row["kv_used"], ".0%"),
            f"{row['index_entries']:,}",
            *_cache(row.get("cache")),
            "none yet" if row["sample_age"] is None else f"{row['sample_age']:.1f} s",
        )
    for row in removed:
        made.add_row(*_named(row, row["state_cause"]))
    return made


def _remarks(row: dict[str, Any]) -> list[str]:
    """Why a replica gets nothing, or less than the others, and why nothing new is known of it."""
    why, share, unheard = row["excluded"], row.get("share") or 1, row.get("scrape_failure")
    if why == row["state"]:
        why = row.get("state_cause")  # who took it out, as the state says the rest
    if why == _METRICS and unheard:
        why = None  # told with its word
    remarks = [why, f"share {share:.0%}" if 0 < share < 1 else None, unheard and f"{_METRICS}: {unheard}"]
    return [remark for remark in remarks if remark]


def _named(row: dict[str, Any], *remarks: str) -> tuple[str, str, str]:
    """Pool, replica and state, with why it is so; whatever answers there may have chosen these texts."""
    state = f"{row['state']} ({', '.join(map(str, remarks))})" if remarks else row["state"]
    return plain(str(row["pool"])), plain(str(row["replica"])), plain(str(state))


def _cache(cache: dict[str, Any] | None) -> tuple[str, str]:
    """Share of the predicted tokens that came, with what they count for if that is not all; and the size believed."""
    if cache is None:
        return "off", "off"
    came = _number(cache["precision"], ".0%")
    scaled = "" if cache["scale"] == 1 else f" (x{cache['scale']:.2f})"
    return came + scaled, _number(cache["believed_share"], ".0%")


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
