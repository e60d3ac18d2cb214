"""Admission of all pools at one gateway, as an exchange asks it: tokens estimated, tenant found, gate asked."""

from collections.abc import Mapping
from typing import Final

from extproc.core.admission.answers import DEGRADE, Answer
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.identity import Source, Told
from extproc.core.admission.tenants import Degrade, Tenants
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt

#: Tokens of a request that can't be read: the engine will refuse it soon, or it is short.
_UNREAD: Final = 256.0


class Desk:
    """What the gateway's mind asks.

    Args:
        tenants: who is who.
        gates: by pool's name.
        pools: by each model they declare, for requests that go on with a smaller model.
        source: where identities are found.
    """

    def __init__(
        self, tenants: Tenants, gates: Mapping[str, Gate], pools: Mapping[str, Pool], source: Source
    ) -> None:
        self.tenants = tenants
        self.gates = gates
        self.source = source
        self._pools = pools
        self._where: dict[int, Gate] = {}

    def __len__(self) -> int:
        """Requests that go or wait."""
        return len(self._where)

    def ask(
        self, key: int, prompt: Prompt | None, pool: Pool, told: Told, now: float, size: int = 0
    ) -> Answer:
        """Decide on exchange `key`, whose body has `size` bytes. What goes or waits must be settled once."""
        tenant = self.tenants.of(told.identity)
        ask = Ask(key, tenant, tokens_of(prompt, pool), size, told.deadline)
        gate = self.gates[pool.name]
        answer = gate.ask(ask, now, lambda lesser, lack: self._elsewhere(ask, prompt, lesser, lack, now))
        if answer.goes or answer.verdict == "queue":
            self._where[key] = self.gates[answer.pool]
        return answer

    def settle(self, key: int, actual: float | None) -> None:
        """Exchange `key` is over; `actual` tokens where its usage is known. Idempotent."""
        gate = self._where.pop(key, None)
        if gate is not None:
            gate.settle(key, actual)

    def forget(self, key: int) -> None:
        """Exchange `key` was answered with a refusal after it had waited."""
        self._where.pop(key, None)

    def _elsewhere(
        self, ask: Ask, prompt: Prompt | None, lesser: Degrade, lack: str, now: float
    ) -> Answer | None:
        """Another pool, or that of a smaller model, where there is room."""
        name = lesser.to if lesser.kind == "pool" else None
        if lesser.kind == "model":
            pool = self._pools.get(lesser.to)
            name = (
                pool.name if pool is not None and prompt is not None and prompt.model != lesser.to else None
            )
        gate = self.gates.get(name or "")
        if gate is None or gate.lacks(ask, now) or gate.queue.waits(ask.tenant):
            return None
        return gate.goes(ask, DEGRADE, lack, lesser, now)


def tokens_of(prompt: Prompt | None, pool: Pool) -> float:
    """Runtime tokens to reserve: the prompt's, and what such requests are answered, bounded by its own limit."""
    if prompt is None:
        return _UNREAD
    tokens = prompt.size * pool.tokens_per_byte(prompt)
    if prompt.kind != "generate":
        return max(tokens, 1.0)
    output = pool.output.predict(prompt.model, prompt.dialect, tokens)
    if prompt.max_output is not None:
        output = min(output, prompt.max_output)
    return tokens + output * prompt.n
