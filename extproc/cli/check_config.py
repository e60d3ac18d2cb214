"""kvsteer check-config: what is wrong with a configuration, where, and how to mend it."""

import json
import re
import sys
from typing import Any

import click

from extproc.cli.admin_port import json_option
from extproc.cli.inputs import FILE
from extproc.cli.named_files import faults
from extproc.cli.terminal import counted
from extproc.config import GatewaySettings, line_of, load
from extproc.doubts import doubts
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError
from extproc.faults import Loc, path_of

#: What follows the file's name in the line of a fault: the line, perhaps the column.
_LINE = re.compile(r":(\d+)(?::\d+)?: ")


@click.command()
@click.argument("file", type=FILE, metavar="FILE", required=False)
@click.option("-c", "--config", type=FILE, help="FILE, in the form that serve takes it.")
@click.option(
    "--files/--no-files",
    default=True,
    show_default=True,
    help="Open the files it names; without, for a configuration that is used on another machine.",
)
@json_option
def command(file: str | None, config: str | None, files: bool, as_json: bool) -> None:
    """Say what is wrong with FILE, where, and how to mend it: one line for each fault, on standard error.

    Also says which of the files it names can't be used (tokens, CA certificates, endpoints, the folder for Envoy),
    and when Envoy could not be configured for it; and warns of what it says in vain, which is no fault. With --json
    the faults and warnings are on standard output.
    """
    path = _one_of(file, config)
    settings, wrong = _looked_at(path, files)
    doubtful = [_line(path, loc, said) for loc, said in (doubts(settings) if settings else ())]
    for text in () if as_json else doubtful:
        click.echo(f"warning: {text}", err=True)
    if as_json:
        click.echo(json.dumps(_record(path, settings, wrong, doubtful), indent=2))
    elif wrong:
        click.echo("\n".join(wrong), err=True)
    elif settings is not None:
        pools = (f"{pool.name} ({counted(len(pool.replicas), 'replica')})" for pool in settings.pools)
        click.echo(f"{path}: good; pools: {', '.join(pools)}")
    if wrong:
        sys.exit(2)


def _looked_at(path: str, files: bool) -> tuple[GatewaySettings | None, list[str]]:
    """The configuration, None where it can't be read as one, and what is wrong with it, a line each."""
    try:
        settings = load(path)
    except ConfigError as error:
        return None, str(error).splitlines()
    wrong = [_line(path, loc, said) for loc, said in (faults(settings) if files else ())]
    try:
        if not _is_for_a_mesh(settings):
            bootstrap(settings)
    except ConfigError as error:
        wrong.append(f"{path}: {error}")
    return settings, wrong


def _line(path: str, loc: Loc, sentence: str) -> str:
    return f"{path}:{line_of(path, loc)}: {path_of(loc)}: {sentence}"


def _record(
    path: str, settings: GatewaySettings | None, wrong: list[str], doubtful: list[str]
) -> dict[str, Any]:
    """All of it for a script; `line` is None where a fault has no line in the file."""
    pools = (
        [{"pool": pool.name, "replicas": len(pool.replicas)} for pool in settings.pools] if settings else []
    )
    return {
        "config": path,
        "good": not wrong,
        "faults": [_told(path, "fault", text) for text in wrong],
        "warnings": [_told(path, "warning", text) for text in doubtful],
        "pools": pools,
    }


def _told(path: str, what: str, text: str) -> dict[str, Any]:
    rest = text.removeprefix(path)
    place = _LINE.match(rest)
    return {"line": int(place[1]) if place else None, what: rest[place.end() if place else 0 :].lstrip(": ")}


def _is_for_a_mesh(settings: GatewaySettings) -> bool:
    """Whether no Envoy can be configured by these settings, and none has to be: a mesh finds the pods by itself."""
    return not settings.envoy.eds_dir and any(pool.discovery.any for pool in settings.pools)


def _one_of(file: str | None, config: str | None) -> str:
    """The file, which may be named in either form."""
    if (file is None) == (config is None):
        raise click.UsageError("name one configuration: kvsteer check-config FILE, or -c FILE as for serve")
    return file or config or ""
