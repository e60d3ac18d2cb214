"""Who waits at this gateway, in which order, and for how long.

Order: priority class first, which improves by one for every `age` seconds waited, up to the best class that waits, so
that nobody starves; then the
tenant that was served least for its part, by virtual token counters (VTC, Sheng et al., OSDI 2024): admitted tokens
over the tenant's nominal part; a tenant that comes back is lifted to the least of those that wait, so that nobody
saves up turns. Within a tenant long and short requests take turns the same way, by the share reserved for long ones,
of what all gateways let go (`heard`): a single one has long ones only now and then, and would keep little for them.
When it is a long one's turn and there is no room for it, the tenant's room is left to gather: short ones don't pass.

Bounded in requests, tokens, bytes, and seconds. A client that leaves frees its place at once.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from extproc.core.admission.budget import POOL_FULL, TENANT_RATE, TENANT_SHARE, Waiting
from extproc.core.admission.pace import Mean, Speed
from extproc.core.admission.shares import Row, Rows
from extproc.core.admission.tenants import CLASSES, Tenant

# Why a request can't wait.
QUEUE_FULL: Final = "queue_full"
TENANT_QUEUE_FULL: Final = "tenant_queue_full"
DEADLINE: Final = "deadline"
#: Why it stopped waiting without being served.
WAITED: Final = "waited_too_long"
#: Lacks of those whose waiting shows how fast the pool serves; others wait for what is their tenant's own.
_POOLS: Final = ("", POOL_FULL, TENANT_SHARE)


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueSettings:
    """Bounds of one gateway's queue for a pool. `wait` and `age` in seconds, `size` in bytes of bodies.

    `long`: tokens from which a request is a long one; `long_share`: share 0..1 of a tenant's turns kept for those.
    """

    requests: int = 1000
    tokens: float = 50e6
    size: int = 256 * 2**20
    wait: float = 10.0
    age: float = 5.0
    long: float = 16_000.0
    long_share: float = 0.25


@dataclass(slots=True, frozen=True, kw_only=True)
class Ticket:
    """One that waits.

    `until`: when it is answered with a refusal, seconds; `size`: bytes Envoy holds for it; `lack`: why there was no
    room for it when it came.
    """

    key: int
    tenant: Tenant
    tokens: float
    klass: int
    arrived: float
    until: float
    size: int = 0
    lack: str = ""


class _Line:
    """One tenant's tickets: by class, and short or long, in the order they came; with its counters."""

    __slots__ = (
        "backlog",
        "counter",
        "elsewhere",
        "far",
        "fleet",
        "lanes",
        "part",
        "speed",
        "tokens",
        "turns",
        "waiting",
        "went",
    )

    def __init__(self, part: float, now: float) -> None:
        self.part = part
        self.counter = 0.0
        self.turns = [0.0, 0.0]  # tokens admitted by all gateways over their share: short, long
        self.went = [0.0, 0.0]  # tokens admitted here
        self.elsewhere = [False, False]  # whether such wait at another gateway
        self.far = [0.0, 0.0]  # tokens that wait at other gateways: short, long
        self.fleet = Mean(now)  # of all gateways
        self.tokens = 0.0
        self.waiting = [0.0, 0.0]  # tokens that wait: short, long
        self.lanes: list[list[dict[int, Ticket]]] = [[{}, {}] for _ in range(CLASSES)]
        self.backlog = 0  # that wait for more than the tenant's rate
        self.speed = Speed(now)

    def __len__(self) -> int:
        return sum(len(lane) for pair in self.lanes for lane in pair)

    def best(self) -> int:
        """The best class of those that wait, without what waiting improved; CLASSES for nobody."""
        return next((klass for klass, pair in enumerate(self.lanes) if pair[0] or pair[1]), CLASSES)

    def head(self, age: float, best: int, now: float) -> tuple[int, Ticket] | None:
        """Its next, and that one's class, improved by waiting up to class `best`.

        Short and long ones of a class take turns; of two classes that came to be one, who came first goes.
        """
        heads = []
        for klass, pair in enumerate(self.lanes):
            order = (0, 1) if self.turns[0] <= self.turns[1] else (1, 0)
            lane = next((pair[i] for i in order if pair[i]), None)
            if lane is not None:
                ticket = next(iter(lane.values()))
                heads.append(
                    (max(klass - int((now - ticket.arrived) / age), best), ticket.arrived, klass, ticket)
                )
        if not heads:
            return None
        effective, _, _, ticket = min(heads, key=lambda head: head[:3])
        return effective, ticket


