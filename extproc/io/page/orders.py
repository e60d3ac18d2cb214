"""Every order that the admin port takes, behind its token: drains, weights of versions, policies."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

import orjson
from aiohttp import web

from extproc.config import GatewaySettings
from extproc.io import clock
from extproc.io.page.key import OrderKey

_NO_REDIS: Final = (
    "redis.url is empty, so this gateway chooses as its file says: edit pools[].policy there and restart it, or set "
    "redis.url to change policies as it runs"
)


class Desk(Protocol):
    """Takes orders."""

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""


class Orders:
    """Brings the desks together.

    Args:
        settings: of the gateway.
        desks: that take orders beside the one for policies.
        follow: makes this gateway look for new versions of policies at once.

    Raises:
        ConfigError: the token can't be had.
    """

    def __init__(
        self, settings: GatewaySettings, desks: Iterable[Desk], follow: Callable[[], Awaitable[None]]
    ) -> None:
        self._key = OrderKey(settings.admin.token_file, clock.monotonic)
        self.policies: Any = FilePolicies()
        if settings.redis.url:
            from extproc.io.page.policy_desk import (
                PolicyDesk,  # loads Redis' client, which not everybody needs
            )

            self.policies = PolicyDesk(settings, follow)
        self._desks: list[Desk] = [*desks, self.policies]

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [*self._key.routes(), *(r for desk in self._desks for r in self._key.guard(desk.routes()))]

    async def close(self) -> None:
        """Close the connections."""
        await self.policies.close()


class FilePolicies:
    """In the place of the desk for policies where there is no Redis: nothing can be changed, and this says why."""

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            web.get("/policies/{pool}/versions", self._on_list),
            web.post("/policies/{pool}/set", self._on_order),
            web.post("/policies/{pool}/rollback", self._on_order),
        ]

    async def close(self) -> None:
        """Nothing is open."""

    async def _on_list(self, request: web.Request) -> web.Response:
        pool = request.match_info["pool"]
        return _answer({"pool": pool, "versions": [], "known": {}, "why": _NO_REDIS})

    async def _on_order(self, _request: web.Request) -> web.Response:
        return _answer({"error": _NO_REDIS}, 409)


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
