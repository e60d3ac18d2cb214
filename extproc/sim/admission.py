"""Admission in the simulator: the gates of every gateway before its choice, one board of leases, virtual time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.admission.adapt import AdaptSettings, Controller
from extproc.core.admission.answers import QUEUE
from extproc.core.admission.board import Board
from extproc.core.admission.budget import Budget
from extproc.core.admission.desk import tokens_of
from extproc.core.admission.gate import Ask, Gate
from extproc.core.admission.meter import Meter
from extproc.core.admission.queue import QueueSettings
from extproc.core.admission.tenants import Tenants
from extproc.sim.jobs import Job, Row, Status
from extproc.sim.run import SimSettings, Simulation

#: Seconds between two trades of a gateway, and between two looks at the load, as the server's defaults.
_TRADE, _LOOK = 0.1, 1.0


class TenantRow(Row):
    """A request of a tenant."""

    __slots__ = ("tenant",)

    def __init__(self, at: float, tokens: int, output: int, blocks: list[int], tenant: str) -> None:
        super().__init__(at, tokens, output, blocks, limit=2 * output)
        self.tenant = tenant


@dataclass(slots=True, frozen=True, kw_only=True)
class AdmissionSettings:
    """What admission is told. `bears`: tokens in flight that each replica can bear; 0 to learn it."""

    tenants: Tenants
    queue: QueueSettings = field(default_factory=QueueSettings)
    adapt: AdaptSettings = field(default_factory=AdaptSettings)
    bears: float = 0.0


class Admitted(Simulation):
    """A run with admission.

    Attributes:
        admitted: (seconds, tenant, tokens) of each request that went, in that order.
        gates: of each gateway.
        waits: seconds that those waited that had to and went, with their tokens.
    """

    def __init__(self, settings: SimSettings, admission: AdmissionSettings) -> None:
        super().__init__(settings)
        self._tenants = admission.tenants
        self.admitted: list[tuple[float, str, float]] = []
        self.waits: list[tuple[float, float]] = []
        self._meters = [Meter(gateway.pool, admission.bears) for gateway in self.gateways]
        first = self._meters[0].look(0.0)
        self._controllers = [Controller(admission.adapt, 0.0) for _ in self.gateways]
        total = self._controllers[0].start(first)
        self.board = Board(admission.tenants.all, total, 0.0, first.basis)
        count = len(self.gateways)
        self.gates = []
        for gateway in self.gateways:
            budget = Budget(str(gateway.number), admission.tenants.all, total, count, 0.0)
            self.gates.append(Gate("pool", admission.tenants, admission.queue, budget, 0.0))
            self._at(_TRADE * gateway.number / count, self._trade, gateway.number)
        self._at(_LOOK, self._look)

    @property
    def changes(self) -> list[Mapping[str, object]]:
        """Changes of the budget, whoever made them."""
        return [change._asdict() for controller in self._controllers for change in controller.changes]

    def _enter(self, job: Job) -> None:
        row, gate = job.row, self.gates[job.gateway]
        assert isinstance(row, TenantRow)
        tokens = tokens_of(row.prompt(), self.gateways[job.gateway].pool)
        answer = gate.ask(Ask(job.key, self._tenants.of(row.tenant), tokens), self.now)
        if answer.goes:
            self._went(job, tokens)
        elif answer.verdict != QUEUE:
            self._over(job, Status.REJECTED)

    def _went(self, job: Job, tokens: float) -> None:
        assert isinstance(job.row, TenantRow)
        self.admitted.append((self.now, job.row.tenant, tokens))
        super()._enter(job)

    def _over(self, job: Job, status: Status) -> None:
        super()._over(job, status)
        used = job.row.tokens + job.row.output if status is Status.FINISHED else 0.0
        gate = self.gates[job.gateway]
        gate.settle(job.key, used)
        self._let_go(job.gateway)

    def _let_go(self, number: int) -> None:
        gate = self.gates[number]
        for ticket, _ in gate.expired(self.now):
            self._over(self._jobs[ticket.key], Status.REJECTED)
        for ticket in gate.released(self.now):
            self.waits.append((self.now - ticket.arrived, ticket.tokens))
            self._went(self._jobs[ticket.key], ticket.tokens)

    def _trade(self, number: int) -> None:
        gate = self.gates[number]
        gate.take(self.board.trade(str(number), gate.asks(self.now), self.now), self.now)
        self._let_go(number)
        if self._alive:
            self._at(self.now + _TRADE, self._trade, number)

    def _look(self, _: None) -> None:
        for meter, controller, gate in zip(self._meters, self._controllers, self.gates, strict=True):
            reading = meter.look(self.now)
            change = controller.look(self.board.total, self.board.basis, reading, gate.limited, self.now)
            gate.limited = False
            if change is None:
                continue
            if self.board.propose(change.after, reading.basis, controller.least(change), self.now):
                controller.made(change)
        if self._alive:
            self._at(self.now + _LOOK, self._look)