class Queue:
    """One pool's, at one gateway.

    Args:
        tenants: all of them; their nominal parts are their guarantees, and by weight what is not guaranteed.
        now: seconds, monotonic.
    """

    def __init__(self, settings: QueueSettings, tenants: tuple[Tenant, ...], now: float) -> None:
        self.settings = settings
        free = max(1.0 - sum(tenant.share for tenant in tenants), 0.0)
        weights = sum(tenant.weight for tenant in tenants)
        parts = {tenant.name: tenant.share + free * tenant.weight / weights for tenant in tenants}
        self._lines = {name: _Line(max(part, 1e-6), now) for name, part in parts.items()}
        self._tickets: dict[int, Ticket] = {}
        self._shares = 1.0 - settings.long_share, settings.long_share  #: of a tenant's turns: short, long
        self._others: Rows = {}
        self.gathers: int | None = None  #: whose turn it was when `waiting` was called last
        self.tokens = 0.0
        self.size = 0
        self._backlog = 0  # that wait for the pool's room
        self._now = now  # of the last call that told
        self.speed = Speed(now)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._tickets)

    @property
    def is_crowded(self) -> bool:
        """Whether somebody waits for the pool's room."""
        return self._backlog > 0

    def waits(self, tenant: Tenant) -> bool:
        """Whether a request of this tenant waits, so that a new one may not pass."""
        return self._lines[tenant.name].tokens > 0

    def waiting_of(self, tenant: Tenant) -> int:
        """Requests of this tenant that wait."""
        return len(self._lines[tenant.name])

    def lack(self, tenant: Tenant) -> str:
        """What the first of a tenant's that wait lacked when it came; "" where none wait."""
        lanes = (lane for pair in self._lines[tenant.name].lanes for lane in pair)
        return next((next(iter(lane.values())).lack for lane in lanes if lane), "")

    def ahead(self, tenant: Tenant) -> float:
        """Tokens of this tenant that wait."""
        return self._lines[tenant.name].tokens

    def predicted(self, tenant: Tenant, tokens: float, now: float) -> float:
        """Seconds until a request that comes now would go: what is before it, at the speed its kind goes.

        That is the tenant's speed while it waits, and its part of what all get while somebody does, if that is more.
        Infinity where neither is known, as nobody had to wait for room.
        """
        line = self._lines[tenant.name]
        speed = max(line.speed.at(now) or 0.0, line.part * (self.speed.at(now) or 0.0))
        is_long = tokens >= self.settings.long
        waiting, kind = line.tokens, line.waiting[is_long]
        if is_long and self._others:  # room gathers for one long one of all gateways after the other
            if speed > 0 or any(line.far):  # else nobody waits anywhere, and what goes is what is wanted
                speed = max(speed, line.fleet.at(now))
            waiting, kind = waiting + sum(line.far), kind + line.far[True]
        return (min(waiting, kind / self._shares[is_long]) + tokens) / speed if speed > 0 else math.inf

    def refusal(self, ticket: Ticket, predicted: float, now: float) -> str:
        """Why a request can't wait; "" when it may. `predicted`: seconds it would, infinity where that is unknown."""
        limits, line = self.settings, self._lines[ticket.tenant.name]
        if len(line) >= ticket.tenant.waiting:
            return TENANT_QUEUE_FULL
        if (
            len(self._tickets) >= limits.requests
            or self.tokens + ticket.tokens > limits.tokens
            or self.size + ticket.size > limits.size
        ):
            return QUEUE_FULL
        return DEADLINE if ticket.until - now < predicted < math.inf else ""

    def put(self, ticket: Ticket) -> None:
        """Let a request wait; ask `refusal` first."""
        line = self._lines[ticket.tenant.name]
        if not line.tokens:  # lift: the time it did not want anything is no credit
            others = [other.counter for other in self._lines.values() if other.tokens]
            line.counter = max(line.counter, min(others, default=line.counter))
        is_long = ticket.tokens >= self.settings.long
        if not any(pair[is_long] for pair in line.lanes) and not line.elsewhere[is_long]:
            line.turns[is_long] = max(line.turns) if any(line.turns) else 0.0
        line.lanes[ticket.klass][is_long][ticket.key] = ticket
        line.tokens += ticket.tokens
        line.waiting[is_long] += ticket.tokens
        self._tickets[ticket.key] = ticket
        self.tokens += ticket.tokens
        self.size += ticket.size
        self._now = max(self._now, ticket.arrived)
        self._waits(ticket, 1)

    def next(self, fits: Callable[[Tenant, float], bool], now: float) -> Ticket | None:
        """Whose turn it is, of those tenants whose next has room; it leaves the queue. None when nobody's."""
        self._now = max(self._now, now)
        best = min((line.best() for line in self._lines.values()), default=0)
        turns = [
            (head[0], line.counter, head[1])
            for line in self._lines.values()
            if line.tokens and (head := line.head(self.settings.age, best, now)) is not None
        ]
        for _, _, ticket in sorted(turns, key=lambda turn: turn[:2]):
            if fits(ticket.tenant, ticket.tokens):
                self.went(
                    ticket.tenant, ticket.tokens, now
                )  # first, as it counts in the speed of those that wait
                self.remove(ticket.key)
                return ticket
        return None

    def went(self, tenant: Tenant, tokens: float, now: float) -> None:
        """A request of a tenant was admitted, out of the queue or past it: it counts in the tenant's turns."""
        line = self._lines[tenant.name]
        line.counter += tokens / line.part
        is_long = tokens >= self.settings.long
        line.went[is_long] += tokens
        line.turns[is_long] += tokens / self._shares[is_long]
        line.speed.add(tokens, now)
        line.fleet.add(tokens, now)
        self.speed.add(tokens, now)

    def heard(self, others: Rows, now: float) -> None:
        """What the other gateways let go since the last call counts in the turns here too.

        Args:
            others: what each last said; of one that is new only what it lets go from now on counts.
        """
        for name, line in self._lines.items():
            line.elsewhere, line.far = [False, False], [0.0, 0.0]
            for gateway, rows in others.items():
                row = rows.get(name, _NO_ROW)
                line.elsewhere[0] |= row.shorts > 0
                line.elsewhere[1] |= row.longs > 0
                before = self._others.get(gateway, {}).get(name, row)
                line.far[0] += row.shorts
                line.far[1] += row.longs
                short, long = max(row.short - before.short, 0.0), max(row.long - before.long, 0.0)
                line.turns[0] += short / self._shares[False]
                line.turns[1] += long / self._shares[True]
                line.fleet.add(short + long, now)
        self._others = others

    def corrected(self, tenant: Tenant, tokens: float) -> None:
        """A request used so many tokens more than was expected (fewer below 0)."""
        line = self._lines[tenant.name]
        line.counter = max(line.counter + tokens / line.part, 0.0)

    def remove(self, key: int) -> Ticket | None:
        """A request leaves: its place is free. None for one that does not wait."""
        ticket = self._tickets.pop(key, None)
        if ticket is None:
            return None
        line = self._lines[ticket.tenant.name]
        is_long = ticket.tokens >= self.settings.long
        del line.lanes[ticket.klass][is_long][key]
        line.waiting[is_long] = line.waiting[is_long] - ticket.tokens if len(line) else 0.0
        self.size -= ticket.size
        line.tokens = line.tokens - ticket.tokens if len(line) else 0.0  # rounding leaves nothing
        self.tokens = self.tokens - ticket.tokens if self._tickets else 0.0
        self._waits(ticket, -1)
        return ticket

    def _waits(self, ticket: Ticket, more: int) -> None:
        """One more waits, or one less: the speeds count only while somebody waits for what they measure."""
        line = self._lines[ticket.tenant.name]
        if ticket.lack != TENANT_RATE:
            line.backlog += more
            line.speed.waits(line.backlog > 0, self._now)
        if ticket.lack in _POOLS:
            self._backlog += more
            self.speed.waits(self._backlog > 0, self._now)

    def all(self) -> list[Ticket]:
        """Everybody, in the order they came."""
        return list(self._tickets.values())

    def expired(self, now: float) -> list[Ticket]:
        """Those whose time is over; they leave the queue."""
        self._now = max(self._now, now)
        over = [ticket for ticket in self._tickets.values() if ticket.until <= now]
        for ticket in over:
            self.remove(ticket.key)
        return over

    def part(self, tenant: Tenant) -> float:
        """A tenant's nominal part, 0..1."""
        return self._lines[tenant.name].part

    def waiting(self, now: float) -> Mapping[str, Waiting]:
        """What waits of each tenant that had or has something here; room is to be gathered for whose turn it is."""
        best = min((line.best() for line in self._lines.values()), default=CLASSES)
        found: dict[str, Waiting] = {}
        turns: list[tuple[int, float, int, str, Ticket]] = []
        for name, line in self._lines.items():
            waits = (*line.went, *line.waiting, 0.0)
            head = line.head(self.settings.age, best, now) if line.tokens else None
            if head is not None:
                found[name] = Waiting(line.tokens, head[1].tokens, now - head[1].arrived, waits)
                turns.append((head[0], line.counter, len(turns), name, head[1]))
            elif any(line.went):
                found[name] = Waiting(turns=waits)
        self.gathers = None
        if turns:
            _, _, _, name, ticket = min(turns)
            self.gathers = ticket.key
            found[name] = found[name]._replace(turns=(*found[name].turns[:4], ticket.tokens))
        return found


_NO_ROW: Final = Row()
