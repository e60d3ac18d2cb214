"""kvsteer check-config: what is wrong with a configuration, where, and how to mend it."""

import sys

import click

from extproc.cli.named_files import faults
from extproc.config import line_of, load
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError
from extproc.faults import path_of


@click.command()
@click.argument("path", metavar="FILE")
@click.option(
    "--files/--no-files",
    default=True,
    show_default=True,
    help="Open the files it names; without, for a configuration that is used on another machine.",
)
def command(path: str, files: bool) -> None:
    """Say what is wrong with FILE, where, and how to mend it: one line for each fault.

    Also says which of the files it names can't be used (tokens, CA certificates, endpoints, the folder for Envoy),
    and when Envoy could not be configured for it. Exit status: 0 when all is well, else 2.
    """
    try:
        settings = load(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    wrong = [
        f"{path}:{line_of(path, loc)}: {path_of(loc)}: {sentence}"
        for loc, sentence in (faults(settings) if files else ())
    ]
    try:
        bootstrap(settings)
    except ConfigError as error:
        wrong.append(f"{path}: {error}")
    if wrong:
        click.echo("\n".join(wrong), err=True)
        sys.exit(2)
    pools = ", ".join(f"{pool.name} ({len(pool.replicas)} replicas)" for pool in settings.pools)
    click.echo(f"{path}: good; pools: {pools}")
