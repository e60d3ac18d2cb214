"""Operators' orders of this gateway and of the others brought together, through io/order_store.py.

What other gateways ordered is taken over, what this one was asked is written, and where Redis lost something, or came
back with an older state, what is known here is written again: orders that hold, and ends of those that stand there
still. An order there that was given later than ours is taken over even then.
"""

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from redis.exceptions import RedisError

from extproc.addresses import parse_address
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.order_store import OrderStore, Standing, first_fault
from extproc.io.orders import Order, read_order

_log = structlog.get_logger("kvsteer.operator")

#: An order whose replica nobody knows is forgotten this long after its deadline, or after it was given.
_FORGET_EXPIRED = 86_400.0
_FORGET = 30 * 86_400.0
#: Most ended orders remembered of a pool, and most unreadable ones told.
_TOLD = 1000
#: Stands for "nothing is pending", since None is an order taken away.
_ABSENT: Any = object()


class SharedOrders:
    """What holds, and what is yet to be written.

    Args:
        pools: whose replicas orders are for.
        prefix: first part of the keys.
        knows: whether a pool has, or had until its removal, a replica of an address.
        enforce: brings the pools in line with the orders.

    Attributes:
        orders: what holds, as far as this gateway knows: pool -> address -> order.
        pending: what was ordered here and is not yet in Redis: (pool, address) -> order, or None for "take it away".
    """

    def __init__(
        self,
        pools: list[Pool],
        prefix: str,
        knows: Callable[[Pool, str], bool],
        enforce: Callable[[], None],
    ) -> None:
        self._pools = pools
        self._store = OrderStore(prefix)
        self._knows = knows
        self._enforce = enforce
        self.orders: dict[str, dict[str, Order]] = {pool.name: {} for pool in pools}
        self.pending: dict[tuple[str, str], Order | None] = {}
        #: Orders that ended, as they stood in Redis, so that an older state does not bring them back.
        self._ended: dict[str, dict[str, bytes]] = {pool.name: {} for pool in pools}
        #: Pools whose orders in Redis are older than what is known here; and what was told as unreadable.
        self._older: set[str] = set()
        self._unreadable: set[tuple[str, str]] = set()
        #: Seconds by which Redis' clock was before our monotonic one when it was last asked; None before that.
        self._ahead: float | None = None

    async def sync(self, redis: Any, ahead: float | None = None) -> None:
        """Follow what stands in Redis and write what was ordered here: two round trips, whatever the number of pools.

        Args:
            redis: client of io/redis_client.py.
            ahead: seconds by which its clock is before our monotonic one, where that was just asked.

        Raises:
            RedisError, OSError, TimeoutError: as the client; AtKey when only one pool's key can't be used.
        """
        self._ahead = await _compare_clocks(redis) if ahead is None else ahead
        await self._exchange(redis, self._ahead, refresh=True)

    async def look(self, redis: Any) -> None:
        """As `sync`, several times a second; raises the same."""
        if self._ahead is None:
            self._ahead = await _compare_clocks(redis)
        await self._exchange(redis, self._ahead, refresh=False)

    async def _exchange(self, redis: Any, ahead: float, *, refresh: bool) -> None:
        read = await self._store.read(redis, [pool.name for pool in self._pools], refresh=refresh)
        usable = {name: said for name, said in read.items() if isinstance(said, Standing)}
        for pool in self._pools:
            if pool.name in usable:
                self._take(pool, usable[pool.name], ahead)
        self._enforce()
        fault = await self._write(redis, usable, ahead)
        if fault := first_fault(read) or fault:
            raise fault

    def _take(self, pool: Pool, standing: Standing, ahead: float) -> None:
        if standing.is_older or not standing.is_whole:
            self._insist(pool, standing, ahead)
        if not standing.is_older:
            self._older.discard(pool.name)
        elif pool.name not in self._older:
            self._older.add(pool.name)
            _log.warning(
                "redis came back with older drains; what is known here is written again",
                pool=pool.name, orders=len(self.orders[pool.name]),
            )  # fmt: skip
        self._follow(pool, standing.orders, ahead)

    def _insist(self, pool: Pool, standing: Standing, ahead: float) -> None:
        """Redis lost what it knew, or some of it: say again what holds and what was ended, but for newer orders."""
        for address, order in self.orders[pool.name].items():
            raw = standing.orders.get(address.encode())
            there = None if raw is None else read_order(raw, ahead)
            if there is None or not there.is_newer(order):
                self.pending.setdefault((pool.name, address), order)
        for address, raw in self._ended[pool.name].items():
            if standing.orders.get(address.encode()) == raw:
                self.pending.setdefault((pool.name, address), None)

    async def _write(self, redis: Any, standing: Mapping[str, Standing], ahead: float) -> RedisError | None:
        """Write what is pending; one that was changed meanwhile stays so. What Redis says against a key."""
        mine: dict[str, dict[str, tuple[Order | None, Order | None]]] = {name: {} for name in standing}
        for (name, address), order in self.pending.items():
            if name in mine:
                mine[name][address] = order, None if order is None else order.written(ahead)
        changes: dict[str, tuple[Standing, dict[str, bytes | None]]] = {
            name: (
                was,
                {address: None if new is None else new.raw for address, (_, new) in mine[name].items()},
            )
            for name, was in standing.items()
            if mine[name] or was.is_older or not was.is_whole
        }
        if not changes:
            return None
        answers = await self._store.write(redis, changes)
        for name in (name for name, said in answers.items() if said is True):
            for address, (order, written) in mine[name].items():
                self._settled(name, address, order, written)
        return first_fault(answers)

    def _settled(self, name: str, address: str, order: Order | None, written: Order | None) -> None:
        if self.pending.get((name, address), _ABSENT) is not order:
            return
        del self.pending[name, address]
        if written is not None and self.orders[name].get(address) is order:
            self.orders[name][address] = written

    def _follow(self, pool: Pool, standing: Mapping[bytes, bytes], ahead: float) -> None:
        """Take over what stands in Redis, but for what was ordered here since it was read."""
        now, held = clock.monotonic(), self.orders[pool.name]
        orders: dict[str, Order] = {}
        for field, raw in standing.items():
            address = field.decode("utf-8", "replace")
            if (pool.name, address) not in self.pending:
                order = self._understood(pool, address, raw, ahead)
                if order is not None:
                    orders[address] = order
        orders |= {a: order for a, order in held.items() if self.pending.get((pool.name, a)) is not None}
        for address in held.keys() - orders.keys():
            self.ended(pool, address, held[address])
        self.orders[pool.name] = orders
        for address, order in list(orders.items()):
            if not self._knows(pool, address) and order.is_old(now, _FORGET_EXPIRED, _FORGET):
                del orders[address]
                self.pending[pool.name, address] = None

    def _understood(self, pool: Pool, address: str, raw: bytes, ahead: float) -> Order | None:
        """The order under an address; None for what is no order or no address: it drains nobody."""
        held = self.orders[pool.name].get(address)
        if held is not None and held.raw == raw:
            return held
        is_address = _is_address(address)
        order = read_order(raw, ahead) if is_address else None
        if order is None:
            self._tell_unreadable(pool, address, is_address)
            if held is not None:  # somebody wrote over it: it still holds, and is put right
                self.pending[pool.name, address] = held
            return held
        return order

    def _tell_unreadable(self, pool: Pool, address: str, is_address: bool) -> None:
        if (pool.name, address) in self._unreadable or len(self._unreadable) >= _TOLD:
            return
        self._unreadable.add((pool.name, address))
        _log.warning(
            "an order in redis can't be read and drains nobody",
            key=self._store.key(pool.name),
            replica=address if is_address else None,
            reason="it is no JSON object" if is_address else "its field is no address",
        )

    def ended(self, pool: Pool, address: str, order: Order) -> None:
        """Remember that an order ended, lest an older state bring it back."""
        ended = self._ended[pool.name]
        ended.pop(address, None)
        if order.raw:
            ended[address] = order.raw
        if len(ended) > _TOLD:
            del ended[next(iter(ended))]


def _is_address(text: str) -> bool:
    """Whether it is an address as kvsteer writes it."""
    try:
        return str(parse_address(text)) == text
    except ValueError:
        return False


async def _compare_clocks(redis: Any) -> float:
    seconds, micros = await redis.time()
    return int(seconds) + int(micros) / 1e6 - clock.monotonic()
