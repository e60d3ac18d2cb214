"""Keeps a gateway's admission supplied: leases traded, loads read, budgets adapted, those who wait let go.

With Redis leases are traded there, ahead of need; without it the gateway is alone and owns every budget.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog
from redis.exceptions import RedisError

from extproc.config import GatewaySettings
from extproc.core.admission.adapt import FLEET, AdaptSettings, Change, Controller
from extproc.core.admission.board import Board
from extproc.core.admission.budget import Budget
from extproc.core.admission.caps import BOUNDLESS, NAME, Caps, caps_of
from extproc.core.admission.desk import Desk
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.identity import Source
from extproc.core.admission.meter import Meter, Reading
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.scaling import Trend
from extproc.core.admission.tenants import OTHERS, Degrade, Tenant, Tenants
from extproc.core.pool import Pool
from extproc.core.replies import wait_for
from extproc.core.steering import Steering
from extproc.settings.admission import AdmissionSettings, DegradeSettings, PromiseSettings

if TYPE_CHECKING:
    from extproc.io.budget_store import BudgetStore

_log = structlog.get_logger("kvsteer")

#: The budget of a pool of which nothing is known yet, tokens: nobody is refused for want of knowledge.
_UNKNOWN: Final = 1e12
#: Seconds between two looks at the loads.
LOOK: Final = 1.0


class PoolSide:
    """One pool's parts.

    Attributes:
        reading: of the last look; None before the first.
        changes: how often the budget changed here, by cause.
    """

    def __init__(self, pool: Pool, gate: Gate, settings: AdmissionSettings, now: float) -> None:
        budget = settings.budget
        self.pool = pool
        self.gate = gate
        self.meter = Meter(pool, budget.replica_tokens)
        self.controller = Controller(
            AdaptSettings(every=budget.every, tighten=budget.tighten, relax=budget.relax, cap=budget.cap), now
        )
        self.trend = Trend()
        self.reading: Reading | None = None
        self.proposed: Change | None = None
        self.changes: dict[str, int] = {}
        self._refused = 0.0

    def look(self, now: float) -> None:
        """Read the load, and propose another budget where it is time for one."""
        gate = self.gate
        reading = self.reading = self.meter.look(now)
        refused, self._refused = gate.counts.rejected_tokens - self._refused, gate.counts.rejected_tokens
        self.trend.look(reading.runtime + gate.queue.tokens + refused, now)
        if not reading.replicas:
            return
        if gate.budget.total >= _UNKNOWN:
            total = self.controller.start(reading)
            self.proposed = Change(now, gate.budget.total, total, FLEET, reading.pressure)
        else:
            budget = gate.budget
            self.proposed = self.controller.look(budget.total, budget.basis, reading, gate.limited, now)
        gate.limited = False

    def made(self, change: Change) -> None:
        """A proposal holds now."""
        self.controller.made(change)
        self.changes[change.cause] = self.changes.get(change.cause, 0) + 1
        _log.info(
            "admission budget",
            pool=self.pool.name,
            cause=change.cause,
            before=round(change.before),
            after=round(change.after),
            pressure=round(change.pressure, 3),
        )


class Admission:
    """All of a gateway's.

    Args:
        settings: of the gateway; admission is on.
        steering: gets the desk.
        gateway_id: as configured; a word of its own is added, so that two starts are told apart.
        clock: seconds, monotonic.
    """

    def __init__(
        self, settings: GatewaySettings, steering: Steering, gateway_id: str, clock: Callable[[], float]
    ) -> None:
        self.settings = settings.admission
        self._clock = clock
        self._me = f"{gateway_id}#{secrets.token_hex(3)}"
        now = clock()
        self._tenants = tenants_of(self.settings)
        shared = bool(settings.redis.url)
        gateways = self.settings.budget.gateways if shared else 1
        several = len(steering.pools) > 1
        caps = caps_of(self._me, self._tenants.all, gateways, now) if several else None
        self.sides = [self._side(pool, gateways, now, caps) for pool in steering.pools]
        self._caps = Caps(caps, [side.gate for side in self.sides]) if caps is not None else None
        self._caps_board = Board(self._tenants.all, BOUNDLESS, now)
        self._store = self._make_store(settings) if shared else None
        self._boards = {} if shared else {side.pool.name: self._board(side, now) for side in self.sides}
        self.trade_errors = 0
        self.desk = Desk(
            self._tenants,
            {side.pool.name: side.gate for side in self.sides},
            steering.router,
            _source(self.settings),
            wait_for(settings.longest_wait + settings.envoy.message_timeout),
        )
        self.desk.on_due = self._soon
        self._pumps = False
        steering.desk = self.desk

    @property
    def interval(self) -> float:
        """Seconds between two trades."""
        seconds: float = self.settings.budget.interval
        return seconds

    def look(self) -> None:
        """Read every pool's load; call it every `LOOK` seconds."""
        for side in self.sides:
            side.look(self._clock())

    async def tick(self) -> None:
        """Renew what is leased; call it every `interval` seconds."""
        if self._caps is not None:  # first, as rates begin full only where this is a gateway's first trade
            await self._trade_caps(self._caps)
        for side in self.sides:
            await self._trade(side)
        self.desk.pump(self._clock())

    def let_go(self) -> None:
        """The gateway stops: nobody waits here any more."""
        self.desk.close(self._clock())

    def _soon(self) -> None:
        """Tokens came free: let go who waits for them, once all that happens now has happened."""
        if not self._pumps:
            self._pumps = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumps = False
        now = self._clock()
        for side in self.sides:
            if len(side.gate.queue):
                side.gate.renew(None, now)
        self.desk.pump(now)

    async def close(self) -> None:
        """Free what is leased."""
        if self._store is None:
            return
        for name in [NAME, *(side.pool.name for side in self.sides)]:
            try:
                await self._store.leave(name)
            except RedisError:
                break  # it is taken for dead in a moment
        await self._store.close()

    async def _trade_caps(self, caps: Caps) -> None:
        now = self._clock()
        if self._store is None:
            caps.renew(self._caps_board, None, now)
            return
        total = (BOUNDLESS, 0.0)
        try:
            standing, _ = await self._store.trade(NAME, self._tenants.all, caps.asks(now), total=total)
        except RedisError:
            self.trade_errors += 1
            caps.alone(self._clock())
            return
        caps.budget.take(standing, self._clock())

    async def _trade(self, side: PoolSide) -> None:
        now, gate, change = self._clock(), side.gate, self._proposal(side)
        every = side.controller.least(change) if change is not None else 0.0
        basis = side.reading.basis if side.reading is not None else 0.0
        if self._store is None:
            board = self._boards[side.pool.name]
            if change is not None and board.propose(change.after, basis, 0.0, now):
                side.made(change)
            gate.take(board.trade(self._me, gate.asks(now), now), now)
            side.proposed = None
            return
        try:
            standing, changed = await self._store.trade(
                side.pool.name,
                gate.budget.tenants,
                gate.asks(now),
                total=(gate.budget.total, basis),
                proposed=None if change is None else (change.after, basis),
                every=every,
            )
        except RedisError:
            self.trade_errors += 1
            gate.alone(self._clock())
            return
        side.proposed = None
        gate.take(standing, self._clock())
        if changed and change is not None:
            side.made(change)

    def _proposal(self, side: PoolSide) -> Change | None:
        """What to propose; nothing before it is known what others found, or where that is found already."""
        change, budget = side.proposed, side.gate.budget
        if change is None or (self._store is not None and budget.heard is None):
            return None
        return None if change.before >= _UNKNOWN > budget.total else change

    def _side(self, pool: Pool, gateways: int, now: float, caps: Budget | None) -> PoolSide:
        budget = Budget(self._me, self._tenants.all, _UNKNOWN, gateways, now, caps=caps)
        dry = self.settings.mode == "dry_run"
        gate = Gate(
            pool.name,
            self._tenants,
            queue_of(self.settings),
            budget,
            now,
            dry=dry,
            holds=self.settings.queue.wait > 0,
        )
        return PoolSide(pool, gate, self.settings, now)

    def _board(self, side: PoolSide, now: float) -> Board:
        board, gate = Board(side.gate.budget.tenants, _UNKNOWN, now), side.gate

        def renew(ask: Ask | None, at: float) -> None:
            if self._caps is not None:
                self._caps.renew(self._caps_board, ask, at)
            gate.take(board.trade(self._me, gate.asks(at, ask), at), at)

        gate.renew = renew
        return board

    def _make_store(self, settings: GatewaySettings) -> "BudgetStore":
        from extproc.io.budget_store import BudgetStore

        return BudgetStore(settings.redis, self._me)


