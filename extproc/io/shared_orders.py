"""Operators' orders of this gateway and of the others brought together, through io/order_store.py.

What other gateways ordered is taken over, what this one was asked is written, and where Redis lost something, or came
back with an older state, what is known here is written again: orders that hold, and ends of those that stand there
still. An order there that was given later than ours is taken over even then.

A gateway reads and writes in turn, one exchange after another, lest its own write make an earlier read look like an
older state. What is written without having been asked for here is written only where nobody wrote since it was read:
else somebody's undrain in between would be undone.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from extproc.addresses import parse_address
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.order_store import Change, OrderStore, Standing, first_fault
from extproc.io.orders import Order, read_order
from extproc.io.redis_check import AtKey

_log = structlog.get_logger("kvsteer.operator")

#: An order whose replica nobody knows is forgotten this long after its deadline, or after it was given.
_FORGET_EXPIRED = 86_400.0
_FORGET = 30 * 86_400.0
#: Most ended orders remembered of a pool, and most unreadable ones told.
_TOLD = 1000
#: So often an exchange is made before it is left to the next one: each that fails so, another gateway wrote.
_TRIES = 3
#: Stands for "nothing is pending", since None is an order taken away.
_ABSENT: Any = object()
#: What a gateway puts right in a pool's orders without having been asked: address -> order, None to take it away.
Mended = dict[str, Order | None]


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
        self._turn = asyncio.Lock()

    async def sync(self, redis: Any, ahead: float | None = None) -> None:
        """Follow what stands in Redis and write what was ordered here: two round trips, whatever the number of pools.

        Two more where another gateway wrote in between, and again; it waits for an exchange that is under way.

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
        async with self._turn:
            for _ in range(_TRIES):
                if await self._once(redis, ahead, refresh=refresh):
                    return

    async def _once(self, redis: Any, ahead: float, *, refresh: bool) -> bool:
        """Read, take over, write; whether there is nothing that another gateway's write kept from being written."""
        read = await self._store.read(redis, [pool.name for pool in self._pools], refresh=refresh)
        usable = {name: said for name, said in read.items() if isinstance(said, Standing)}
        mended = {
            pool.name: self._take(pool, usable[pool.name], ahead)
            for pool in self._pools
            if pool.name in usable
        }
        self._enforce()
        answers = await self._write(redis, usable, mended, ahead)
        if fault := first_fault(read) or first_fault(answers):
            raise fault
        return all(answers.values())

    def _take(self, pool: Pool, standing: Standing, ahead: float) -> Mended:
        """Take over what stands there; what is to be put right in it."""
        is_lost = standing.is_older or not standing.is_whole
        mended = self._insisted(pool, standing, ahead) if is_lost else {}
        if not standing.is_older:
            self._older.discard(pool.name)
        elif pool.name not in self._older:
            self._older.add(pool.name)
            _log.warning(
                "redis came back with older drains; what is known here is written again",
                pool=pool.name, orders=len(self.orders[pool.name]),
            )  # fmt: skip
        self._follow(pool, standing.orders, ahead, mended)
        return mended

    def _insisted(self, pool: Pool, standing: Standing, ahead: float) -> Mended:
        """Redis lost what it knew, or some of it: what holds and what was ended, but for newer orders."""
        mended: Mended = {}
        for address, order in self.orders[pool.name].items():
            raw = standing.orders.get(address.encode())
            there = None if raw is None else read_order(raw, ahead)
            if there is None or not there.is_newer(order):
                mended[address] = order
        for address, raw in self._ended[pool.name].items():
            if standing.orders.get(address.encode()) == raw:
                mended.setdefault(address, None)
        return {address: order for address, order in mended.items() if not self._is_asked(pool, address)}

    def _is_asked(self, pool: Pool, address: str) -> bool:
        return (pool.name, address) in self.pending

    async def _write(
        self, redis: Any, standing: Mapping[str, Standing], mended: Mapping[str, Mended], ahead: float
    ) -> dict[str, bool | AtKey]:
        """Write what is pending, and mend; what was changed here meanwhile stays pending. What came of each pool."""
        wanted = {name: dict(mended[name]) for name in standing}
        for (name, address), order in self.pending.items():
            if name in wanted:
                wanted[name][address] = order
        said = {
            name: {a: (o, None if o is None else o.written(ahead)) for a, o in orders.items()}
            for name, orders in wanted.items()
        }
        changes = {
            name: Change(
                was, {a: None if new is None else new.raw for a, (_, new) in said[name].items()}, is_mending
            )
            for name, was in standing.items()
            if (is_mending := bool(mended[name]) or was.is_older or not was.is_whole) or said[name]
        }
        answers = await self._store.write(redis, changes) if changes else {}
        for name in (name for name, answer in answers.items() if answer is True):
            for address, (order, written) in said[name].items():
                self._settled(name, address, order, written)
        return answers

    def _settled(self, name: str, address: str, order: Order | None, written: Order | None) -> None:
        if self.pending.get((name, address), _ABSENT) is order:
            del self.pending[name, address]
        if written is not None and self.orders[name].get(address) is order:
            self.orders[name][address] = written

    def _follow(self, pool: Pool, standing: Mapping[bytes, bytes], ahead: float, mended: Mended) -> None:
        """Take over what stands in Redis, but for what was ordered here, and for what is to be mended there."""
        now, held = clock.monotonic(), self.orders[pool.name]
        orders: dict[str, Order] = {}
        for field, raw in standing.items():
            address = field.decode("utf-8", "replace")
            if address not in mended and not self._is_asked(pool, address):
                order = self._understood(pool, address, raw, ahead, mended)
                if order is not None:
                    orders[address] = order
        kept = {a for (name, a), order in self.pending.items() if name == pool.name and order is not None}
        kept |= {a for a, order in mended.items() if order is not None}
        orders |= {a: order for a, order in held.items() if a in kept}
        for address in held.keys() - orders.keys():
            self.ended(pool, address, held[address])
        self.orders[pool.name] = orders
        for address, order in list(orders.items()):
            if not self._knows(pool, address) and order.is_old(now, _FORGET_EXPIRED, _FORGET):
                del orders[address]
                mended[address] = None

    def _understood(self, pool: Pool, address: str, raw: bytes, ahead: float, mended: Mended) -> Order | None:
        """The order under an address; None for what is no order or no address: it drains nobody."""
        held = self.orders[pool.name].get(address)
        if held is not None and held.raw == raw:
            return held
        is_address = _is_address(address)
        order = read_order(raw, ahead) if is_address else None
        if order is None:
            self._tell_unreadable(pool, address, is_address)
            if held is not None:  # somebody wrote over it: it still holds, and is put right
                mended[address] = held
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
