"""kvsteer check-config: what is wrong with a configuration, where, and how to mend it."""

import sys

import click

from extproc.cli.named_files import faults
from extproc.cli.terminal import counted
from extproc.config import GatewaySettings, line_of, load
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError
from extproc.faults import path_of


@click.command()
@click.argument("file", metavar="FILE", required=False)
@click.option("-c", "--config", help="FILE, in the form that serve takes it.")
@click.option(
    "--files/--no-files",
    default=True,
    show_default=True,
    help="Open the files it names; without, for a configuration that is used on another machine.",
)
def command(file: str | None, config: str | None, files: bool) -> None:
    """Say what is wrong with FILE, where, and how to mend it: one line for each fault.

    Also says which of the files it names can't be used (tokens, CA certificates, endpoints, the folder for Envoy),
    and when Envoy could not be configured for it. Exit status: 0 when all is well, else 2.
    """
    path = _one_of(file, config)
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
        if not _is_for_a_mesh(settings):
            bootstrap(settings)
    except ConfigError as error:
        wrong.append(f"{path}: {error}")
    if wrong:
        click.echo("\n".join(wrong), err=True)
        sys.exit(2)
    pools = ", ".join(f"{pool.name} ({counted(len(pool.replicas), 'replica')})" for pool in settings.pools)
    click.echo(f"{path}: good; pools: {pools}")


def _is_for_a_mesh(settings: GatewaySettings) -> bool:
    """Whether no Envoy can be configured by these settings, and none has to be: a mesh finds the pods by itself."""
    return not settings.envoy.eds_dir and any(pool.discovery.any for pool in settings.pools)


def _one_of(file: str | None, config: str | None) -> str:
    """The file, which may be named in either form."""
    if (file is None) == (config is None):
        raise click.UsageError("name one configuration: kvsteer check-config FILE, or -c FILE as for serve")
    return file or config or ""
