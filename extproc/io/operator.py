"""What operators ask of replicas: drains, kept in Redis so that every gateway and every restart honours them.

Key, with a TTL of a day past the last gateway's beat (PREFIX from the settings); its field `*` says that it was not
lost, so that an emptied Redis ends no drain:

    PREFIX:operator:POOL    hash   address -> JSON {"deadline": epoch seconds or null, "who", "at": epoch seconds}

A drain asked for here counts at once, in Redis with the next beat, and in the other gateways with theirs. Without
Redis it counts in this gateway only, and the answer says so.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from extproc.core.fleet import Replica
from extproc.core.lifecycle import QUIESCING
from extproc.core.pool import Pool
from extproc.io import clock

_TTL = 86_400
#: Longest deadline of a drain, seconds: a week.
_MOST = 7 * 86_400.0
_CAUSE = "operator"
#: Field that is there as long as Redis has not lost the hash: an absent order then means "undrained".
_MARK = b"*"


class OperatorDesk:
    """Takes orders on the admin port, and follows those that other gateways took.

    Args:
        pools: whose replicas can be asked for.
        prefix: first part of the keys.
        has_redis: whether orders reach other gateways.
    """

    def __init__(self, pools: list[Pool], prefix: str, has_redis: bool) -> None:
        self._pools = pools
        self._prefix = prefix
        self._has_redis = has_redis
        #: Orders taken here and not yet in Redis: (pool, address) -> JSON, or None for "take it away".
        self._pending: dict[tuple[str, str], bytes | None] = {}

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            web.post("/replicas/{address}/drain", self._on_drain),
            web.post("/replicas/{address}/undrain", self._on_undrain),
        ]

    async def sync(self, redis: Any) -> None:
        """Write what was ordered here, then follow what stands in Redis. Raises what the client raises."""
        for pool in self._pools:
            await self._sync_pool(redis, pool)

    async def _sync_pool(self, redis: Any, pool: Pool) -> None:
        key = self._key(pool.name)
        standing = await redis.hgetall(key)
        if (
            _MARK not in standing
        ):  # Redis was emptied, or this is the first order of all: say again what holds
            self._assert(pool)
        for (name, address), value in list(self._pending.items()):
            if name == pool.name:
                await (redis.hset(key, address, value) if value is not None else redis.hdel(key, address))
                if self._pending.get((name, address)) is value:
                    del self._pending[name, address]
        await redis.hset(key, _MARK, b"{}")
        await redis.expire(key, _TTL)
        self._follow(pool, await redis.hgetall(key))

    def _assert(self, pool: Pool) -> None:
        now = clock.monotonic()
        for replica in pool.replicas:
            life = replica.life
            if life.state == QUIESCING and life.cause == _CAUSE:
                until = None if life.deadline is None else clock.wall() + life.deadline - now
                self._pending.setdefault((pool.name, replica.address), _order_of(until))

    def _key(self, pool: str) -> str:
        return f"{self._prefix}:operator:{pool}"

    def _follow(self, pool: Pool, orders: dict[bytes, bytes]) -> None:
        now = clock.monotonic()
        for replica in pool.replicas:
            if (pool.name, replica.address) in self._pending:
                continue  # ordered here since the read; Redis learns of it with the next beat
            order = orders.get(replica.address.encode())
            if order is not None and replica.life.state != QUIESCING:
                replica.drain(_CAUSE, now, _deadline(order, now))
            elif order is None and replica.life.state == QUIESCING and replica.life.cause == _CAUSE:
                replica.undrain(_CAUSE, now)

    async def _on_drain(self, request: web.Request) -> web.Response:
        try:
            patience = _patience(request.query.get("deadline", ""))
        except ValueError as error:
            return _answer({"error": str(error)}, 400)

        def order(pool: Pool, replica: Replica) -> bool:
            now = clock.monotonic()
            until = None if patience is None else clock.wall() + patience
            self._pending[pool.name, replica.address] = _order_of(until)
            return replica.drain(_CAUSE, now, None if patience is None else now + patience)

        return self._order(request, order)

    async def _on_undrain(self, request: web.Request) -> web.Response:
        def order(pool: Pool, replica: Replica) -> bool:
            self._pending[pool.name, replica.address] = None
            return replica.undrain(_CAUSE, clock.monotonic())

        return self._order(request, order)

    def _order(self, request: web.Request, order: Callable[[Pool, Replica], bool]) -> web.Response:
        if "Origin" in request.headers:  # browsers send it with every such call from another page; we do not
            return _answer({"error": "orders are not taken from web pages; use kvsteer drain"}, 403)
        address = request.match_info["address"]
        found = [(pool, replica) for pool in self._pools if (replica := pool.get(address))]
        if not found:
            known = sorted(replica.address for pool in self._pools for replica in pool.replicas)
            return _answer({"error": f"no replica {address!r}; there are: {', '.join(known[:50])}"}, 404)
        changed = [order(pool, replica) for pool, replica in found]
        if not self._has_redis:
            self._pending.clear()
        replica = found[0][1]
        return _answer(
            {
                "replica": address,
                "state": replica.life.state,
                "changed": any(changed),
                "reaches": "every gateway on this Redis" if self._has_redis else "this gateway only",
            }
        )


def _order_of(until: float | None) -> bytes:
    return orjson.dumps({"deadline": until, "who": f"uid {os.getuid()}", "at": clock.wall()})


def _patience(text: str) -> float | None:
    """Seconds out of the query; None for no deadline. Raises ValueError with a sentence."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds <= _MOST:
        raise ValueError(f"deadline must be seconds from 1 to {_MOST:.0f}, as in ?deadline=600")
    return seconds


def _deadline(order: bytes, now: float) -> float | None:
    """The order's deadline on our clock; an order that can't be read has none."""
    try:
        until = orjson.loads(order)["deadline"]
        if type(until) not in (int, float) or not math.isfinite(until):
            return None
        return now + max(0.0, float(until) - clock.wall())
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
