"""kvsteer policy: what pools choose by, versioned in Redis; changed in running gateways; put back."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from extproc.cli.inputs import FILE, Finite, me
from extproc.cli.policy_texts import (
    Effect,
    gateway_lines,
    in_words,
    no_versions,
    nothing_before,
    say_json,
    table_of,
    tell,
    tell_skipped,
    tell_unchanged,
)
from extproc.cli.terminal import console, waiting
from extproc.config import GatewaySettings, PolicySettings, PoolSettings, ShadowSettings, load
from extproc.core.policies import POLICIES, check_policy, policy_settings
from extproc.errors import ConfigError, KvsteerError
from extproc.io.policy_store import Conflict, NotOurs, VersionStore
from extproc.io.policy_versions import MOST_WHO, MOST_WHY, Chosen, Standing, Version
from extproc.io.redis_check import AtKey, MissingPassword, cause
from extproc.oneline import one_line

#: Seconds between looks at what gateways report.
_LOOK = 0.05
#: Who the version is from that keeps what the configuration said.
_FILE = "configuration"


class Refused(KvsteerError):
    """What was asked can't be done. The command prints it and exits with `status`."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@click.group()
def command() -> None:
    """What a pool chooses by: see, change, put back; in running gateways, within a second.

    Changes are versions in Redis (docs/redis.md), each with who, when and why.
    """


