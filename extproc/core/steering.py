"""The gateway's mind: its pools, its ledger and its rules. One for a process; every exchange asks it."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from extproc.core.admission import wire
from extproc.core.admission.desk import Desk
from extproc.core.breaker import HALF_OPEN
from extproc.core.canary import Watch
from extproc.core.catalog import Catalog
from extproc.core.decide import NO_CANDIDATE, Decision, bind, moved, weigh
from extproc.core.dialects import Limits
from extproc.core.duplex import Shelf
from extproc.core.ending import Ending
from extproc.core.feedback import unlearned
from extproc.core.fleet import Replica
from extproc.core.holding import Holding
from extproc.core.ledger import Ledger
from extproc.core.openings import Openings
from extproc.core.outcome import Ended
from extproc.core.policies.base import Rng
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.router import Router
from extproc.core.routes import Route
from extproc.core.subset import Subset
from extproc.core.tracing import Traces
from extproc.core.tries import failed, passed_over
from extproc.core.usage.allowance import Allowance


@dataclass(slots=True, frozen=True, kw_only=True)
class Rules:
    """What the operator decided about requests. `body`, `expanded_body` and `response_body` in bytes."""

    unreadable_passes: bool = True
    unknown_model_passes: bool = False
    #: Whether `GET /v1/models` is answered here.
    lists_models: bool = False
    fallbacks: int = 2
    #: Endpoints that are named at least, as Envoy tries so many: see core/tries.py.
    tries: int = 1
    body: int = 32 * 2**20
    expanded_body: int = 64 * 2**20
    #: Bodies above so many bytes are read beside the event loop (core/reading.py).
    beside: int = 32 * 2**20
    #: Most bytes of bodies in full duplex that are held at once, all together.
    bodies: int = 2**30
    #: Most bytes kept of a response's body at any time, where Envoy sends it.
    response_body: int = 64 * 2**10
    #: Whether streamed answers of OpenAI's APIs are asked for their usage when the client did not.
    include_usage: bool = False
    #: Dialects whose usage can't be read the way it comes: their streams are not asked.
    unread: frozenset[str] = frozenset()
    #: Whether Envoy is told which requests its access log need not tell of.
    spares_log: bool = False
    #: Whether clients may name the endpoints they want; for conformance tests alone.
    test_selection: bool = False
    limits: Limits = field(default_factory=Limits)


#: A gateway's name and the number of its start.
Gateway = tuple[str, int]


class Watched(Protocol):
    """An exchange whose first token will be told."""

    def first_token(self, now: float) -> None:
        """It was seen."""
        ...


class Steering:
    """Decides in the pools, by the gateway's rules.

    Args:
        pools: at least one; the first also takes what names no model.
        rng: where random ties come from.
        routes: what each pool takes; None for pools that list models alone.
    """

    def __init__(
        self, pools: list[Pool], rules: Rules, rng: Rng, routes: Sequence[Route] | None = None
    ) -> None:
        self.pools = pools
        self.rules = rules
        self.router = Router(pools, routes, rules.unknown_model_passes, rng)
        #: What `GET /v1/models` answers, where it is answered here.
        self.catalog = Catalog(pools, self.router, rules.limits.aliases)
        #: How versions of models do.
        self.watch = Watch()
        self.ledger = Ledger()
        #: Requests that wait for a replica.
        self.holding = Holding(pools, self.ledger)
        self.rng = rng
        #: Who may go, wait or be refused; None where everything goes.
        self.desk: Desk | None = None
        #: Called when the breaker of a replica opens, with the seconds until it lets one try, or closes, with 0.
        self.on_breaker: Callable[[Pool, Replica, float], None] = lambda _pool, _replica, _seconds: None
        #: Who this gateway is, by name and start, for those who observe first tokens; None where nobody does.
        self.identity: Gateway | None = None
        #: What makes Envoy wait for a body that is read beside.
        self.patience = b""
        #: Bodies above so many bytes are read beside.
        self.beside = min(rules.beside, rules.body)
        #: Most bytes that one may expand to and still be read at once; None where none is read beside.
        self.at_once = min(rules.beside, rules.expanded_body) if rules.beside < rules.body else None
        #: Exchanges whose first token will be told, by their numbers, until it is or they end.
        self.watched: dict[int, Watched] = {}
        #: Given the gateway and the number of an exchange of another gateway, whose first token was seen here.
        self.relay: Callable[[Gateway, int], None] | None = None
        #: Which requests have spans; None where none has.
        self.traces: Traces | None = None
        #: What reading responses may take of this gateway's time.
        self.reading = Allowance()
        #: What first messages told.
        self.openings = Openings()
        #: Bodies that only this gateway has.
        self.shelf = Shelf(rules.bodies)
        self._keys = count(1)
        #: A number no other exchange of this process has.
        self.new_key: Callable[[], int] = self._keys.__next__

    @property
    def may_change(self) -> bool:
        """Whether bodies may go on otherwise than they came."""
        rules = self.rules
        renames = bool(rules.limits.aliases) or any(pool.renames for pool in self.pools)
        return rules.include_usage or renames or self.desk is not None

    def named(self, name: str) -> Pool:
        """The pool of this name. Raises StopIteration for none."""
        return next(pool for pool in self.pools if pool.name == name)

    def decide(
        self,
        prompt: Prompt | None,
        pool: Pool,
        key: int,
        now: float,
        *,
        told: bool = False,
        only: Sequence[Subset] = (),
    ) -> Decision:
        """Choose a replica, of those in each of `only`, and charge it to exchange `key`.

        `told`: the exchange's first token will be.
        """
        handover, picks = pool.handover, 1 + self.rules.fallbacks
        if handover is None:
            decision = weigh(pool, prompt, self.rng, key=key, now=now, picks=picks, only=only)
        else:  # one replica may compute the prompt, and another answer it
            decision = handover.weigh(pool, prompt, self.rng, key=key, now=now, picks=picks, only=only)
        decision.told = told
        if handover is not None and decision.prefill is not None:
            handover.bind(decision, self.ledger, self.new_key())
        elif decision.replica is not None:
            bind(decision, decision.replica, self.ledger)
        return decision

    def prompt_done(self, key: int, now: float) -> None:
        """The prompt of an exchange is computed, wherever it was."""
        for pool in self.pools:
            if pool.handover is not None and pool.handover.legs:
                pool.handover.done(key, self.ledger, now)

    def served(self, decision: Decision | None, ending: Ending, now: float) -> None:
        """Envoy may have told who answers an exchange: it is charged there if it was not."""
        if decision is not None and decision.prefill is not None:
            self.prompt_done(decision.key, now)
        address = ending.served
        if decision is None or decision.replica is None or address in ("", decision.replica.address):
            return
        self.strayed(decision, ending)
        replica = decision.pool.get(address)
        if replica is not None:
            moved(decision, replica, self.ledger, now)

    def strayed(self, decision: Decision, ending: Ending) -> None:
        """Note whom Envoy did not even try, where an exchange's only try went elsewhere than to its first pick."""
        if ending.attempts == 1 and ending.served:
            for replica in passed_over(decision, self.rules.tries, ending.served):
                replica.passed_over = max(replica.passed_over, decision.at)

    def consider(self, prompt: Prompt | None, pool: Pool, rng: Rng, now: float) -> Decision:
        """What would be decided now, with chance from `rng`; nothing is charged, placed or counted.

        A policy's turns and counters stay where they are. What it remembers of conversations is shared with the
        real one, so that the answer is the real one's too; a conversation that is new to it is remembered.
        """
        own, pool.policy = pool.policy, copy(pool.policy)
        picks = 1 + self.rules.fallbacks
        try:
            if pool.handover is not None:
                return pool.handover.consider(pool, prompt, rng, now=now, picks=picks)
            return weigh(pool, prompt, rng, key=0, now=now, picks=picks)
        finally:
            pool.policy = own

    def answered(self, ended: Ended, now: float, picked: float = -math.inf) -> None:
        """A request ended at a replica: its breaker learns of it. Replicas nobody knows any more are ignored.

        `picked`: when it was decided; -inf for unknown.
        """
        address, silent = ended.replica, ended.silent
        for pool in self.pools:
            replica = pool.get(address)
            if replica is None:
                continue
            if silent:
                replica.breaker.cancelled(ended.request_id)
            elif not replica.breaker.went_well(ended.status, picked, now):
                self._judge(pool, replica, ended.request_id, ended.status, ended.retry_after, picked, now)

    def succeeded(self, address: str, request_id: str, status: int, picked: float, now: float) -> None:
        """As `answered`, of an answer that the replica at `address` gave to its end, and that was no error."""
        for pool in self.pools:
            replica = pool.get(address)
            if replica is not None and not replica.breaker.went_well(status, picked, now):
                self._judge(pool, replica, request_id, status, None, picked, now)

    def _judge(
        self,
        pool: Pool,
        replica: Replica,
        request_id: str,
        status: int | None,
        retry_after: float | None,
        picked: float,
        now: float,
    ) -> None:
        before = replica.breaker.state
        replica.answered(request_id, status, retry_after, now, picked)
        self._tell_of(pool, replica, before, now)

    def began(self, decision: Decision, served: str, request_id: str, now: float) -> None:
        """The first token came of an exchange that `served` answers, "" for unknown: its breaker learns of it."""
        for pool in self.pools if served else ():
            replica = pool.get(served)
            if replica is not None and replica.breaker.began(request_id, decision.at, now):
                replica.refresh(now)
                self.on_breaker(pool, replica, 0.0)

    def retried(self, decision: Decision | None, ending: Ending, request_id: str, now: float) -> None:
        """Envoy tried an exchange again: breakers learn who failed it, as soon as that is told, and once.

        How is not told, so each such try is a failure like a broken connection, whatever the replica asked for.
        Nor is when: it was soon after the exchange was decided, however late the news are.
        """
        if decision is None or ending.blamed or not ending.served or ending.attempts is None:
            return
        ending.blamed = True
        for replica in failed(decision, self.rules.tries, ending.served, ending.attempts):
            if decision.pool.get(replica.address) is not replica:  # it left, or its engine began anew
                continue
            replica.failed_tries += 1
            for pool in self.pools:
                known = pool.get(replica.address)
                if known is None:
                    continue
                before = known.breaker.state
                if known.breaker.tried(request_id, decision.at, now):
                    known.refresh(now)
                self._tell_of(pool, known, before, now)

    def _tell_of(self, pool: Pool, replica: Replica, before: str, now: float) -> None:
        """Tell others of a breaker that opened or closed."""
        if replica.breaker.state != before and replica.breaker.state != HALF_OPEN:
            self.on_breaker(pool, replica, replica.breaker.rest(now))

    def over(self, key: int, now: float) -> None:
        """An exchange is over: its adapter is free, and others may go."""
        for pool in self.pools:
            if pool.adapters is not None and pool.adapters.loading is not None:
                pool.adapters.loading.ended(key, now)
        if self.holding.held:
            self.holding.stir()

    def first_token(self, key: int, now: float, seen: float | None = None) -> None:
        """The first piece of an exchange's answer was seen, at `seen` when not now: its prompt is computed.

        Unknown keys are ignored.
        """
        watched = self.watched.pop(key, None)
        if watched is None:
            return
        watched.first_token(now)
        self.prompt_done(key, now)
        self.ledger.prompt_done(key, now, seen)
        self.holding.stir()
        for pool in self.pools:
            if pool.feedback is not None:
                pool.feedback.first_token(key)

    def learn(self, decision: Decision, ending: Ending | None, now: float) -> None:
        """Learn from how an exchange ended, as far as that is known. Call it once for each decision."""
        if decision.prefill is not None:
            self.prompt_done(decision.key, now)
        if decision.pool.feedback is not None:
            decision.pool.feedback.ended(decision, ending, now)
        else:
            unlearned(decision, ending, now)
        adapters = decision.pool.adapters
        if (
            adapters is not None
            and decision.replica is not None
            and ending is not None
            and ending.status == 404
        ):
            adapters.not_found(decision.replica, decision.prompt)
        if decision.pool.version and (decision.replica is not None or decision.reason == NO_CANDIDATE):
            model = self.router.known(decision.prompt.model if decision.prompt is not None else "")
            self.watch.ended(model, decision.pool.version, ending, decision.at, now)
        if self.desk is not None:
            self.desk.told(decision.key, decision.pool, wire.used(decision, ending))

    def expire(self, now: float) -> None:
        """Drop what is too old in every index. Call it every few seconds."""
        for pool in self.pools:
            pool.index.expire(now)
