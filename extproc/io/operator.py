"""What operators ask of replicas: drains, kept in Redis so that every gateway and every restart honours them.

Key, with a TTL that outlives the longest deadline even when no gateway runs meanwhile (PREFIX from the settings); how
an emptied or older Redis is known is io/order_store.py's business, and ends no drain:

    PREFIX:operator:POOL    hash   address -> JSON {"deadline": seconds of Redis TIME or null, "who", "at": the same}

An order counts here at once, is written to Redis before it is answered, and the other gateways look ten times a
second. Where Redis does not take it, it counts in this gateway only, the answer says so, and it is written as soon as
Redis does. What is no order, or stands under no address, drains nobody. What an order asks for:

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
from extproc.core.lifecycle import ITSELF, QUIESCING
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.orders import Order, patience_of
from extproc.io.roster import FixedRoster, Roster
from extproc.io.shared_orders import SharedOrders

_CAUSE = "operator"
_DISCOVERY = "discovery"
#: State shown for a replica that its drain's deadline removed.
REMOVED = "removed"
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
        self._has_redis = has_redis
        given = rosters or {}
        self._rosters: dict[str, Roster] = {
            pool.name: given.get(pool.name) or FixedRoster(pool, [r.address for r in pool.replicas])
            for pool in pools
        }
        self._shared = SharedOrders(pools, prefix, self._knows, self.enforce)
        #: The same dicts: what holds, pool -> address -> order; and what is not yet in Redis.
        self._orders, self._pending = self._shared.orders, self._shared.pending
        #: See SharedOrders: they bring these in line with Redis.
        self.sync, self.look = self._shared.sync, self._shared.look
        #: Who was removed here by an order: pool -> addresses.
        self._removed: dict[str, set[str]] = {pool.name: set() for pool in pools}
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
            order = self._orders[pool.name].pop(address, None)
            if order is not None and self._has_redis:
                self._shared.ended(pool, address, order)
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
        is_written = not any((pool.name, address) in self._pending for pool in pools)
        return _answer(
            {
                "replica": address,
                "state": self._state(pools[0], address),
                "changed": any(changed),
                "reaches": _reach(self._has_redis, is_written),
                "written": is_written if self._has_redis else None,
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
        order = self._orders[pool.name].pop(address, None)
        known = order is not None
        if order is not None:
            self._shared.ended(pool, address, order)
        self._pending[pool.name, address] = None
        replica = pool.get(address)
        if replica is not None and replica.life.cause == ITSELF:  # its reporter may be gone for good
            known = replica.undrain(_CAUSE, clock.monotonic()) or known
        return known

    def _is_drained(self, pool: Pool, address: str) -> bool:
        """Whether an operator may end it: an order's drain, or one that the replica itself asked for."""
        replica = pool.get(address)
        itself = replica is not None and replica.life.state == QUIESCING and replica.life.cause == ITSELF
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


def _reach(has_redis: bool, is_written: bool) -> str:
    """For whom an order counts, as people read it."""
    if not has_redis:
        return "this gateway only"
    if is_written:
        return "every gateway on this Redis"
    return "this gateway only for now (Redis did not take it; it is written there when Redis does)"


def _answer(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
