"""kvsteer serve: the gateway."""

import asyncio
import sys

import click

from extproc.config import load
from extproc.errors import ConfigError


@click.command()
@click.option(
    "-c", "--config", "path", required=True, help="The configuration, a YAML file (docs/configuration.md)."
)
def command(path: str) -> None:
    """Run the gateway until SIGTERM or SIGINT, then let open streams end.

    SIGHUP changes nothing, as the configuration is read once; from a terminal it stops the gateway like SIGTERM.

    Exit status: 0 after a clean stop, 2 for a faulty configuration, 1 when an address can't be had.
    """
    try:
        settings = load(path)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    from extproc.app import serve  # costs half a second of imports; not before the file is known to be good

    try:
        _run(serve(settings))
    except (
        ConfigError,
        ValueError,
    ) as error:  # what only shows when the parts are built: files, tokens, URLs
        click.echo(f"{path}: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"kvsteer: {error}", err=True)
        sys.exit(1)


def _run(main: "object") -> None:
    factory = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:  # on Windows; the standard loop serves as well, at more CPU a request
        pass
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)  # type: ignore[arg-type]
