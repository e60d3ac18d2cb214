"""kvsteer check-config: what is wrong with a configuration, where, and how to mend it."""

import sys

import click

from extproc.config import load
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError


@click.command()
@click.argument("path", metavar="FILE")
def command(path: str) -> None:
    """Say what is wrong with FILE, where, and how to mend it: one line for each fault.

    Also says when Envoy could not be configured for it. Exit status: 0 when all is well, else 2.
    """
    try:
        settings = load(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    try:
        bootstrap(settings)
    except ConfigError as error:
        click.echo(f"{path}: {error}", err=True)
        sys.exit(2)
    pools = ", ".join(f"{pool.name} ({len(pool.replicas)} replicas)" for pool in settings.pools)
    click.echo(f"{path}: good; pools: {pools}")
