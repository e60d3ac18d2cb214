"""What operators ask of replicas: drains, kept in Redis so that every gateway and every restart honours them.

Key, with a TTL that outlives the longest deadline even when no gateway runs meanwhile (PREFIX from the settings); its
field `*` says that it was not lost, so that an emptied Redis ends no drain:

    PREFIX:operator:POOL    hash   address -> JSON {"deadline": seconds of Redis TIME or null, "who", "at": the same}

An order counts here at once, is written to Redis before it is answered, and the other gateways look ten times a
second. Without Redis it counts in this gateway only, and the answer says so. What an order asks for:

    standing, deadline to come   the replica drains, with that deadline; a changed one is taken over
    deadline passed              the replica is removed; it is shown as removed, and joins no more
    taken away (undrain)         it serves again; one that was removed joins again, and warms up
    removed, and then gone from discovery too: the order is forgotten, and what comes back there is a new replica
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from extproc.addresses import parse_address
from extproc.core.lifecycle import QUIESCING
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.orders import Order, patience_of, read_order
from extproc.io.roster import FixedRoster, Roster

#: Seconds an unheld key lives: the longest deadline is a week, and a fleet may be off for some weeks.
_TTL = 30 * 86_400
#: An order whose replica nobody knows is forgotten this long after its deadline, or after it was given.
_FORGET_EXPIRED = 86_400.0
_FORGET = 30 * 86_400.0
_CAUSE = "operator"
_DISCOVERY = "discovery"
#: Who caused a drain that the replica's own reporter asked for (io/intake.py).
_ITSELF = "replica"
#: State shown for a replica that its drain's deadline removed.
REMOVED = "removed"
#: Field that is there as long as Redis has not lost the hash: an absent order then means "undrained".
_MARK = b"*"
#: Most known addresses that one answer names.
_NAMED = 50


async def _nothing() -> None:
    """No Redis, nothing to write."""


class OperatorDesk:
    """Takes orders on the admin port, and follows those that other gateways took.

    Args:
        pools: whose replicas can be asked for.
        prefix: first part of the keys.
        has_redis: whether orders reach other gateways.
        rosters: pool name -> who can take a replica out for good; pools without one keep what they have now.
    """

    def __init__(
        self,
        pools: list[Pool],
        prefix: str,
        has_redis: bool,
        rosters: Mapping[str, Roster] | None = None,
    ) -> None:
        self._pools = pools
        self._prefix = prefix
        self._has_redis = has_redis
        given = rosters or {}
        self._rosters: dict[str, Roster] = {
            pool.name: given.get(pool.name) or FixedRoster(pool, [r.address for r in pool.replicas])
            for pool in pools
        }
        #: What holds, as far as this gateway knows: pool -> address -> order.
        self._orders: dict[str, dict[str, Order]] = {pool.name: {} for pool in pools}
        #: Who was removed here by an order: pool -> addresses.
        self._removed: dict[str, set[str]] = {pool.name: set() for pool in pools}
        #: Orders taken here and not yet in Redis: (pool, address) -> order, or None for "take it away".
        self._pending: dict[tuple[str, str], Order | None] = {}
        #: Seconds by which Redis' clock was before our monotonic one when it was last asked; None before that.
        self._ahead: float | None = None
        #: Writes what is pending and follows what stands in Redis, at once; never raises.
        self.push: Callable[[], Awaitable[None]] = _nothing

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [
            web.post("/replicas/{address}/drain", self._on_drain),
            web.post("/replicas/{address}/undrain", self._on_undrain),
        ]

    def removed(self) -> list[dict[str, Any]]:
        """Replicas that a deadline removed and that would still belong to their pools."""
        now = clock.monotonic()
        return [
            {"pool": pool.name, "replica": address, "state": REMOVED, "state_cause": "deadline",
             "state_since": round(now - when, 3)}
            for pool in self._pools
            for address, when in sorted(self._rosters[pool.name].dropped.items())
        ]  # fmt: skip

    def gone(self, pool: Pool, address: str) -> None:
        """A drain's deadline has just removed a replica from a pool."""
        roster = self._rosters[pool.name]
        if address not in roster.dropped:  # dropping tells those who follow the set, and they come back here
            roster.drop(address)
        if address in roster.dropped:
            self._removed[pool.name].add(address)

    # -- making it so ----------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Bring every pool in line with the orders; called a few times a second, and when replicas changed."""
        now = clock.monotonic()
        for pool in self._pools:
            self._forget_departed(pool)
            for address, order in list(self._orders[pool.name].items()):
                self._obey(pool, address, order, now)
            self._release(pool, now)

    def _obey(self, pool: Pool, address: str, order: Order, now: float) -> None:
        replica = pool.get(address)
        if order.is_due(now):
            self.gone(pool, address)
        elif replica is not None:
            if replica.life.state != QUIESCING:
                replica.drain(_CAUSE, now, order.due)
            replica.life.deadline = order.due
        elif address in self._rosters[pool.name].dropped:  # its order was renewed before it was undrained
            self._restore(pool, address)

    def _release(self, pool: Pool, now: float) -> None:
        """End what no order asks for any more."""
        orders = self._orders[pool.name]
        for replica in pool.replicas:
            life = replica.life
            if life.state != QUIESCING or replica.address in orders:
                continue
            if life.cause == _CAUSE:
                replica.undrain(_CAUSE, now)
                if self._rosters[pool.name].terminating(replica.address):
                    replica.drain(_DISCOVERY, now)
            else:  # discovery or the replica itself asked for it; only the order's deadline is over
                life.deadline = None
        for address in self._removed[pool.name] - orders.keys():
            self._restore(pool, address)

    def _restore(self, pool: Pool, address: str) -> None:
        self._removed[pool.name].discard(address)
        self._rosters[pool.name].restore(address)

    def _forget_departed(self, pool: Pool) -> None:
        """Who was removed and is gone from discovery too needs no order any more."""
        for address in self._removed[pool.name] - self._rosters[pool.name].dropped.keys():
            self._removed[pool.name].discard(address)
            if self._orders[pool.name].pop(address, None) is not None and self._has_redis:
                self._pending[pool.name, address] = None

    # -- Redis -----------------------------------------------------------------------------------------

    async def sync(self, redis: Any) -> None:
        """Write what was ordered here, then follow what stands in Redis. Raises what the client raises."""
        ahead = await self._compare_clocks(redis)
        for pool in self._pools:
            await self._sync_pool(redis, pool, ahead)
        self.enforce()

    async def look(self, redis: Any) -> None:
        """Follow what other gateways were asked, and write what this one was; several times a second."""
        if self._pending or self._ahead is None:
            await self.sync(redis)
            return
        for pool in self._pools:
            standing = await redis.hgetall(f"{self._prefix}:operator:{pool.name}")
            if _MARK in standing and not self._pending:  # else the next beat sees to it
                self._follow(pool, standing, self._ahead)
        self.enforce()

    async def _compare_clocks(self, redis: Any) -> float:
        seconds, micros = await redis.time()
        self._ahead = int(seconds) + int(micros) / 1e6 - clock.monotonic()
        return self._ahead

    async def _sync_pool(self, redis: Any, pool: Pool, ahead: float) -> None:
        key = f"{self._prefix}:operator:{pool.name}"
        if not await redis.hexists(key, _MARK):  # emptied, or the first order of all: say again what holds
            for address, order in self._orders[pool.name].items():
                self._pending.setdefault((pool.name, address), order)
        for (name, address), pending in list(self._pending.items()):
            if name == pool.name:
                await self._put(redis, key, pool, address, pending, ahead)
        await redis.hset(key, _MARK, b"{}")
        await redis.expire(key, _TTL)
        self._follow(pool, await redis.hgetall(key), ahead)

    async def _put(
        self, redis: Any, key: str, pool: Pool, address: str, order: Order | None, ahead: float
    ) -> None:
        """Write a pending order, or take it away; one that was changed meanwhile stays pending."""
        written = order.written(ahead) if order is not None else None
        await (redis.hset(key, address, written.raw) if written is not None else redis.hdel(key, address))
        if self._pending.get((pool.name, address)) is order:
            del self._pending[pool.name, address]
            if written is not None and self._orders[pool.name].get(address) is order:
                self._orders[pool.name][address] = written

    def _follow(self, pool: Pool, standing: Mapping[bytes, bytes], ahead: float) -> None:
        """Take over what stands in Redis, but for what was ordered here since it was read."""
        now, held = clock.monotonic(), self._orders[pool.name]
        orders: dict[str, Order] = {}
        for field, raw in standing.items():
            address = field.decode("utf-8", "replace")
            if field != _MARK and (pool.name, address) not in self._pending:
                order = held.get(address)
                orders[address] = order if order and order.raw == raw else read_order(raw, ahead)
        orders |= {a: order for a, order in held.items() if self._pending.get((pool.name, a)) is not None}
        self._orders[pool.name] = orders
        for address, order in list(orders.items()):
            if not self._knows(pool, address) and order.is_old(now, _FORGET_EXPIRED, _FORGET):
                del orders[address]
                self._pending[pool.name, address] = None

    def _knows(self, pool: Pool, address: str) -> bool:
        return pool.get(address) is not None or address in self._rosters[pool.name].dropped

    # -- the admin port --------------------------------------------------------------------------------

    async def _on_drain(self, request: web.Request) -> web.Response:
        try:
            patience = patience_of(request.query.get("deadline", ""))
        except ValueError as error:
            return _answer({"error": str(error)}, 400)
        order = Order.given(patience, f"uid {os.getuid()}", clock.monotonic())
        return await self._order(request, lambda pool, address: self._drain(pool, address, order))

    async def _on_undrain(self, request: web.Request) -> web.Response:
        await self.push()  # another gateway may have been asked for the drain a moment ago
        return await self._order(request, self._undrain)

    async def _order(self, request: web.Request, take: Callable[[Pool, str], bool]) -> web.Response:
        if "Origin" in request.headers:  # browsers send it with every such call from another page; we do not
            return _answer({"error": "orders are not taken from web pages; use kvsteer drain"}, 403)
        address = _canonical(request.match_info["address"])
        pools = [pool for pool in self._pools if self._knows(pool, address)]
        if not pools:
            return _answer({"error": self._unknown(address)}, 404)
        undrain = request.path.endswith("/undrain")
        if undrain and not any(self._is_drained(pool, address) for pool in pools):
            return _answer({"error": self._not_drained(pools[0], address)}, 409)
        changed = [take(pool, address) for pool in pools]
        self.enforce()
        if not self._has_redis:
            self._pending.clear()
        await self.push()
        return _answer(
            {
                "replica": address,
                "state": self._state(pools[0], address),
                "changed": any(changed),
                "reaches": "every gateway on this Redis" if self._has_redis else "this gateway only",
            }
        )

    def _drain(self, pool: Pool, address: str, order: Order) -> bool:
        if (
            address in self._rosters[pool.name].dropped
        ):  # it is out already, and stays so until it is undrained
            return False
        known = address in self._orders[pool.name]
        self._orders[pool.name][address] = order
        self._pending[pool.name, address] = order
        return not known

    def _undrain(self, pool: Pool, address: str) -> bool:
        known = self._orders[pool.name].pop(address, None) is not None
        self._pending[pool.name, address] = None
        replica = pool.get(address)
        if replica is not None and replica.life.cause == _ITSELF:  # its reporter may be gone for good
            known = replica.undrain(_CAUSE, clock.monotonic()) or known
        return known

    def _is_drained(self, pool: Pool, address: str) -> bool:
        """Whether an operator may end it: an order's drain, or one that the replica itself asked for."""
        replica = pool.get(address)
        itself = replica is not None and replica.life.state == QUIESCING and replica.life.cause == _ITSELF
        return itself or address in self._orders[pool.name]

    def _state(self, pool: Pool, address: str) -> str:
        replica = pool.get(address)
        return REMOVED if replica is None else replica.life.state

    def _not_drained(self, pool: Pool, address: str) -> str:
        replica = pool.get(address)
        state = self._state(pool, address)
        if replica is not None and state == QUIESCING:
            return (
                f"{address} is not drained by an operator: it is quiescing because of {replica.life.cause}, which "
                "alone can take that back; nothing was changed"
            )
        return f"{address} is not drained, it is {state}; nothing was changed. kvsteer replicas shows every state"

    def _unknown(self, address: str) -> str:
        known = sorted(
            {r.address for pool in self._pools for r in pool.replicas}
            | {address for roster in self._rosters.values() for address in roster.dropped}
        )
        more = f", and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        named = ", ".join(known[:_NAMED]) or "none at this moment"
        return f"no replica {address[:100]!r}; there are: {named}{more}"


def _canonical(address: str) -> str:
    try:
        return str(parse_address(address))
    except ValueError:
        return address


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
