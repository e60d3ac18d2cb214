"""What this gateway may spend of a pool's budget: leased ahead of need, reserved at the request, settled at its end.

A request reserves its prompt and a bounded estimate of its output (A8). At its end the reservation is free again, and
of the tenant's rate the difference to what it really used is given back or taken: an abandoned stream pays for what
it used. Nothing here asks anybody: what is leased is renewed beside the requests (`asks`, `take`).

While nobody can be asked, the gateway goes on with its fair part, 1/N, of the last known budget and rates, where N
is how many gateways there were. When somebody can again, it keeps to its part until the others are back too, and what
it took of a rate meanwhile it takes out of what is given next: neither makes a second budget.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from extproc.core.admission.board import BURST, TTL, Asked, Standing, burst
from extproc.core.admission.shares import Row, grants
from extproc.core.admission.tenants import Tenant

#: Seconds of spending that a gateway keeps leased of a rate, and of room: several times the time between two trades.
AHEAD: Final = 0.5
#: Seconds without spending after which all but the least of a rate's lease is given back.
IDLE: Final = 2.0
#: Requests that are remembered after they were settled without their usage, as it may be told later.
_GUESSED: Final = 4096
#: Seconds over which spending is averaged.
_SPAN: Final = 2.0

#: Seconds that count as one moment: what a mean forgets meanwhile, half a percent, is not worth a power of e.
_SAME: Final = 0.01

#: All there is, but for what adding up rounds away.
_ALL: Final = 1.0 + 1e-9
#: Seconds of a rate's refill that may not be here yet: two trades of leases.
_TRADES: Final = 0.2

# Why there is no room.
POOL_FULL: Final = "pool_full"
TENANT_SHARE: Final = "tenant_share"
TENANT_IN_FLIGHT: Final = "tenant_in_flight"
TENANT_RATE: Final = "tenant_rate"
#: It never will be: a single request above the tenant's cap.
TENANT_TOO_LARGE: Final = "tenant_too_large"


class Waiting(NamedTuple):
    """What waits of one tenant: tokens in all, tokens of the first, and seconds that one has waited.

    `turns`: tokens of short and long requests that went, and of such as wait, and what is to be gathered for the
    first, as in a row.
    """

    tokens: float = 0.0
    need: float = 0.0
    since: float = 0.0
    turns: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)


class Reserved(NamedTuple):
    """What a request took."""

    tenant: Tenant
    tokens: float


class Account:
    """One tenant's side at this gateway, in tokens.

    Attributes:
        used: reserved and not settled, by so many `flights`.
        hold: most that may be.
        due: what it should be by all gateways' wants; a hold above that shrinks as its requests end.
        allowance: of the tenant's rate; below 0 after answers longer than expected.
        borrowed: of that, what was taken while nobody could be asked.
        level: of the rate, what was left for all when somebody last told; below 0 before.
        admitted, settled: since the start: reserved, and what was really used of that.
    """

    __slots__ = (
        "_at",
        "_missed",
        "_missed_at",
        "_pace",
        "admitted",
        "allowance",
        "borrowed",
        "due",
        "flights",
        "hold",
        "level",
        "settled",
        "spent_at",
        "used",
    )

    def __init__(self, now: float) -> None:
        self.used = self.hold = self.due = self.allowance = 0.0
        self.admitted = self.settled = self.borrowed = 0.0
        self.level = -1.0
        self.flights = 0
        self.spent_at = self._at = now
        self._pace = self._missed = 0.0
        self._missed_at = now

    def spend(self, tokens: float, now: float) -> None:
        """Reserve, of room and rate."""
        if not 0 <= now - self._at < _SAME:
            self._pace, self._at = self.pace(now), now
        self._pace += tokens / _SPAN
        self.spent_at = now
        self.used += tokens
        self.flights += 1
        self.allowance -= tokens
        self.admitted += tokens

    def miss(self, tokens: float, now: float) -> None:
        """A request was refused: who is refused wants all the same."""
        self._missed = self.missed(now) + tokens
        self._missed_at = now

    def missed(self, now: float) -> float:
        """Tokens that were refused in the last seconds."""
        return self._missed * math.exp(min(self._missed_at - now, 0.0) / _SPAN)

    def pace(self, now: float) -> float:
        """Tokens a second that were reserved lately: a mean that forgets within seconds."""
        return self._pace * math.exp(min(self._at - now, 0.0) / _SPAN)


class Budget:
    """One pool's, at one gateway.

    Args:
        me: this gateway, as it is known where leases are kept.
        tenants: all of them.
        total: budget of the pool over all gateways, tokens.
        gateways: how many there are to share it, as far as known; at least 1.
        now: seconds, monotonic.
        caps: of all pools together, which then bound the tenants instead of this one; None where this does.
    """

    def __init__(
        self,
        me: str,
        tenants: tuple[Tenant, ...],
        total: float,
        gateways: int,
        now: float,
        *,
        caps: "Budget | None" = None,
    ) -> None:
        self.me = me
        self.caps = caps
        self.tenants = tenants if caps is None else tuple(map(uncapped, tenants))
        self.total = total
        self.basis = 0.0
        self.gateways = max(gateways, 1)
        self.accounts = {tenant.name: Account(now) for tenant in tenants}
        self.heard: float | None = None
        self._rows: dict[str, dict[str, Row]] = {}
        self._absent: set[str] = set()
        self._absent_until = now
        self._told_at = now
        self._reserved: dict[int, Reserved] = {}
        self._guessed: OrderedDict[int, Reserved] = OrderedDict()  # whose first key is found at once
        self._alone_at = now
        self.alone({}, now)

    def __len__(self) -> int:
        """Requests that reserved and did not settle."""
        return len(self._reserved)

    @property
    def used(self) -> float:
        """Tokens in flight here."""
        return sum(account.used for account in self.accounts.values())

    @property
    def is_alone(self) -> bool:
        """Whether the gateway spends its fair part since nobody could be asked."""
        return self.heard is None

    def bounded(self, tokens: float) -> float:
        """What a request reserves: a single one may take all of the budget, and never more than there is."""
        return min(tokens, self.total)

    def lacks(self, tenant: Tenant, tokens: float) -> str:
        """Why a request can't go now; "" when it can."""
        account, bounds = self.accounts[tenant.name], self.caps is None
        if not bounds and (lack := self._capped(tenant, tokens)):
            return lack
        if bounds and account.allowance < tokens and not math.isinf(tenant.per_minute):
            return TENANT_RATE
        if account.used + tokens <= account.hold * _ALL:
            return ""
        if bounds and tokens > tenant.in_flight - account.used:
            return TENANT_IN_FLIGHT
        return POOL_FULL if self.used + tokens > self.total / self.gateways else TENANT_SHARE

    def rated(self, tenant: Tenant) -> Account:
        """Where a tenant's rate and tokens in flight are bounded: here, or of all pools."""
        return (self.caps or self).accounts[tenant.name]

    def miss(self, tenant: Tenant, tokens: float, now: float) -> None:
        """A request was refused."""
        self.accounts[tenant.name].miss(tokens, now)
        if self.caps is not None:
            self.caps.miss(tenant, tokens, now)

    def _capped(self, tenant: Tenant, tokens: float) -> str:
        """Why the caps of all pools keep a request out; "" when they don't."""
        if self.caps is None or (math.isinf(tenant.per_minute) and math.isinf(tenant.in_flight)):
            return ""
        lack = self.caps.lacks(tenant, tokens)
        return TENANT_IN_FLIGHT if lack and lack != TENANT_RATE else lack

    def has_room(self, tenant: Tenant, tokens: float) -> bool:
        """Whether the pool, and the tenant below its cap, has room over all gateways, by what they said last."""
        own = self.caps or self
        told = sum(row.used for name, rows in self._rows.items() if name != self.me for row in rows.values())
        flying = own.accounts[tenant.name].used + sum(row.used for row in own.elsewhere(tenant))
        room = self.used + told + tokens <= self.total * _ALL
        return room and flying + tokens <= tenant.in_flight and not self.is_alone

    def elsewhere(self, tenant: Tenant) -> list[Row]:
        """What the other gateways said last of a tenant."""
        return [rows.get(tenant.name, _NO_ROW) for name, rows in self._rows.items() if name != self.me]

    def refilled_in(self, tenant: Tenant, tokens: float) -> float:
        """Seconds until a tenant's rate has so many tokens for this gateway, by its refill.

        Gateways that want tokens of it have equal parts of the refill; what is left of it goes to who asks first.
        """
        if self.caps is not None:
            return self.caps.refilled_in(tenant, tokens)
        account = self.accounts[tenant.name]
        sharing = self.gateways if self.is_alone else 1 + sum(row.want > 0 for row in self.elsewhere(tenant))
        lacking = max(tokens - account.allowance - (0.0 if self.is_alone else max(account.level, 0.0)), 0.0)
        return lacking * 60.0 * sharing / tenant.per_minute

    def gathered_in(self, tenant: Tenant, wait: float) -> float:
        """Most tokens of its rate that one request can ever have which waits so many seconds here.

        What stays where all gateways draw, this one's part of what they keep, and the refill meanwhile, but for two
        trades. Infinity without a rate, and while nobody can be asked: that passes.
        """
        if self.caps is not None:
            return self.caps.gathered_in(tenant, wait)
        if math.isinf(tenant.per_minute) or self.is_alone:
            return math.inf
        return tenant.per_minute / 60.0 * (BURST + BURST / self.gateways + max(wait - _TRADES, 0.0))

    def reserve(self, key: int, tenant: Tenant, tokens: float, now: float) -> None:
        """Take what a request may use, whether there is room or not: ask `lacks` first."""
        self.accounts[tenant.name].spend(tokens, now)
        self._reserved[key] = Reserved(tenant, tokens)
        if self.caps is not None:
            self.caps.reserve(key, tenant, tokens, now)

    def settle(self, key: int, actual: float | None) -> Reserved | None:
        """A request is over: give back what it reserved, and settle its rate by what it used, where that is known.

        None for an unknown key: a request settles once.
        """
        reserved = self._reserved.pop(key, None)
        if reserved is None:
            return None
        if self.caps is not None:
            self.caps.settle(key, actual)
        account = self.accounts[reserved.tenant.name]
        account.flights -= 1
        account.used = account.used - reserved.tokens if account.flights else 0.0  # rounding leaves nothing
        if account.hold > account.due:  # others are due what comes free
            account.hold = max(account.due, account.used)
        if actual is None:
            self._guessed[key] = reserved
            if len(self._guessed) > _GUESSED:
                self._guessed.popitem(last=False)
        used = reserved.tokens if actual is None else actual
        account.settled += used
        account.allowance += reserved.tokens - used
        return reserved

    def told(self, key: int, actual: float) -> Reserved | None:
        """What a request used that was settled before that was known; None for any other, or one long ago."""
        reserved = self._guessed.pop(key, None)
        if reserved is not None:
            if self.caps is not None:
                self.caps.told(key, actual)
            account = self.accounts[reserved.tenant.name]
            account.settled += actual - reserved.tokens
            account.allowance += reserved.tokens - actual
        return reserved

    # -- leases ----------------------------------------------------------------------------------------

    def asks(self, waiting: Mapping[str, Waiting], now: float) -> dict[str, Asked]:
        """What to ask for each tenant at the next trade."""
        rows = {tenant.name: self._row(tenant, waiting, now) for tenant in self.tenants}
        if self._absent:
            due = self._own_part(rows)
        else:
            due = grants(self.total, self.tenants, {**self._rows, self.me: rows}, self.me)
        for name, account in self.accounts.items():
            account.due = due[name]
        return {
            tenant.name: Asked(
                rows[tenant.name]._replace(hold=due[tenant.name]),
                self._rate(tenant, waiting, now),
                self._level(tenant, now),
            )
            for tenant in self.tenants
        }

    def take(self, standing: Standing, now: float) -> None:
        """What was leased; the trade was asked for at `now`."""
        if self.heard is None:  # the others, who have not found back yet, spend their part all the same
            self._absent, self._absent_until = set(self._rows), now + TTL
        self._absent = self._absent - set(standing.rows) if now < self._absent_until else set()
        self.total, self.basis, self.heard = standing.total, standing.basis, now
        self._alone_at = self._told_at = now
        self._rows = standing.rows
        self.gateways = max(len(standing.rows) + len(self._absent), 1)
        for name, account in self.accounts.items():
            account.hold = standing.holds.get(name, 0.0)
            given = standing.rates.get(name, 0.0)
            repaid = min(given, account.borrowed)
            account.borrowed -= repaid
            account.allowance += given - repaid
            account.level = standing.levels.get(name, -1.0)

    def alone(self, waiting: Mapping[str, Waiting], now: float) -> None:
        """Nobody can be asked: go on with a fair part of what was last known. Call it at every trade that fails."""
        self.heard = None
        rows = {tenant.name: self._row(tenant, waiting, now) for tenant in self.tenants}
        due = self._own_part(rows)
        passed, self._alone_at = max(now - self._alone_at, 0.0), now
        for tenant in self.tenants:
            account = self.accounts[tenant.name]
            account.hold = account.due = due[tenant.name]
            if not math.isinf(tenant.per_minute):
                rate = tenant.per_minute / 60.0 / self.gateways
                most = max(rate * BURST, account.allowance)
                more = min(rate * min(passed, BURST), most - account.allowance)
                account.allowance += more
                # No more than a store that stood still or was lost has gathered meanwhile.
                account.borrowed = min(account.borrowed + more, rate * BURST)

    def _own_part(self, rows: Mapping[str, Row]) -> dict[str, float]:
        """What is due to this gateway of its fair part of the budget and the hard caps, whatever the others want."""
        fair = [replace(each, in_flight=each.in_flight / self.gateways) for each in self.tenants]
        return grants(self.total / self.gateways, fair, {self.me: rows}, self.me)

    def _level(self, tenant: Tenant, now: float) -> float:
        """What should be left of a tenant's rate by now, if nobody drew since this gateway was told; -1 if never."""
        level = self.accounts[tenant.name].level
        if level < 0 or math.isinf(tenant.per_minute):
            return -1.0
        return min(level + tenant.per_minute / 60.0 * max(now - self._told_at, 0.0), burst(tenant))

    def _row(self, tenant: Tenant, waiting: Mapping[str, Waiting], now: float) -> Row:
        account, queued = self.accounts[tenant.name], waiting.get(tenant.name, _NOBODY)
        want = account.used + queued.tokens + account.pace(now) * AHEAD
        want += account.missed(now)
        return Row(account.used, want, queued.need, queued.since, account.hold, *queued.turns)

    def _rate(self, tenant: Tenant, waiting: Mapping[str, Waiting], now: float) -> float:
        """Tokens of the rate to ask for; below 0 to give back what an idle gateway has."""
        if math.isinf(tenant.per_minute):
            return 0.0
        account, queued = self.accounts[tenant.name], waiting.get(tenant.name, _NOBODY)
        least = self._least(tenant)
        keep = max(least, account.pace(now) * AHEAD, queued.need)
        if now - account.spent_at > IDLE and not queued.need and account.allowance > least:
            given_back = account.allowance - least
            repaid = min(given_back, account.borrowed)
            account.allowance, account.borrowed = least, account.borrowed - repaid
            return repaid - given_back
        return max(keep - account.allowance, 0.0) + account.borrowed

    def _least(self, tenant: Tenant) -> float:
        """Tokens of a rate that a gateway always tries to have, so that a first request need not wait."""
        if math.isinf(tenant.per_minute):
            return 0.0
        return tenant.per_minute / 60.0 * BURST / self.gateways


def uncapped(tenant: Tenant) -> Tenant:
    """The same tenant without its caps."""
    return replace(tenant, in_flight=math.inf, per_minute=math.inf)


_NOBODY: Final = Waiting()
_NO_ROW: Final = Row()