def tenants_of(settings: AdmissionSettings) -> Tenants:
    """Who is who, by the settings."""
    known = {identity: _tenant(tenant.name, tenant) for tenant in settings.tenants for identity in tenant.ids}
    return Tenants(known, _tenant(OTHERS, settings.others))


def queue_of(settings: AdmissionSettings) -> QueueSettings:
    """The queue's bounds, by the settings."""
    queue = settings.queue
    return QueueSettings(
        requests=queue.requests, tokens=queue.tokens, size=queue.size, wait=queue.wait, age=queue.age,
        long=queue.long, long_share=queue.long_share,
    )  # fmt: skip


def _tenant(name: str, promise: PromiseSettings) -> Tenant:
    return Tenant(
        name=name,
        share=promise.share,
        weight=promise.weight,
        in_flight=promise.tokens_in_flight or float("inf"),
        per_minute=promise.tokens_per_minute or float("inf"),
        waiting=promise.waiting,
        best=promise.priority,
        body=promise.body,
        degrade=_degrades(promise.degrade),
    )


def _degrades(settings: Sequence[DegradeSettings]) -> tuple[Degrade, ...]:
    return tuple(
        Degrade("priority", str(each.priority))
        if each.priority is not None
        else Degrade("pool", each.pool)
        if each.pool
        else Degrade("model", each.model)
        for each in settings
    )


def _source(settings: AdmissionSettings) -> Source:
    identity = settings.identity
    return Source(
        kind=identity.source,
        namespace=identity.namespace,
        path=tuple(identity.path),
        header=identity.header if identity.source in ("api_key", "header") else "",
        deadline=settings.queue.deadline_header,
    )
