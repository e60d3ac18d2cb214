"""What this gateway shares and believes, on its admin port at /state; `kvsteer state` shows and compares it."""

from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from extproc import __version__
from extproc.core.pool import Pool
from extproc.io.beliefs import ratios_of


class StatePage:
    """Answers GET /state.

    Args:
        gateway_id: who this is.
        pools: what it believes of them is shown.
        streams: exchanges open now.
        shared: how the shared state is ("off", "ok", "degraded") and why.
        redis: where Redis is, without user and password; "" for none.
        leases: those this gateway asks for, as `Leases.shown`.
        journal: what it hears of others, as `Sharing.shown`; None without a journal.
    """

    def __init__(
        self,
        gateway_id: str,
        pools: list[Pool],
        *,
        streams: Callable[[], int],
        shared: Callable[[], tuple[str, str]],
        redis: str = "",
        leases: Callable[[], list[dict[str, Any]]] = list,
        journal: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._id = gateway_id
        self._pools = pools
        self._streams = streams
        self._shared = shared
        self._redis = redis
        self._leases = leases
        self._journal = journal

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [web.get("/state", self._on_state)]

    def shown(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        shared, why = self._shared()
        return {
            "gateway": self._id,
            "version": __version__,
            "streams": self._streams(),
            "shared": shared,
            "shared_why": why or None,
            "redis": self._redis or None,
            "leases": self._leases(),
            "journal": None if self._journal is None else self._journal(),
            "pools": [_pool(pool) for pool in self._pools],
        }

    async def _on_state(self, _request: web.Request) -> web.Response:
        body = orjson.dumps(self.shown(), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        return web.Response(body=body + b"\n", content_type="application/json")


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "pool": pool.name,
        "policy_version": pool.policy_version,
        "tokens_per_byte": ratios_of(pool),
        "replicas": [
            {
                "replica": replica.address,
                "incarnation": replica.incarnation,
                "state": replica.life.state,
                "entries": pool.index.count(replica.slot),
                "requests": replica.books.requests,
                "tokens": replica.books.tokens,
            }
            for replica in pool.replicas
        ],
    }
