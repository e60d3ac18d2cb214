"""What `kvsteer policy` says: tables, lines, JSON."""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from extproc.cli.terminal import counted, plain
from extproc.config import PolicySettings, ShadowSettings
from extproc.io.policy_versions import Chosen, Version


class Effect(NamedTuple):
    """What gateways report of a version: how many use it, who refused it and why, who does not yet use it.

    `superseded`: number of a newer version that somebody else recorded meanwhile; None while there is none.
    """

    using: int
    refused: dict[str, str]
    behind: list[str]
    superseded: int | None = None


#: Most lines of one kind that are said; of more, only how many.
_MOST_LINES = 20


def tell_skipped(skipped: list[str]) -> None:
    """Say on standard error what somebody else wrote into kvsteer's keys, and that it was passed over."""
    for line in skipped[:_MOST_LINES]:
        click.echo(f"skipped in Redis: {line}", err=True)
    if len(skipped) > _MOST_LINES:
        click.echo(f"skipped in Redis: {len(skipped) - _MOST_LINES} more", err=True)


def tell(pool: str, version: Version, effect: Effect, seconds: float, as_json: bool) -> None:
    """Say what was changed, and where it is in effect; `seconds` is how long that took."""
    if as_json:
        say_json(
            pool=pool, changed=True, version=version.as_dict(), seconds=round(seconds, 3), **effect._asdict()
        )
        return
    click.echo(f"pool {pool}: version {version.number}: {_all_in_words(version.chosen)}")
    if effect.superseded is not None:
        click.echo(
            f"superseded: somebody else recorded version {effect.superseded} after it, which gateways take instead; "
            "see kvsteer policy list",
            err=True,
        )
        return
    count = effect.using + len(effect.refused) + len(effect.behind)
    if not count:
        click.echo("no gateway reports to Redis now; it is in effect once one starts")
    else:
        click.echo(
            f"in effect in {effect.using} of {counted(count, 'gateway')}, {seconds:.2f} s after it was recorded"
        )
    if effect.behind:
        click.echo(f"not yet, or gone without saying so: {', '.join(effect.behind)}", err=True)


def tell_unchanged(pool: str, newest: Version, as_json: bool) -> None:
    """Say that it is so already."""
    if as_json:
        say_json(pool=pool, changed=False, version=newest.as_dict())
    else:
        click.echo(f"pool {pool}: so it is since version {newest.number}; nothing was changed")


def nothing_before(pool: str, newest: Version | None) -> str:
    """Why there is no step back from a version; None where there is none at all."""
    if newest is None:
        why = "its policy was never changed, and each gateway chooses as its own file says"
    else:
        is_it = "is the first one" if newest.restores is None else "has what the first one had"
        why = f"version {newest.number} {is_it}; name a version with --to (kvsteer policy list)"
    return f"pool {pool}: there is nothing to go back to: {why}"


def say_json(**what: Any) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(what, indent=2))


def table_of(pool: str, versions: list[Version]) -> Table:
    """The versions, newest first and bold."""
    table = Table(title=f"pool {pool}")
    for heading in ("version", "when", "who", "policy", "shadow", "why"):
        table.add_column(heading, overflow="fold")
    for i, version in enumerate(versions):
        why = version.why if version.restores is None else f"{version.why} (puts {version.restores} back)"
        when = datetime.fromtimestamp(version.at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        shadow_policy = in_words(version.chosen.shadow) if version.chosen.shadow.name else "none"
        cells = (str(version.number), when, version.who, in_words(version.chosen.policy), shadow_policy, why)
        # Text, since what people write must not be taken for markup.
        table.add_row(*(Text(cell) for cell in cells), style="bold" if i == 0 else "")
    return table


def no_versions(pool: str, own: PolicySettings, gateways: dict[str, dict[str, Any]]) -> str:
    """That Redis has no versions of a pool: there never was one, or they are lost, for gateways use one."""
    used = max((reported["version"] for reported in gateways.values()), default=0)
    if used:
        return (
            f"pool {pool}: Redis has no versions any more, and gateways use version {used}; each heartbeat they look "
            "and write it again. Look once more before you change it"
        )
    return f"pool {pool}: no versions; each gateway chooses as its own file says (here: {in_words(own)})"


def gateway_lines(gateways: dict[str, dict[str, Any]]) -> list[str]:
    """One line for each gateway that reports: what it uses, and what it had to refuse."""
    lines = []
    for name, reported in gateways.items():
        using = f"version {reported['version']}" if reported["version"] else "its configuration (version 0)"
        refused = reported["refused"]
        reason = f"; can't use version {refused['version']}: {refused['reason']}" if refused else ""
        lines.append(f"{name} uses {using}{reason}")
    return lines or ["no gateway reports to Redis now"]


def _all_in_words(chosen: Chosen) -> str:
    beside = f", shadow {in_words(chosen.shadow)}" if chosen.shadow.name else ""
    return in_words(chosen.policy) + beside


def in_words(policy: PolicySettings | ShadowSettings) -> str:
    """`charged_cost gain=4`."""
    return plain(" ".join([policy.name, *(f"{key}={value:g}" for key, value in policy.settings.items())]))
