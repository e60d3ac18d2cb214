"""The table of `kvsteer explain`."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from extproc.cli.terminal import console, plain

#: Columns that every table begins with: heading, key of a row, digits.
_ALWAYS = (("cached", "cached_tokens", 0), ("in flight", "in_flight", 0))
_TELEMETRY = (
    ("running", "running", 0),
    ("waiting", "waiting", 0),
    ("kv", "kv_used", 2),
    ("headroom", "headroom", 2),
    ("age s", "sample_age", 1),
)
#: Keys of a row that are no part of a policy's own answer.
_KNOWN = {key for _, key, _ in _ALWAYS + _TELEMETRY} | {
    "replica", "incarnation", "excluded", "rank", "score", "charged_cost", "bias",
}  # fmt: skip
#: Numbers from here on are written short.
_LONG = 1e12


def show(said: dict[str, Any]) -> None:
    """Print what was decided, why, and the table. `said` passed `explain_form.fault_of`."""
    for line in _head(said):
        click.echo(plain(line))
    if "pool" in said and said["candidates"]:
        console().print(_table(said))
        if said["policy"] != "charged_cost":
            click.echo(
                "cost s is what charged_cost would say, in seconds, to compare by; score is the policy's own"
            )


def _head(said: dict[str, Any]) -> list[str]:
    source = said["source"]
    lines = [f"{source.get('snapshot') or source['gateway']}; caches: {source['caches']}"]
    if "pool" not in said:
        return [*lines, f"no decision: {said['outcome']}{_aside(said['why'])}"]
    request = said["request"]
    lines.append(
        f"pool {said['pool']}, policy {said['policy']} (version {said['policy_version']}), "
        f"busy with prompts: {said['rho']:.0%}"
    )
    model = request.get("model") or "unnamed"
    lines.append(
        f"{request.get('dialect', 'no body')}, model {model}: {request['prompt_tokens']} prompt tokens, "
        f"{request['output_tokens_expected']} of output expected"
    )
    trouble = f", although {said['trouble']}" if said["trouble"] else ""
    chosen = f"{said['choice']}: {said['reason']}" if said["choice"] else "nowhere"
    lines.append(f"goes to {chosen}{trouble} ({said['outcome']}{_aside(said['why'])})")
    if said["shadow"]:
        shadow = said["shadow"]
        lines.append(f"shadow {shadow['policy']}: {shadow['choice'] or 'failed'}")
    return lines


def _table(said: dict[str, Any]) -> Table:
    rows = sorted(said["candidates"], key=_place)
    own = _own_columns(said["policy"], rows)
    costs = _cost_columns(said["policy"], rows)
    columns = (*_ALWAYS, *own, *costs, *_TELEMETRY)
    table = Table()
    table.add_column("", justify="right")
    table.add_column("replica", overflow="fold")
    for heading, _, _ in columns:
        table.add_column(_cell(heading), justify="right")
    for row in rows:
        if row["excluded"]:
            table.add_row("-", _cell(row["replica"]), _cell(f"excluded: {row['excluded']}"), style="dim")
            continue
        flat = row | {f"cost {name}": value for name, value in (row.get("charged_cost") or {}).items()}
        cells = [_number(flat.get(key), digits) for _, key, digits in columns]
        rank = row.get("rank")
        table.add_row(
            str(rank or ""), _cell(row["replica"]), *map(_cell, cells), style="bold" if rank == 1 else ""
        )
    return table


def _place(row: dict[str, Any]) -> tuple[bool, float, float]:
    """Choice, fallbacks, the others by their score, and last those that were no candidates."""
    return bool(row["excluded"]), row.get("rank") or float("inf"), row.get("score") or 0.0


def _own_columns(policy: str, rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """The policy's own score and what it says of it; charged_cost says it in seconds already."""
    if policy == "charged_cost":
        return []
    keys = dict.fromkeys(key for row in rows for key in row if key not in _KNOWN)
    score = [("score", "score", 3)] if any("score" in row for row in rows) else []
    return score + [(key, key, 3) for key in keys]


def _cost_columns(policy: str, rows: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Charged cost in seconds: all its parts where it decides, else the sum to compare by."""
    parts = next((row["charged_cost"] for row in rows if row.get("charged_cost")), None) or {}
    names = parts if policy == "charged_cost" else [name for name in parts if name == "total"]
    return [("cost s" if name == "total" else f"{name} s", f"cost {name}", 3) for name in names]


def _number(value: Any, digits: int) -> str:
    if value is None:
        return "?"
    if type(value) not in (int, float):
        return str(value)
    return f"{value:.{digits}f}" if abs(value) < _LONG else f"{value:.3g}"


def _cell(text: str) -> Text:
    """Text of others as it is: no markup, no control characters."""
    return Text(plain(text))


def _aside(why: str | None) -> str:
    return f", {why}" if why else ""
