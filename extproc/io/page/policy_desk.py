"""Versions of pools' policies on the admin port: shown, changed and put back, as `kvsteer policy` does."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import structlog
from aiohttp import web
from redis.exceptions import RedisError

from extproc.config import GatewaySettings, PolicySettings, PoolSettings, ShadowSettings
from extproc.core.policies import POLICIES, policy_settings
from extproc.io.policy_store import Conflict, NotOurs, VersionStore
from extproc.io.policy_versions import MOST_WHY, Chosen, Standing, Version
from extproc.io.redis_check import AtKey, cause
from extproc.oneline import one_line

_log = structlog.get_logger("kvsteer.policies")

#: Most settings of one change.
_MOST_SETTINGS = 32

#: A pool's standing and what holds now -> what is to hold, and the version that it restores.
Change = Callable[[Standing, Chosen], tuple[Chosen, int | None]]


class PolicyDesk:
    """Takes orders on the admin port.

    Args:
        settings: pools and Redis.
        follow: makes this gateway look for news at once.
    """

    def __init__(self, settings: GatewaySettings, follow: Callable[[], Awaitable[None]]) -> None:
        self._pools = {pool.name: pool for pool in settings.pools}
        self._follow = follow
        self._who = f"live page of {settings.gateway_id or 'a gateway'}"
        self._store = VersionStore(settings.redis)

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            web.get("/policies/{pool}/versions", self._on_list),
            web.post("/policies/{pool}/set", self._on_set),
            web.post("/policies/{pool}/rollback", self._on_rollback),
        ]

    async def _on_list(self, request: web.Request) -> web.Response:
        pool = self._pools.get(request.match_info["pool"])
        if pool is None:
            return self._unknown()
        known = {name: policy_settings(name) for name in sorted(POLICIES)}
        found: dict[str, Any] = {"pool": pool.name, "versions": [], "known": known, "why": None}
        try:
            found["versions"] = await self._versions(pool.name)
        except _Untaken as error:
            found["why"] = str(error)
        return _answer(found)

    async def _versions(self, pool: str) -> list[dict[str, Any]]:
        try:
            return [version.as_dict() for version in await self._store.history(pool)]
        except NotOurs as error:
            raise _Untaken(str(error)) from None
        except (RedisError, OSError, TimeoutError, AtKey) as error:
            raise _Untaken(f"Redis does not say: {cause(error)}") from None

    async def _on_set(self, request: web.Request) -> web.Response:
        def change(_standing: Standing, now: Chosen) -> tuple[Chosen, None]:
            return _changed(now, request.query), None

        return await self._ordered(request, change)

    async def _on_rollback(self, request: web.Request) -> web.Response:
        def change(standing: Standing, _now: Chosen) -> tuple[Chosen, int]:
            version = _wanted(standing, request.query.get("to", ""))
            return version.chosen, version.restores or version.number

        return await self._ordered(request, change)

    async def _ordered(self, request: web.Request, change: Change) -> web.Response:
        pool = self._pools.get(request.match_info["pool"])
        if pool is None:
            return self._unknown()
        try:
            version = await self._record(
                pool, change, one_line(request.query.get("why", ""), MOST_WHY, "why")
            )
        except Conflict:
            return _answer({"error": "somebody else changed it just now; nothing was changed by you"}, 409)
        except (ValueError, NotOurs) as error:
            return _answer({"error": f"nothing was changed: {_first(error)}"}, 400)
        except (RedisError, OSError, TimeoutError, AtKey) as error:
            said = f"Redis did not take it: {cause(error)}; look at the versions before trying again"
            return _answer({"error": said}, 503)
        await self._follow()
        _log.info("policy changed on the live page", pool=pool.name, version=version.number, why=version.why)
        return _answer({**version.as_dict(), "pool": pool.name, "reaches": "every gateway on this Redis"})

    async def _record(self, pool: PoolSettings, change: Change, why: str) -> Version:
        """Write what `change` makes of the pool's standing. Raises as `VersionStore.add`, and ValueError."""
        standing = await self._store.standing(pool.name)
        file = Chosen(pool.policy, pool.shadow)
        chosen, restores = change(standing, standing.newest.chosen if standing.newest else file)
        chosen.check()
        entries = [(chosen, self._who, why)]
        if not standing.number:
            entries.insert(0, (file, "configuration", "as configured before the first change"))
        return await self._store.add(
            pool.name, entries, after=standing.number, pointer=standing.pointer, restores=restores
        )

    def _unknown(self) -> web.Response:
        return _answer({"error": f"no such pool; there are: {', '.join(self._pools)}"}, 404)


class _Untaken(Exception):
    """Versions can't be had; says why."""


def _changed(now: Chosen, query: Mapping[str, str]) -> Chosen:
    """What a query asks for. Raises ValueError."""
    name, settings = query.get("name", ""), _numbers(query.get("settings", ""))
    if query.get("as") == "shadow":
        return Chosen(now.policy, ShadowSettings(name="" if name == "none" else name, settings=settings))
    return Chosen(PolicySettings(name=name, settings=settings), now.shadow)


def _wanted(standing: Standing, number: str) -> Version:
    """The version of that number. Raises ValueError when it is not kept."""
    for version in standing.versions:
        if number == str(version.number):
            return version
    raise ValueError("there is no such version any more")


def _numbers(text: str) -> dict[str, float]:
    pairs = text.split()
    if len(pairs) > _MOST_SETTINGS:
        raise ValueError(f"more than {_MOST_SETTINGS} settings")
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"{pair[:60]!r} is no setting; write KEY=VALUE, for example gain=4")
    return found


def _first(error: Exception) -> str:
    """A fault in one sentence, whoever found it."""
    details = getattr(error, "errors", None)
    return str(error) if details is None else str(details()[0]["msg"])


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body),
        status=status,
        content_type="application/json",
        headers={"cache-control": "no-store"},
    )
