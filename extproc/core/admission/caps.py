"""Caps of tenants over all pools at one gateway: a budget without a bound of its own beside the pools' budgets.

A tenant's tokens a minute and in flight are promised once, whichever pools its requests go to. Where there are
several pools they are leased together, by the rules of a pool's budget (budget.py); the pools' own budgets have no
caps then.
"""

from collections.abc import Sequence
from typing import Final

from extproc.core.admission.board import Asked, Board
from extproc.core.admission.budget import Budget, Waiting
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.tenants import Tenant

#: Under which the caps are leased, where pools are by their names; no pool's name has a star.
NAME: Final = "*"
#: Tokens that all tenants may have together: more than there are, so that only their caps bound them.
BOUNDLESS: Final = 1e12


def caps_of(me: str, tenants: tuple[Tenant, ...], gateways: int, now: float) -> Budget:
    """The caps' budget at gateway `me`, of so many gateways."""
    return Budget(me, tenants, BOUNDLESS, gateways, now)


class Caps:
    """What is asked for of it, for all pools together.

    Args:
        budget: of the caps.
        gates: of all pools.
    """

    def __init__(self, budget: Budget, gates: Sequence[Gate]) -> None:
        self.budget = budget
        self._gates = gates

    def waiting(self, now: float) -> dict[str, Waiting]:
        """What waits of each tenant in all pools: its tokens, and the largest and oldest of its first ones."""
        found: dict[str, Waiting] = {}
        for gate in self._gates:
            for name, more in gate.queue.waiting(now).items():
                one = found.get(name, Waiting())
                found[name] = Waiting(
                    one.tokens + more.tokens, max(one.need, more.need), max(one.since, more.since)
                )
        return found

    def asks(self, now: float, new: Ask | None = None) -> dict[str, Asked]:
        """What to ask for at the next trade; `new` just came and found no room."""
        waiting = self.waiting(now)
        if new is not None:
            queued = waiting.get(new.tenant.name, Waiting())
            need = queued.need or new.tokens
            waiting[new.tenant.name] = queued._replace(tokens=queued.tokens + new.tokens, need=need)
        return self.budget.asks(waiting, now)

    def alone(self, now: float) -> None:
        """The trade failed."""
        self.budget.alone(self.waiting(now), now)

    def renew(self, board: Board, new: Ask | None, now: float) -> None:
        """Trade where that takes no call to anybody."""
        self.budget.take(board.trade(self.budget.me, self.asks(now, new), now), now)
