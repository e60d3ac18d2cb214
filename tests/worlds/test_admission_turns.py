"""Nobody starves in virtual time: one whose requests are larger than its part of the budget is served at its turn."""

import heapq
from collections import Counter

import pytest

from extproc.core.admission.answers import ALLOW, QUEUE
from extproc.core.admission.board import Board
from extproc.core.admission.budget import Budget
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Tenant, Tenants

SMALL, LARGE = Tenant(name="small"), Tenant(name="large")


class Fleet:
    """Gateways whose clients send again when they are answered; a request takes a second for each 2,000 tokens."""

    def __init__(self, total: float, gateways: int, tenants: Tenants) -> None:
        self.board = Board(tenants.all, total, 0.0)
        self.gates = []
        for number in range(gateways):
            budget = Budget(str(number), tenants.all, total, gateways, 0.0)
            self.gates.append(Gate("pool", tenants, QueueSettings(wait=20.0), budget, 0.0))
        for _ in range(2):  # all know of all before anybody comes
            for number, gate in enumerate(self.gates):
                gate.take(self.board.trade(str(number), gate.asks(0.0), 0.0), 0.0)
        self.ends: list[tuple[float, int]] = []
        self.served: Counter[str] = Counter()
        self.clients: dict[int, tuple[Gate, Tenant, float]] = {}
        self.again: list[tuple[float, Gate, Tenant, float]] = []
        self.most = 0.0

    def sends(self, gate: Gate, tenant: Tenant, tokens: float, now: float) -> None:
        key = len(self.clients)
        self.clients[key] = gate, tenant, tokens
        answer = gate.ask(Ask(key, tenant, tokens), now)
        if answer.verdict == ALLOW:
            self.went(key, now)
        elif answer.verdict != QUEUE:
            self.again.append((now + 0.3, gate, tenant, tokens))

    def went(self, key: int, now: float) -> None:
        _, tenant, tokens = self.clients[key]
        self.served[tenant.name] += int(tokens)
        heapq.heappush(self.ends, (now + 0.2 + tokens / 2000, key))

    def run(self, seconds: int) -> None:
        for tick in range(seconds * 20):
            now = tick / 20
            while self.ends and self.ends[0][0] <= now:
                _, key = heapq.heappop(self.ends)
                gate, tenant, tokens = self.clients[key]
                gate.settle(key, tokens)
                self.again.append((now, gate, tenant, tokens))
            due = [it for it in self.again if it[0] <= now]
            self.again = [it for it in self.again if it[0] > now]
            for _, gate, tenant, tokens in due:
                self.sends(gate, tenant, tokens, now)
            for number, gate in enumerate(self.gates):
                if tick % 2 == number % 2:
                    gate.take(self.board.trade(str(number), gate.asks(now), now), now)
                for ticket, _ in gate.expired(now):
                    self.again.append((now, gate, ticket.tenant, ticket.tokens))
                for ticket in gate.released(now):
                    self.went(ticket.key, now)
            self.most = max(self.most, sum(gate.budget.used for gate in self.gates))


@pytest.mark.parametrize("gateways", [1, 4])
@pytest.mark.parametrize(("total", "size"), [(9000, 4600), (5426, 3100), (3825, 3100), (3825, 4600)])
def test_a_tenant_whose_requests_are_larger_than_its_part_gets_its_turns(
    total: float, size: float, gateways: int
) -> None:
    tenants = Tenants({"small": SMALL, "large": LARGE})
    fleet = Fleet(total, gateways, tenants)
    for number in range(40):
        fleet.sends(fleet.gates[number % gateways], SMALL, 150, 0.0)
    for number in range(4):
        fleet.sends(fleet.gates[number % gateways], LARGE, size, 0.0)
    fleet.run(60)
    # One of its requests runs for at least a third of the time; the rest of it gathers room, and is the other's.
    assert fleet.served["large"] / size * (0.2 + size / 2000) >= 60 / 3
    assert fleet.served["small"] >= 0.4 * fleet.served.total()
    assert fleet.most <= total + 1e-6
