"""Which replicas to take away, on the admin port at /scale-in; `kvsteer drain --pick` shows it."""

from typing import Any

import orjson
from aiohttp import web

from extproc.core.pool import Pool
from extproc.core.scale_in import Loss, pick
from extproc.io import clock

#: Most replicas that may be asked for: each takes a look at all, while the event loop does nothing else.
_MOST = 50


class ScaleInPage:
    """Answers GET /scale-in?count=N&pool=NAME; changes nothing."""

    def __init__(self, pools: list[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [web.get("/scale-in", self._on_asked)]

    async def _on_asked(self, request: web.Request) -> web.Response:
        text, name = request.query.get("count", "1"), request.query.get("pool", "")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST):
            return _answer({"error": f"count must be a whole number, 1 to {_MOST}"}, 400)
        if not name and len(self._pools) > 1:
            return _answer({"error": f"say of which pool; there are: {', '.join(self._pools)}"}, 400)
        pool = self._pools.get(name or next(iter(self._pools)))
        if pool is None:
            return _answer({"error": f"no pool {name[:100]!r}; there are: {', '.join(self._pools)}"}, 404)
        now = clock.monotonic()
        found = pick(pool, int(text), now)
        return _answer(
            {
                "pool": pool.name,
                "asked": int(text),
                "roles": pool.handover is not None,
                "picked": [_row(loss) for loss in found],
            }
        )


def _row(loss: Loss) -> dict[str, Any]:
    return {
        "replica": loss.replica.address,
        "seconds": round(loss.seconds, 3),
        "cache_seconds": round(loss.cache, 3),
        "stream_seconds": round(loss.streams, 3),
        "adapter_seconds": round(loss.adapters, 3),
        "alone_share": round(loss.alone, 3),
        "requests_in_flight": loss.requests,
        "tokens_in_flight": loss.tokens,
        "why": loss.why,
    }


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