def _policies(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Policies whose name begins so, for the shell."""
    return [name for name in POLICIES if name.startswith(begun)]


def _shared(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")(
        function
    )
    function = click.option("--pool", help="The pool; needed when the configuration has several.")(function)
    return click.option(
        "-c",
        "--config",
        "path",
        type=FILE,
        required=True,
        help="The gateways' configuration, for Redis and pools.",
    )(function)


def _changing(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option(
        "--wait",
        type=Finite(0, 60),
        default=2.0,
        show_default=True,
        help="Seconds in which gateways may report that they use it.",
    )(function)
    function = click.option("--who", help="Who changes it; your user name and host unless given.")(function)
    function = click.option("--why", required=True, help="The reason, for those who read the list later.")(
        function
    )
    return _shared(function)


@command.command("list")
@_shared
def list_(path: str, pool: str | None, as_json: bool) -> None:
    """The versions of a pool's policy, newest first, and which one each gateway uses."""

    async def show(store: VersionStore, settings: PoolSettings) -> None:
        try:
            standing = await store.standing(settings.name)
            versions, skipped = standing.versions, standing.skipped
        except NotOurs as error:
            versions, skipped = [], [str(error)]
        reports, no_reports = await store.reports()
        gateways, skipped = _of_pool(reports, settings.name), skipped + no_reports
        if as_json:
            said = [version.as_dict() for version in versions]
            say_json(pool=settings.name, versions=said, gateways=gateways, skipped=skipped)
            return
        tell_skipped(skipped)
        if versions:
            console().print(table_of(settings.name, versions))
        else:
            click.echo(no_versions(settings.name, settings.policy, gateways))
        for line in gateway_lines(gateways):
            click.echo(line)

    _run(path, pool, show)


@command.command("set")
@click.argument("name", shell_complete=_policies)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@_changing
def set_(name: str, settings: tuple[str, ...], **given: Any) -> None:
    """Choose by policy NAME with these settings; those not given have their defaults. The shadow policy stays."""

    def change(before: Chosen) -> Chosen:
        return Chosen(PolicySettings(name=name, settings=_numbers(settings)), before.shadow)

    _change(change, **given)


@command.command("shadow")
@click.argument("name", shell_complete=_policies)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@_changing
def shadow(name: str, settings: tuple[str, ...], **given: Any) -> None:
    """Let policy NAME decide beside the real one, to compare; `none` ends that. Nothing is routed by it."""

    def change(before: Chosen) -> Chosen:
        named = "" if name == "none" else name
        if settings and not named:
            raise ValueError("none takes no settings")
        beside = ShadowSettings(name=named, settings=_numbers(settings))
        if named and _effective(beside) == _effective(before.policy):
            raise ValueError(
                f"the pool chooses by {in_words(before.policy)} already, and beside itself it would show nothing; "
                "name another policy or other settings"
            )
        return Chosen(before.policy, beside)

    _change(change, **given)


def _effective(policy: PolicySettings | ShadowSettings) -> tuple[str, dict[str, float]]:
    """A policy with all its settings, also those at their defaults. Raises ValueError when there is none such."""
    check_policy(policy.name, policy.settings)
    return policy.name, {**policy_settings(policy.name), **policy.settings}


@command.command("rollback")
@click.option(
    "--to",
    type=click.IntRange(1, 2**52),
    help="Number of the version to put back; the one before, unless given.",
)
@_changing
def rollback(to: int | None, **given: Any) -> None:
    """Put an earlier version back, as a new version. Repeated, it goes back step by step."""

    async def put_back(store: VersionStore, settings: PoolSettings) -> None:
        standing = await _standing(store, settings.name)
        if standing.newest is None:
            raise Refused(nothing_before(settings.name, None))
        number = to or _before(standing, standing.newest)
        if to is None and number < 1:
            raise Refused(nothing_before(settings.name, standing.newest))
        target = next((version for version in standing.versions if version.number == number), None)
        if target is None:
            raise Refused(f"pool {settings.name}: version {number} is not kept; see kvsteer policy list")
        # A version that repeats an older one stands for that one, so that steps back never go forward again.
        origin = target.restores or target.number
        await _record(store, settings, target.chosen, standing, given, restores=origin)

    _run(given["path"], given["pool"], put_back)


def _before(standing: Standing, newest: Version) -> int:
    """Number of the version one step back; what can't be read is passed over."""
    if not standing.is_current:
        return newest.number
    origin = newest.restores or newest.number
    return next((version.number for version in standing.versions if version.number < origin), origin - 1)


def _change(change: Callable[[Chosen], Chosen], **given: Any) -> None:
    """Record what `change` makes of the newest version, or of the configuration when there is none."""

    async def work(store: VersionStore, settings: PoolSettings) -> None:
        standing = await _standing(store, settings.name)
        newest = standing.newest
        before = newest.chosen if newest else Chosen(settings.policy, settings.shadow)
        try:
            chosen = change(before)
        except ValueError as error:
            raise Refused(f"refused, nothing was changed: {_reason(error)}") from None
        if newest is not None and standing.is_current and chosen == before:
            tell_unchanged(settings.name, newest, given["as_json"])
            return
        await _record(store, settings, chosen, standing, given)

    _run(given["path"], given["pool"], work)


async def _record(
    store: VersionStore,
    settings: PoolSettings,
    chosen: Chosen,
    standing: Standing,
    given: dict[str, Any],
    restores: int | None = None,
) -> None:
    """Check and write a version, wait until gateways use it, and say what came of it."""
    try:
        chosen.check()
        who = one_line(me() if given["who"] is None else given["who"], MOST_WHO, "--who")
        why = one_line(given["why"], MOST_WHY, "--why")
    except ValueError as error:
        raise Refused(f"refused, nothing was changed: {_reason(error)}") from None
    entries = [(chosen, who, why)]
    if not standing.number:
        entries.insert(
            0, (Chosen(settings.policy, settings.shadow), _FILE, "as configured before the first change")
        )
    try:
        version = await store.add(
            settings.name, entries, after=standing.number, pointer=standing.pointer, restores=restores
        )
    except Conflict:
        raise Refused(
            f"pool {settings.name}: somebody else changed it just now, and nothing was changed by you; "
            "look at kvsteer policy list, and repeat"
        ) from None
    began = time.monotonic()
    effect = await _effect(store, settings.name, version, given["wait"])
    tell(settings.name, version, effect, time.monotonic() - began, given["as_json"])
    if effect.refused:
        kept = (
            f"{name} can't use it and keeps what it has: {reason}" for name, reason in effect.refused.items()
        )
        raise Refused("\n".join(kept), status=1)


async def _effect(store: VersionStore, pool: str, version: Version, wait: float) -> Effect:
    """What gateways report of a version: as soon as all do or a newer one is there, at the latest after `wait` s."""
    deadline = time.monotonic() + wait
    while True:
        reports, _ = await store.reports()
        effect = _sorted_out(_of_pool(reports, pool), version)
        if not effect.behind or time.monotonic() >= deadline:
            return effect
        newest = await store.newest_number(pool)
        if newest > version.number:
            return effect._replace(superseded=newest)
        await asyncio.sleep(_LOOK)


def _sorted_out(gateways: dict[str, dict[str, Any]], version: Version) -> Effect:
    def is_it(reported: dict[str, Any] | None) -> bool:
        return reported is not None and (reported["version"], reported["when"]) == (
            version.number,
            version.at,
        )

    using = [name for name, reported in gateways.items() if is_it(reported)]
    refused = {
        name: str(reported["refused"]["reason"])
        for name, reported in gateways.items()
        if is_it(reported["refused"])
    }
    behind = [name for name in gateways if name not in refused and name not in using]
    return Effect(len(using), refused, behind)


def _of_pool(reports: dict[str, dict[str, Any]], pool: str) -> dict[str, dict[str, Any]]:
    return {name: pools[pool] for name, pools in sorted(reports.items()) if pool in pools}


async def _standing(store: VersionStore, pool: str) -> Standing:
    """How the pool stands, for a change; what is passed over is said."""
    try:
        standing = await store.standing(pool)
    except NotOurs as error:
        raise Refused(f"refused, nothing was changed: {error}") from None
    tell_skipped(standing.skipped)
    return standing


# -- running ---------------------------------------------------------------------------------------------


def _run(path: str, pool: str | None, work: Callable[[VersionStore, PoolSettings], Awaitable[None]]) -> None:
    try:
        settings = load(path)
        named = _pool(settings, pool)
        _needs_redis(settings, path)
        with waiting("Redis, or gateways that do not yet use it"):
            asyncio.run(_with_store(settings, named, work))
    except (ConfigError, Refused) as error:
        click.echo(str(error), err=True)
        sys.exit(getattr(error, "status", 2))
    except BrokenPipeError:
        raise  # who reads what is printed went away; of Redis' connections none comes here as that
    except (RedisError, OSError, TimeoutError) as error:
        click.echo(
            f"{_failure(error, path)} If a change was on its way, see kvsteer policy list",
            err=True,
        )
        sys.exit(1)


def _failure(error: Exception, path: str) -> str:
    """What Redis said, or that it said nothing, in a sentence or two."""
    if isinstance(error, MissingPassword):
        return f"{cause(error)[:1].upper()}{cause(error)[1:]}; see redis.password_file in {path}."
    if isinstance(error, AuthenticationError | ResponseError | AtKey):
        return f"Redis answers, but {cause(error)} ({type(error).__name__}); see redis in {path}."
    return f"Redis does not answer ({type(error).__name__}); is redis.url of {path} right, and does it run?"


def _needs_redis(settings: GatewaySettings, path: str) -> None:
    if not settings.redis.url:
        raise Refused(
            f"{path}: redis.url is empty, so this gateway, or each of its workers, chooses as its file says; edit "
            "pools[].policy there and restart it, or set redis.url and restart it to change policies as it runs"
        )


async def _with_store(
    settings: GatewaySettings,
    pool: PoolSettings,
    work: Callable[[VersionStore, PoolSettings], Awaitable[None]],
) -> None:
    store = VersionStore(settings.redis)
    try:
        await work(store, pool)
    finally:
        await store.close()


def _pool(settings: GatewaySettings, name: str | None) -> PoolSettings:
    names = ", ".join(pool.name for pool in settings.pools)
    if name is None and len(settings.pools) > 1:
        raise Refused(f"the configuration has several pools; name one with --pool: {names}")
    for pool in settings.pools:
        if name in (None, pool.name):
            return pool
    raise Refused(f"there is no pool {name!r}; the configuration has: {names}")


def _numbers(pairs: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no setting; write KEY=VALUE, for example gain=4")
        if key in found:
            raise ValueError(f"{key!r} is given twice")
        try:
            found[key] = float(value)
        except ValueError:
            raise ValueError(f"{key}: {value!r} is no number") from None
    return found


def _reason(error: ValueError) -> str:
    """The first sentence of a fault, whoever found it."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    fault = details()[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}"
