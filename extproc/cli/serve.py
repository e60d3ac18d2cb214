"""kvsteer serve: the gateway."""

import asyncio
import os
import sys

import click

from extproc.cli.inputs import FILE
from extproc.config import GatewaySettings, load
from extproc.errors import ConfigError
from extproc.workers import WORKER_REDIS, with_workers, worker_number, worker_settings


@click.command()
@click.option(
    "-c",
    "--config",
    "path",
    type=FILE,
    required=True,
    help="The configuration, a YAML file (docs/configuration.md).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Run N gateways on this machine; by default as the configuration says (workers).",
)
def command(path: str, workers: int | None) -> None:
    """Run the gateway until SIGTERM or SIGINT, then let open streams end.

    SIGHUP changes nothing, as the configuration is read once; from a terminal it stops the gateway like SIGTERM.

    With more than one worker, each listens on the next port after grpc.address, with an admin port of its own after
    admin.address; one that dies is started again. They share through redis.url, or through a Redis that is started
    for them and ends with them.
    """
    worker = worker_number(os.environ)
    try:
        settings = with_workers(load(path), workers)
        if settings.workers > 1 and worker is None:
            from extproc.cli.workers import run

            sys.exit(run(settings, path))
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if worker is not None:
        settings = worker_settings(settings, worker, os.environ.get(WORKER_REDIS, ""))
    _serve(settings, path, is_worker=worker is not None)


def _serve(settings: GatewaySettings, path: str, *, is_worker: bool) -> None:
    """Be one gateway to its end."""
    from extproc.io.worker_pool import end_with_parent
    from extproc.serving import (
        serve,  # costs half a second of imports; not before the file is known to be good
    )

    try:
        _run(serve(settings, lambda _: end_with_parent()) if is_worker else serve(settings))
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
