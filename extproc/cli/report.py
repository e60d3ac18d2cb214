"""kvsteer report: beside an engine, tells gateways how it is."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from pydantic import TypeAdapter, ValidationError

from extproc.addresses import parse_address
from extproc.engines import NAMES, Generic, made_of
from extproc.errors import ConfigError
from extproc.quantities import Duration, show_duration
from extproc.settings import LogSettings, RedisSettings

if TYPE_CHECKING:
    from extproc.io.reporter import Reporter


#: What messages of the scraper call a setting -> the option that has its place here.
_OPTION_OF = {
    "metrics.token_file": "--token-file",
    "metrics.ca_file": "--ca-file",
    "metrics": "--url",
}


class _Time(click.ParamType[float]):
    """A duration such as 500ms, in bounds; seconds."""

    name = "time"

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of what was written."""
        try:
            seconds = TypeAdapter(Duration).validate_python(value)
        except ValidationError:
            self.fail(f"{value} is no time; write for example 500ms, 2s or 1m", param, ctx)
        if not self._least <= seconds <= self._most:
            bounds = f"{show_duration(self._least)} to {show_duration(self._most)}"
            self.fail(f"{value} is out of range; it may be from {bounds}", param, ctx)
        return seconds


_FILE = click.Path(exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scraping:
    """How the engine is asked (`ScrapeSettings`)."""

    interval: float
    timeout: float
    token_file: str
    ca_file: str
    token: str = ""


def _replica(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        address = parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not address.is_ip or address.port == 0:
        raise click.BadParameter(f"{text} must be the ip:port by which gateways know the engine")
    return str(address)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    option = click.option
    for decorate in reversed(
        (
            click.argument("replica", callback=_replica),
            option("--url", default="", metavar="URL", help="Metrics of the engine.  [default: http://REPLICA/metrics]"),
            option("--engine", type=click.Choice(["auto", *NAMES, "generic"]), default="auto", show_default=True,
                   help="Whose metric names are read."),
            option("--name", "names", multiple=True, metavar="QUANTITY=METRIC",
                   help="With --engine generic: a quantity's metric; repeatable."),
            option("--interval", type=_Time(0.1, 10), default="500ms", show_default=True,
                   help="Time between two looks at the engine."),
            option("--timeout", type=_Time(0.05, 30), default="1s", show_default=True,
                   help="Longest wait for the engine."),
            option("--token-file", default="", metavar="FILE", help="Bearer token for the engine's metrics."),
            option("--ca-file", default="", metavar="FILE", help="CA certificates for https metrics."),
            option("--gateway", "gateways", multiple=True, metavar="URL",
                   help="Admin port of a gateway to report to; repeatable."),
            option("--gateway-token-file", default="", metavar="FILE", help="Bearer token for the gateways."),
            option("--gateway-ca-file", default="", metavar="FILE", help="CA certificates for https gateways."),
            option("--deadline", type=_Time(0.05, 30), default="1s", show_default=True,
                   help="Longest wait for a gateway or Redis."),
            option("--redis", "redis_url", default="", metavar="URL",
                   help="Report through Redis; env:NAME takes the URL from the environment."),
            option("--redis-username", default="", metavar="NAME", help="User in Redis, instead of one in the URL."),
            option("--redis-password-file", type=_FILE, metavar="FILE", help="Password for Redis."),
            option("--redis-ca-file", type=_FILE, metavar="FILE", help="CA certificates for rediss."),
            option("--redis-prefix", default="kvsteer", show_default=True, help="First part of the keys."),
            option("--pool", default="default", show_default=True, help="Pool meant, in Redis."),
            option("--register/--no-register", default=False, show_default=True,
                   help="Also hold the replica's place in the pool (discovery by Redis)."),
            option("--metrics-url", default="", metavar="URL",
                   help="Registered as where gateways may scrape.  [default: their usual one]"),
            option("--ttl", type=_Time(1, 300), default="10s", show_default=True,
                   help="How long a registration holds without news."),
            option("--drain", type=_Time(0, 3600), default="30s", show_default=True,
                   help="After SIGTERM, longest wait for the engine to run empty."),
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


@click.command()
@_options
def command(**options: Any) -> None:
    """Beside an engine: tell gateways how REPLICA is (ip:port, as gateways know it).

    Reads the engine's metrics as a gateway would, and sends what they say to every --gateway, or through --redis to
    all of them. Pools take it with telemetry: push or both. On SIGTERM, SIGINT or SIGHUP it says that the replica
    drains, and ends when the engine has nothing left to do; a second signal ends it at once.
    """
    if not options["gateways"] and not options["redis_url"]:
        raise click.UsageError("say where to report to: --gateway URL, --redis URL, or both")
    if options["register"] and not options["redis_url"]:
        raise click.UsageError("--register needs --redis URL, where the registration stands")
    try:
        with asyncio.Runner() as runner:
            runner.run(_run(options))
    except ConfigError as error:
        raise click.UsageError(_worded(str(error))) from None


def _worded(fault: str) -> str:
    """A fault of scraping, which names a gateway's setting, with the option of this command."""
    for setting, name in _OPTION_OF.items():
        if fault.startswith(setting):
            return name + fault.removeprefix(setting)
    return fault


async def _run(options: dict[str, Any]) -> None:
    from extproc.io import logs

    logs.configure(LogSettings())
    reporter = _reporter(options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, reporter.stop)
    await reporter.run()


def _reporter(options: dict[str, Any]) -> "Reporter":
    from extproc.core.membership import Endpoint
    from extproc.io.collector import Target
    from extproc.io.discovery.registration import Registration
    from extproc.io.report_ways import RedisWay, Way, gateway_ways
    from extproc.io.reporter import Duty, Reporter

    duty = Duty(
        replica=options["replica"],
        target=Target(url=options["url"] or "/metrics", engine=_engine(options), pool=options["pool"]),
        drain=options["drain"],
        ttl=options["ttl"],
        metrics=options["metrics_url"],
    )
    ways: list[Way] = list(
        gateway_ways(
            options["gateways"],
            options["gateway_token_file"],
            options["gateway_ca_file"],
            options["deadline"],
        )
    )
    registration = None
    if options["redis_url"]:
        redis = _redis_settings(options)
        ways.append(RedisWay(redis, options["pool"]))
        if options["register"]:
            endpoint = Endpoint(address=duty.replica, metrics=duty.metrics)
            registration = Registration(redis, options["pool"], endpoint, ttl=duty.ttl)
    scraping = _Scraping(**{name: options[name] for name in ("interval", "timeout", "token_file", "ca_file")})
    return Reporter(duty, scraping, ways, registration)


def _engine(options: dict[str, Any]) -> str | Generic:
    """Who reads the metrics: the name of an engine, `auto`, or the one made of `--name`."""
    pairs = [pair.partition("=") for pair in options["names"]]
    if options["engine"] != "generic":
        if pairs:
            raise ConfigError(f"--name is for --engine generic; {options['engine']} has names of its own")
        return str(options["engine"])
    if not pairs:
        raise ConfigError("--engine generic needs --name, for example --name running=NAME_OF_THE_METRIC")
    try:
        return made_of({quantity: metric for quantity, _, metric in pairs})
    except ValueError as error:
        raise ConfigError(f"--name: {error}") from None


def _redis_settings(options: dict[str, Any]) -> RedisSettings:
    named = ("url", "prefix", "username", "password_file", "ca_file")
    name = options["redis_url"].removeprefix("env:")
    if name != options["redis_url"]:
        if not os.environ.get(name):
            raise ConfigError(f"--redis: the environment has no {name}; set it")
        options = options | {"redis_url": os.environ[name]}
    given: dict[str, Any] = {name: options[f"redis_{name}"] or "" for name in named}
    try:
        return RedisSettings(**given, deadline=options["deadline"])
    except ValidationError as error:  # its own text would show the URL, which may hold a password
        fault = error.errors(include_url=False, include_input=False)[0]
        place = "-".join(str(part) for part in fault["loc"]).replace("_", "-")
        option = "--redis" if place in ("", "url") else f"--redis-{place}"
        raise ConfigError(f"{option}: {fault['msg'].removeprefix('Value error, ')}") from None
