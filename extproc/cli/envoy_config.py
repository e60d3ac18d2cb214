"""kvsteer envoy-config: Envoy's side of a configuration."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from extproc.cli.inputs import FILE, NotWritable, cannot_write
from extproc.config import GatewaySettings, load
from extproc.envoyconfig import eds_document, eds_path, render, write_eds
from extproc.errors import ConfigError
from extproc.workers import with_workers


@click.command()
@click.option("-c", "--config", "path", type=FILE, required=True, help="The configuration, a YAML file.")
@click.option(
    "-o", "--output", type=FILE, default="", help="Write here instead of printing; with --eds a folder."
)
@click.option("--eds", is_flag=True, help="The EDS files of the pools instead of the bootstrap.")
@click.option(
    "--workers", type=click.IntRange(1, 64), metavar="N", help="As given to serve; by default as in FILE."
)
def command(path: str, output: str, eds: bool, workers: int | None) -> None:
    """Print a complete Envoy bootstrap for a configuration.

    Try it with `envoy --mode validate -c FILE`.
    """
    try:
        settings = with_workers(load(path), workers)
        _eds(settings, output) if eds else _bootstrap(settings, output)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except NotWritable as error:
        click.echo(f"kvsteer: {error}", err=True)
        sys.exit(2)


def _bootstrap(settings: GatewaySettings, output: str) -> None:
    text = render(settings)
    if output:
        with _told(output):
            Path(output).write_text(text, encoding="utf-8")
    else:
        click.echo(text, nl=False)


def _eds(settings: GatewaySettings, output: str) -> None:
    for pool in settings.pools:
        text = eds_document(pool)
        if output:
            with _told(output):
                write_eds(output, pool.name, text)
        else:
            click.echo(f"# {eds_path(settings.envoy.eds_dir, pool.name)}\n---\n{text}", nl=False)


@contextmanager
def _told(output: str) -> Iterator[None]:
    """Raise NotWritable when what is named by --output can't be written; of standard output any command tells."""
    try:
        yield
    except OSError as error:
        raise cannot_write("--output", Path(output), error) from None
