"""Admission of all pools at one gateway, as an exchange asks it: tokens estimated, tenant found, gate asked."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from extproc.core.admission.answers import DEGRADE, REJECT, Answer
from extproc.core.admission.budget import TENANT_TOO_LARGE
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.identity import Source, Told, read
from extproc.core.admission.tenants import Degrade, Tenants
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.router import Router
from extproc.pb import ext_proc_pb2 as pb

#: Tokens of a request that can't be read: the engine will refuse it soon, or it is short.
_UNREAD: Final = 256.0


class Waiter(Protocol):
    """An exchange that waits."""

    def due(self, now: float) -> None:
        """It need not wait any more: decide and answer."""
        ...


class Desk:
    """What the gateway's mind asks.

    Args:
        tenants: who is who.
        gates: by pool's name.
        router: finds the pools of requests that go on elsewhere or with a smaller model.
        source: where identities are found.
        patience: the message that makes Envoy wait for as long as requests may.
    """

    def __init__(
        self,
        tenants: Tenants,
        gates: Mapping[str, Gate],
        router: Router,
        source: Source,
        patience: bytes = b"",
    ) -> None:
        self.patience = patience
        #: Called when `pump` is to be called soon. May be called often.
        self.on_due: Callable[[], None] = lambda: None
        self._waiters: dict[int, Waiter] = {}
        self._over: dict[int, Answer] = {}
        self.tenants = tenants
        self.gates = gates
        self.source = source
        #: Headers that it needs to know.
        self.wanted = source.wanted
        self._router = router
        self._where: dict[int, Gate] = {}

    def __len__(self) -> int:
        """Requests that go or wait."""
        return len(self._where)

    def read(self, message: pb.ProcessingRequest, found: Mapping[str, str]) -> Told:
        """Who sends a request, by its headers' message, and by those of its headers that are `wanted`."""
        return read(message, found, self.source)

    def at_headers(self, told: Told, pool: Pool) -> Answer | None:
        """The refusal of a request whose declared length alone is too much; None for any other."""
        tenant = self.tenants.of(told.identity)
        if not tenant.body or told.length is None or told.length <= tenant.body:
            return None
        gate = self.gates[pool.name]
        if gate.dry:
            return None
        numbers = {"bytes": float(told.length), "bytes_allowed": float(tenant.body)}
        return gate.counted(
            Answer(
                verdict=REJECT, reason=TENANT_TOO_LARGE, tenant=tenant.name, pool=pool.name, numbers=numbers
            )
        )

    def ask(
        self,
        key: int,
        prompt: Prompt | None,
        pool: Pool,
        told: Told,
        now: float,
        *,
        size: int = 0,
        plain: bool = True,
        waiter: Waiter | None = None,
    ) -> Answer:
        """Decide on an exchange. What goes or waits must be settled once.

        Args:
            key: its number.
            prompt: what is known of it; None for nothing.
            pool: that answers for its model.
            told: by its headers.
            now: seconds, monotonic.
            size: bytes of its body.
            plain: whether the body can be written anew, as some degrading needs.
            waiter: told when it waited and need not any more; None for one that can't wait.
        """
        tenant = self.tenants.of(told.identity)
        if tenant.degrade and (not plain or prompt is None):
            tenant = replace(tenant, degrade=tuple(it for it in tenant.degrade if it.kind == "pool"))
        ask = Ask(key, tenant, tokens_of(prompt, pool), size, told.deadline, waiter is not None)
        gate = self.gates[pool.name]
        answer = gate.ask(
            ask, now, lambda lesser, lack: self._elsewhere(gate, ask, prompt, lesser, lack, now)
        )
        if answer.goes:
            self._where[key] = gate if answer.pool == pool.name else self.gates[answer.pool]
        elif answer.waits:
            self._where[key] = gate
            if waiter is not None:
                self._waiters[key] = waiter
        return answer

    def settle(self, key: int, actual: float | None) -> None:
        """Exchange `key` is over; `actual` tokens where its usage is known. Idempotent."""
        gate = self._where.pop(key, None)
        if self._waiters or self._over:
            self._waiters.pop(key, None)
            self._over.pop(key, None)
        if gate is not None:
            gate.settle(key, actual)
            if len(gate.queue):
                self.on_due()

    def told(self, key: int, pool: Pool, actual: float | None) -> None:
        """What exchange `key` used in `pool`, known after its end; None where nothing tells. Idempotent."""
        gate = self.gates.get(pool.name)
        if gate is not None and actual is not None:
            gate.told(key, actual)

    def final(self, key: int, answer: Answer, waited: float) -> Answer:
        """What came of an exchange that was let go after `waited` seconds; `answer` was that it waits."""
        over = self._over.pop(key, None)
        return replace(over or answer, waited=waited) if over or answer.waits else answer

    def pump(self, now: float) -> None:
        """Let those go whose turn it is, and refuse those that waited as long as they may."""
        for gate in self.gates.values():
            for ticket, answer in gate.expired(now):
                self._where.pop(ticket.key, None)
                self._over[ticket.key] = answer
                self._due(ticket.key, now)
            for ticket in gate.released(now):
                self._due(ticket.key, now)

    def close(self, now: float) -> None:
        """The gateway stops: who waits goes at once."""
        for gate in self.gates.values():
            for ticket in gate.close(now):
                self._due(ticket.key, now)

    def _due(self, key: int, now: float) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            waiter.due(now)

    def _elsewhere(
        self, own: Gate, ask: Ask, prompt: Prompt | None, lesser: Degrade, lack: str, now: float
    ) -> Answer | None:
        """Another pool, or that of a smaller model, where there is room."""
        if lesser.kind == "pool":
            pool, other = self._router.to_pool(prompt, lesser.to), prompt
        elif prompt is not None and prompt.model != lesser.to:
            pool, other = self._router.to_model(prompt, lesser.to), replace(prompt, model=lesser.to)
        else:
            return None
        if pool is None:
            return None
        gate = self.gates[pool.name]
        there = ask._replace(tokens=tokens_of(other, pool))
        if (gate is own and lesser.kind == "pool") or gate.lacks(there, now) or gate.queue.waits(ask.tenant):
            return None
        if own.dry:  # it stays where it is
            return own.goes(ask, DEGRADE, lack, lesser, now)
        numbers = {**own.numbers(ask, now), "tokens_there": there.tokens}
        return gate.goes(there, DEGRADE, lack, lesser, now, numbers)


def tokens_of(prompt: Prompt | None, pool: Pool) -> float:
    """Runtime tokens to reserve: the prompt's, and what such requests are answered, bounded by its own limit."""
    if prompt is None:
        return _UNREAD
    tokens = prompt.size * pool.tokens_per_byte(prompt)
    if prompt.kind != "generate":
        return max(tokens, 1.0)
    output = pool.output.predict(prompt.model, prompt.dialect, tokens)
    if prompt.max_output is not None and prompt.max_output < output:
        output = prompt.max_output
    return tokens + output * prompt.n
