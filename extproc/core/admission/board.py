"""What all gateways share: who leased how much of a pool's budget, and how much of each rate is left.

This is the rule in pure Python, for a gateway that is alone and for the simulator; io/budget_store.py does the same
in one Lua call, so that what is leased never adds up to more than there is, whatever gateways ask for.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from extproc.core.admission.shares import Row
from extproc.core.admission.tenants import Tenant

#: Seconds after which a gateway that is not heard is taken for dead: what it leased is free again.
TTL: Final = 3.0
#: Seconds of a rate that stay here at most when nobody draws; gateways keep as much in all.
BURST: Final = 2.5


class Asked(NamedTuple):
    """What a gateway asks for one tenant: its row, whose `hold` is what it is due, and tokens of the rate.

    `rate` below 0 gives tokens back. `level` is what should be left of the rate by what this gateway was last told,
    below 0 where it was told nothing: a store that lost everything goes on from there, and gives no second budget.
    """

    row: Row
    rate: float = 0.0
    level: float = -1.0


class Standing(NamedTuple):
    """The answer.

    Attributes:
        total: of the pool, tokens.
        basis: what the fleet may hold (`Reading.basis`), by which that total was found, tokens.
        holds: leased now, by tenant.
        rates: tokens of the rate just given, by tenant.
        rows: what everybody last said, by gateway and tenant.
        levels: tokens of the rate that are left, by tenant; those without a rate may be missing.
    """

    total: float
    basis: float
    holds: dict[str, float]
    rates: dict[str, float]
    rows: dict[str, dict[str, Row]]
    levels: dict[str, float]


def burst(tenant: Tenant) -> float:
    """Most tokens of a tenant's rate that are here at once."""
    return tenant.per_minute / 60.0 * BURST


class Board:
    """One pool's.

    Args:
        tenants: with their caps.
        total: budget in tokens.
        now: seconds.
        basis: what the KV caches may hold by which the total was found, tokens.
    """

    def __init__(self, tenants: tuple[Tenant, ...], total: float, now: float, basis: float = 0.0) -> None:
        self.total = total
        self.basis = basis
        self._tenants = tenants
        self._rows: dict[str, dict[str, Row]] = {}
        self._seen: dict[str, float] = {}
        self._levels = {tenant.name: burst(tenant) for tenant in tenants}
        self._refilled = now
        self._changed = -math.inf

    def trade(self, gateway: str, asked: Mapping[str, Asked], now: float) -> Standing:
        """Say what is used and wanted, and get what may be spent."""
        self._forget(now)
        self._refill(now)
        self._seen[gateway] = now
        self._rows.pop(gateway, None)
        others = self._leased()
        mine = self._rows[gateway] = {}
        holds: dict[str, float] = {}
        rates: dict[str, float] = {}
        left = self.total - others - sum(ask.row.used for ask in asked.values())
        for tenant in self._tenants:
            row, rate, _ = asked.get(tenant.name, _NOTHING)
            cap = tenant.in_flight - self._held(tenant.name)
            holds[tenant.name] = hold = max(row.used, min(row.hold, row.used + max(left, 0.0), cap))
            left -= hold - row.used
            mine[tenant.name] = row._replace(hold=hold)
            rates[tenant.name] = self._draw(tenant, rate)
        rows = {name: dict(rows) for name, rows in self._rows.items()}
        return Standing(self.total, self.basis, holds, rates, rows, dict(self._levels))

    def propose(self, total: float, basis: float, every: float, now: float) -> bool:
        """Change the total, unless it was changed less than `every` seconds ago."""
        if now - self._changed < every:
            return False
        self.total, self.basis, self._changed = total, basis, now
        return True

    def leave(self, gateway: str) -> None:
        """A gateway stops: what it leased is free."""
        self._rows.pop(gateway, None)
        self._seen.pop(gateway, None)

    def _leased(self) -> float:
        """What others have leased: after the total fell below that, their even part of it, or what they use.

        They give the rest back at their next trade; until then nobody has to go without.
        """
        rows = [row for rows in self._rows.values() for row in rows.values()]
        held, count = sum(row.hold for row in rows), len(self._rows)
        if held <= self.total:
            return held
        return max(sum(row.used for row in rows), self.total * count / (count + 1))

    def _held(self, tenant: str) -> float:
        return sum(rows[tenant].hold for rows in self._rows.values() if tenant in rows)

    def _forget(self, now: float) -> None:
        for gateway in [gateway for gateway, seen in self._seen.items() if now - seen > TTL]:
            self.leave(gateway)

    def _refill(self, now: float) -> None:
        passed = max(now - self._refilled, 0.0)
        self._refilled = max(now, self._refilled)
        for tenant in self._tenants:
            more = tenant.per_minute / 60.0 * passed
            if not math.isinf(tenant.per_minute):
                self._levels[tenant.name] = min(self._levels[tenant.name] + more, burst(tenant))

    def _draw(self, tenant: Tenant, wanted: float) -> float:
        if math.isinf(tenant.per_minute):
            return max(wanted, 0.0)
        level = self._levels[tenant.name]
        given = min(wanted, max(level, 0.0)) if wanted > 0 else 0.0
        self._levels[tenant.name] = min(level - (given if wanted > 0 else wanted), burst(tenant))
        return given


_NOTHING = Asked(Row())
