"""A pool's admission at one gateway: asks go in, answers come out, what ends is settled, what waits is let go."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extproc.core.admission.answers import ALLOW, DEGRADE, QUEUE, REJECT, ROOM, Answer
from extproc.core.admission.board import Asked, Standing
from extproc.core.admission.budget import (
    POOL_FULL,
    TENANT_IN_FLIGHT,
    TENANT_RATE,
    TENANT_SHARE,
    TENANT_TOO_LARGE,
    Budget,
    Waiting,
)
from extproc.core.admission.queue import DEADLINE, WAITED, Queue, QueueSettings, Ticket
from extproc.core.admission.tenants import Degrade, Tenant, Tenants

#: Lacks that less service doesn't mend: a cap stays a cap.
_CAPS: Final = (TENANT_RATE, TENANT_IN_FLIGHT)
#: Share of the budget, above it, that requests at lower engine priority may take.
_OVERFLOW: Final = 0.1
#: Seconds that a request waits for one trade of leases.
_TRADE: Final = 0.1
#: Seconds in which a queue may let go of a whole budget: when much room comes at once it is filled evenly, as engines
#: that get a crowd of prompts at one moment make all of them wait.
_FILL: Final = 2.0


class Ask(NamedTuple):
    """A request. Tokens: its prompt's and its bounded output's. `deadline`: seconds it may wait, None for the usual.

    `size`: bytes Envoy holds while it waits. `klass`: the class it asks for, None for its
    tenant's. `can_wait`: whether whoever sends it can be kept waiting.
    """

    key: int
    tenant: Tenant
    tokens: float
    size: int = 0
    deadline: float | None = None
    can_wait: bool = True
    klass: int | None = None


#: Asked to degrade to what is not in this pool, with the reason why there is no room here.
Elsewhere = Callable[[Degrade, str], Answer | None]


@dataclass(slots=True, kw_only=True)
class Counts:
    """Since the start. Tokens of requests rejected, and (verdict, reason, tenant) -> requests."""

    rejected_tokens: float = 0.0
    answers: dict[tuple[str, str, str], int] = field(default_factory=dict)


class Gate:
    """One pool's.

    Args:
        pool: its name.
        tenants: all of them.
        settings: of the queue.
        budget: of this pool at this gateway.
        now: seconds, monotonic.
        dry: count and say only; everything goes.
        holds: whether requests can wait; else what would wait is refused with its predicted wait.
    """

    def __init__(
        self,
        pool: str,
        tenants: Tenants,
        settings: QueueSettings,
        budget: Budget,
        now: float,
        *,
        dry: bool = False,
        holds: bool = True,
    ) -> None:
        self.pool = pool
        self.budget = budget
        self.queue = Queue(settings, tenants.all, now)
        self.counts = Counts()
        self.dry = dry
        self.holds = holds
        #: What is said to nearly everybody, and as what it counts, made once.
        self._allowed = {
            each.name: (
                Answer(verdict=ALLOW, reason=ROOM, tenant=each.name, pool=pool, dry=dry),
                (ALLOW, ROOM, each.name),
            )
            for each in tenants.all
        }
        #: Whether anybody found no room since this was last cleared: what is leased should be renewed at once.
        self.limited = False
        #: Called when a request finds no room: renews leases at once where that takes no call to anybody.
        self.renew: Callable[[Ask | None, float], None] = lambda _ask, _now: None
        self._evenly = budget.total
        self._evenly_at = now

    def most(self, tenant: Tenant) -> float:
        """Most tokens of one request of a tenant: it can never go with more, however long it comes again."""
        wait = self.queue.settings.wait if self.holds else 0.0
        return min(tenant.in_flight, self.budget.gathered_in(tenant, wait))

    def lacks(self, ask: Ask, now: float) -> str:
        """Why a request has no room now; "" when it has, if need be by leasing more."""
        tokens = self.budget.bounded(ask.tokens)
        lack = self.budget.lacks(ask.tenant, tokens)
        if lack:
            self.renew(ask, now)
            lack = self.budget.lacks(ask.tenant, tokens)
        return lack

    def ask(self, ask: Ask, now: float, elsewhere: Elsewhere = lambda _lesser, _lack: None) -> Answer:
        """Decide on a request; what goes has reserved its tokens, what waits is in the queue.

        Args:
            ask: the request.
            now: seconds, monotonic.
            elsewhere: asked to degrade to another pool or model; None where there is no room either.
        """
        lack = self.lacks(ask, now)
        if not lack and not self.queue.waits(ask.tenant):
            return self.goes(ask, ALLOW, ROOM, None, now)
        tokens = self.budget.bounded(ask.tokens)
        self.limited = True
        lack = lack or self.queue.lack(ask.tenant) or TENANT_SHARE
        if ask.tokens > self.most(ask.tenant):
            return self._refuse(ask, TENANT_TOO_LARGE, math.inf, now)
        for lesser in ask.tenant.degrade if lack not in _CAPS else ():
            answer = (
                self._lesser(ask, lesser, lack, now) if lesser.kind == "priority" else elsewhere(lesser, lack)
            )
            if answer is not None:
                return answer
        return self._wait(ask, tokens, lack, now)

    def goes(
        self,
        ask: Ask,
        verdict: str,
        reason: str,
        lesser: Degrade | None,
        now: float,
        numbers: Mapping[str, float] | None = None,
    ) -> Answer:
        """Let a request go and reserve its tokens, whether there is room or not.

        `numbers` explain a verdict that another pool's lack of room led to.
        """
        if verdict == ALLOW:
            self._reserve(ask, now)
            allowed, label = self._allowed[ask.tenant.name]
            self.counts.answers[label] = self.counts.answers.get(label, 0) + 1
            return allowed
        numbers = numbers or self.numbers(ask, now)
        self._reserve(ask, now)
        return self.counted(
            Answer(
                verdict=verdict, reason=reason, tenant=ask.tenant.name, pool=self.pool, degrade=lesser,
                numbers=numbers, dry=self.dry,
            )
        )  # fmt: skip

    def counted(self, answer: Answer) -> Answer:
        """Count an answer."""
        label = (answer.verdict, answer.reason, answer.tenant)
        self.counts.answers[label] = self.counts.answers.get(label, 0) + 1
        if answer.verdict == REJECT:
            self.counts.rejected_tokens += answer.numbers.get("tokens", 0.0)
        return answer

    def settle(self, key: int, actual: float | None) -> None:
        """A request is over, whether it ran or waited: what it has is free; `actual` tokens where they are known."""
        reserved = self.budget.settle(key, actual)
        if reserved is None:
            self.queue.remove(key)
        elif actual is not None:
            self.queue.corrected(reserved.tenant, actual - reserved.tokens)

    def told(self, key: int, actual: float) -> None:
        """The usage of a request came after its end: what it reserved is settled by that now."""
        reserved = self.budget.told(key, actual)
        if reserved is not None:
            self.queue.corrected(reserved.tenant, actual - reserved.tokens)

    def released(self, now: float) -> list[Ticket]:
        """Those that waited and go now, in order; their tokens are reserved."""
        rate = self.budget.total / self.budget.gateways / _FILL
        passed, self._evenly_at = max(now - self._evenly_at, 0.0), now
        self._evenly = min(self._evenly + rate * passed, rate * _FILL)
        gone: list[Ticket] = []
        while self._evenly > 0 and len(self.queue):
            ticket = self.queue.next(self._fits, now)
            if ticket is None:
                break
            self.budget.reserve(ticket.key, ticket.tenant, self.budget.bounded(ticket.tokens), now)
            self._evenly -= ticket.tokens
            gone.append(ticket)
        return gone

    def _fits(self, tenant: Tenant, tokens: float) -> bool:
        """Whether one that waits has room: of a budget that fell meanwhile it needs all at most."""
        return not self.budget.lacks(tenant, self.budget.bounded(tokens))

    def _nominal(self, tenant: Tenant) -> float:
        return self.queue.part(tenant) * self.budget.total

    def close(self, now: float) -> list[Ticket]:
        """Let nobody wait any more: those that do go now, whatever room there is."""
        self.holds = False
        tickets = self.queue.all()
        for ticket in tickets:
            self.queue.remove(ticket.key)
            self.budget.reserve(ticket.key, ticket.tenant, ticket.tokens, now)
        return tickets

    def expired(self, now: float) -> list[tuple[Ticket, Answer]]:
        """Those that waited as long as they may, and what they are answered."""
        over = []
        for ticket in self.queue.expired(now):
            ask = Ask(ticket.key, ticket.tenant, ticket.tokens, ticket.size, ticket.until - ticket.arrived)
            if ticket.key == self.queue.gathers and ticket.tokens > self._nominal(ticket.tenant):
                self.queue.corrected(
                    ticket.tenant, ticket.tokens
                )  # the others went without for it: their turn
            own = (
                ticket.lack and ticket.lack != POOL_FULL
            )  # its tenant's own limit made it wait, or the fleet's
            reason = ticket.lack if own else WAITED
            over.append((ticket, self._refusal(ask, reason, self._retry(ask, now), now)))
        return over

    # -- leases ----------------------------------------------------------------------------------------

    def asks(self, now: float, new: Ask | None = None) -> dict[str, Asked]:
        """What to ask for at the next trade; `new` just came and found no room."""
        waiting = dict(self.queue.waiting(now))
        if new is not None:
            tokens = self.budget.bounded(new.tokens)
            queued = waiting.get(new.tenant.name, Waiting())
            need = queued.need or tokens
            waiting[new.tenant.name] = queued._replace(tokens=queued.tokens + tokens, need=need)
        return self.budget.asks(waiting, now)

    def take(self, standing: Standing, now: float) -> None:
        """What was leased."""
        self.budget.take(standing, now)
        others = {name: rows for name, rows in standing.rows.items() if name != self.budget.me}
        self.queue.heard(others, now)

    def alone(self, now: float) -> None:
        """The trade failed."""
        self.budget.alone(self.queue.waiting(now), now)

    # -- answers ---------------------------------------------------------------------------------------

    def _lesser(self, ask: Ask, lesser: Degrade, lack: str, now: float) -> Answer | None:
        """A lower priority in the engine, where the overflow has room."""
        most = self.budget.total / self.budget.gateways * (1.0 + _OVERFLOW)
        if self.budget.used + self.budget.bounded(ask.tokens) > most:
            return None
        return self.goes(ask, DEGRADE, lack, lesser, now)

    def _wait(self, ask: Ask, tokens: float, lack: str, now: float) -> Answer:
        limit = self.queue.settings.wait
        ticket = Ticket(
            key=ask.key, tenant=ask.tenant, tokens=tokens, klass=ask.tenant.class_of(ask.klass), arrived=now,
            until=now + (limit if ask.deadline is None else min(ask.deadline, limit)), size=ask.size, lack=lack,
        )  # fmt: skip
        holds = self.holds and (ask.can_wait or self.dry)
        predicted = self._retry(ask, now)
        refusal = self.queue.refusal(ticket, predicted, now) if holds else ""
        if refusal or not holds or self.dry:
            verdict = REJECT if refusal or not holds else QUEUE
            own = refusal == DEADLINE and lack != POOL_FULL  # the tenant's own limit makes it wait
            return self._refuse(ask, lack if own else refusal or lack, predicted, now, verdict)
        numbers = self.numbers(ask, now)
        self.queue.put(ticket)
        return self.counted(
            Answer(
                verdict=QUEUE, reason=lack, tenant=ask.tenant.name, pool=self.pool, retry_after=predicted,
                numbers=numbers,
            )
        )  # fmt: skip

    def _refuse(self, ask: Ask, reason: str, retry: float, now: float, verdict: str = REJECT) -> Answer:
        answer = self._refusal(ask, reason, retry, now, verdict)
        if not self.dry:
            self.budget.miss(ask.tenant, self.budget.bounded(ask.tokens), now)
        if self.dry:  # it goes all the same, and counts
            self._reserve(ask, now)
        return answer

    def _reserve(self, ask: Ask, now: float) -> None:
        tokens = self.budget.bounded(ask.tokens)
        self.budget.reserve(ask.key, ask.tenant, tokens, now)
        self.queue.went(ask.tenant, tokens, now)

    def _refusal(self, ask: Ask, reason: str, retry: float, now: float, verdict: str = REJECT) -> Answer:
        return self.counted(
            Answer(
                verdict=verdict, reason=reason, tenant=ask.tenant.name, pool=self.pool, retry_after=retry,
                numbers=self.numbers(ask, now), dry=self.dry,
            )
        )  # fmt: skip

    def _retry(self, ask: Ask, now: float) -> float:
        """Seconds after which such a request would go: by the queue's real speed, and by the rate's refill.

        Where nobody waits and the fleet has room only the next trade of leases is in its way.
        """
        tenant, tokens = ask.tenant, self.budget.bounded(ask.tokens)
        ahead = self.queue.ahead(tenant)
        if not ahead and not self.queue.is_crowded and self.budget.has_room(tenant, tokens):
            wait = _TRADE
        else:
            wait = self.queue.predicted(tenant, tokens, now)
        if math.isinf(tenant.per_minute):
            return wait
        by_rate = self.budget.refilled_in(tenant, ahead + tokens)
        return by_rate if math.isinf(wait) else max(wait, by_rate)

    def numbers(self, ask: Ask, now: float) -> Mapping[str, float]:
        """What explains the answer to a request: what it asks for, and each bound beside what is taken of it."""
        account, bounds = self.budget.accounts[ask.tenant.name], self.queue.settings
        rated = self.budget.rated(ask.tenant)
        return {
            "tokens": ask.tokens,
            "tokens_most": self.most(ask.tenant),
            "tenant_used": account.used,
            "tenant_leased": account.hold,
            "tenant_in_flight": rated.used,
            "tenant_in_flight_most": ask.tenant.in_flight,
            "per_minute": ask.tenant.per_minute,
            "rate_left": math.inf if math.isinf(ask.tenant.per_minute) else rated.allowance,
            "pool_used_here": self.budget.used,
            "pool_total": self.budget.total,
            "gateways": float(self.budget.gateways),
            "alone": float(self.budget.is_alone),
            "waiting": float(len(self.queue)),
            "waiting_most": float(bounds.requests),
            "waiting_tokens": self.queue.tokens,
            "waiting_tokens_most": bounds.tokens,
            "waiting_bytes": float(self.queue.size),
            "waiting_bytes_most": float(bounds.size),
            "tenant_waiting": float(self.queue.waiting_of(ask.tenant)),
            "tenant_waiting_most": float(ask.tenant.waiting),
            "may_wait": bounds.wait if ask.deadline is None else min(ask.deadline, bounds.wait),
            "speed": _or_unknown(self.queue.speed.at(now)),
        }


def _or_unknown(speed: float | None) -> float:
    return math.inf if speed is None else speed
