"""`kvsteer engine`: one or more emulated vLLM servers in one process."""

import asyncio
import dataclasses
import errno
import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import click

from extproc.addresses import HostPort
from extproc.errors import ConfigError
from extproc.sim.emulated import EmulatedEngine, EngineSettings
from extproc.sim.emulated.faults import BadControl, Control


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """One option for every field of EngineSettings, with its help and default."""
    for entry in reversed(dataclasses.fields(EngineSettings)):
        function = _option(entry)(function)
    return function


def _option(entry: "dataclasses.Field[Any]") -> Callable[[Callable[..., None]], Callable[..., None]]:
    flag, text = entry.name.replace("_", "-"), entry.metadata["help"]
    if isinstance(entry.default, tuple):
        return click.option(
            f"--{flag.removesuffix('s')}", entry.name, multiple=True, help=f"{text}; repeatable"
        )
    if isinstance(entry.default, bool):
        return click.option(f"--{flag}/--no-{flag}", default=entry.default, show_default=True, help=text)
    kind = type(entry.default)
    return click.option(f"--{flag}", type=kind, default=entry.default, show_default=True, help=text)


def _read_fault(_: click.Context, __: click.Parameter, text: str | None) -> Control | None:
    try:
        return Control.read(text) if text is not None else None
    except BadControl as error:
        raise click.BadParameter(f"{error}; it takes what POST /_control takes") from None


@click.command(name="engine", context_settings={"max_content_width": 110})
@click.option("--count", type=click.IntRange(1, 256), default=1, show_default=True, help="engines to run")
@click.option("--fault", callback=_read_fault, help="faults from the start: JSON as for POST /_control")
@_options
def command(count: int, fault: Control | None, **values: Any) -> None:
    """Run emulated vLLM servers: real HTTP, queueing and prefix caching, no model.

    Prints a line {"listening": "HOST:PORT", "name": NAME} for each engine once all of them listen. With
    --count the name and the port count up (r1, r2, ...; a port of 0 stays 0).
    """
    try:
        each = [EngineSettings(**_numbered(values, number)) for number in range(count)]
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(each, fault))


def _numbered(values: dict[str, Any], number: int) -> dict[str, Any]:
    """The values of engine `number`, counted from 0."""
    if not number:
        return values
    port = values["port"] + number if values["port"] else 0
    return {**values, "port": port, "name": _count_up(values["name"], number)}


def _count_up(name: str, number: int) -> str:
    match = re.search(r"\d+$", name)
    if match is None:
        return f"{name}{number + 1}"
    return f"{name[: match.start()]}{int(match[0]) + number}"


async def _serve(each: list[EngineSettings], fault: Control | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        engines = [await _listening(stack, one, fault) for one in each]
        for engine in engines:
            click.echo(json.dumps({"listening": engine.address, "name": engine.settings.name}))
        await stop.wait()


async def _listening(
    stack: AsyncExitStack, settings: EngineSettings, fault: Control | None
) -> EmulatedEngine:
    try:
        return await stack.enter_async_context(EmulatedEngine(settings, fault))
    except OSError as error:
        raise click.ClickException(_no_listening(HostPort(settings.host, settings.port), error)) from None


def _no_listening(address: HostPort, error: OSError) -> str:
    """Why an address can't be had, and what to do."""
    what = f"can't listen on {address}"
    if error.errno == errno.EADDRINUSE:
        return f"{what}: another process listens there; end it, or choose another --port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"{what}: ports below 1024 may need rights that you lack; choose another --port"
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"{what}: {reason}; --host must be an address of this machine, such as 127.0.0.1 or 0.0.0.0"
