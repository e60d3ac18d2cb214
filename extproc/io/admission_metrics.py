"""Admission as Prometheus metrics, read when scraped; tenants' names come from the configuration, so they are few."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.admission.scaling import coldest_first
from extproc.io.admission import Admission, PoolSide

_POOL_GAUGES = (
    ("budget_tokens", "Tokens in flight that a pool's requests may take, over all gateways."),
    ("capacity_tokens", "Tokens in flight that a pool bears before prompts queue, given or learned."),
    ("runtime_tokens", "Tokens in flight that a pool carries: KV held, generated, prefill waiting."),
    ("queueing_share", "Share of replicas on which prompts queue."),
    ("waiting_requests", "Requests that wait for room at this gateway."),
    ("waiting_tokens", "Tokens of them."),
    ("alone", "1 while this gateway spends its fair part of the last known budget, as Redis can't be asked."),
)
_TENANT_GAUGES = (
    ("tenant_used_tokens", "Tokens in flight of a tenant through this gateway."),
    ("tenant_leased_tokens", "Tokens in flight that this gateway may let a tenant have."),
)
_SCALE_GAUGES = (
    ("demand_tokens", "Tokens carried, waiting and refused, averaged over half a minute."),
    ("growth_tokens_per_second", "How fast that grows."),
    ("recommended_replicas", "Replicas that a pool should have in two minutes."),
)


class AdmissionMetrics(Collector):
    """Reads a gateway's admission; shows no samples where it is off."""

    def __init__(self, admission: Admission | None, registry: CollectorRegistry) -> None:
        self._admission = admission
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        sides = self._admission.sides if self._admission is not None else []
        yield _answers(sides)
        yield from _tokens(sides)
        yield _changes(sides)
        errors = CounterMetricFamily(
            "kvsteer_admission_trade_errors", "Trades of leases that Redis did not answer."
        )
        if self._admission is not None:
            errors.add_metric([], self._admission.trade_errors)
        yield errors
        yield from _pools(sides)
        yield from _tenants(sides)
        yield from _scaling(sides)


def _answers(sides: Iterable[PoolSide]) -> Metric:
    family = CounterMetricFamily(
        "kvsteer_admission_answers",
        "What admission said, and why.",
        labels=["pool", "verdict", "reason", "tenant"],
    )
    for side in sides:
        for labels, count in side.gate.counts.answers.items():
            family.add_metric([side.pool.name, *labels], count)
    return family


def _tokens(sides: Iterable[PoolSide]) -> Iterable[Metric]:
    admitted = CounterMetricFamily(
        "kvsteer_admission_admitted_tokens",
        "Tokens reserved by requests that went.",
        labels=["pool", "tenant"],
    )
    settled = CounterMetricFamily(
        "kvsteer_admission_settled_tokens", "Tokens that they really used.", labels=["pool", "tenant"]
    )
    rejected = CounterMetricFamily(
        "kvsteer_admission_rejected_tokens", "Tokens of requests that were rejected.", labels=["pool"]
    )
    for side in sides:
        rejected.add_metric([side.pool.name], side.gate.counts.rejected_tokens)
        for name, account in side.gate.budget.accounts.items():
            admitted.add_metric([side.pool.name, name], account.admitted)
            settled.add_metric([side.pool.name, name], account.settled)
    return admitted, settled, rejected


def _changes(sides: Iterable[PoolSide]) -> Metric:
    family = CounterMetricFamily(
        "kvsteer_admission_budget_changes", "Changes of a pool's budget made here.", labels=["pool", "cause"]
    )
    for side in sides:
        for cause, count in side.changes.items():
            family.add_metric([side.pool.name, cause], count)
    return family


def _pools(sides: Iterable[PoolSide]) -> Iterable[Metric]:
    families = [
        GaugeMetricFamily(f"kvsteer_admission_{name}", text, labels=["pool"]) for name, text in _POOL_GAUGES
    ]
    for side in sides:
        reading, gate = side.reading, side.gate
        values: list[float | None] = [
            gate.budget.total,
            reading and reading.capacity,
            reading and reading.runtime,
            reading and reading.queueing,
            len(gate.queue),
            gate.queue.tokens,
            gate.budget.is_alone,
        ]
        for family, value in zip(families, values, strict=True):
            if value is not None:
                family.add_metric([side.pool.name], value)
    return families


def _tenants(sides: Iterable[PoolSide]) -> Iterable[Metric]:
    families = [
        GaugeMetricFamily(f"kvsteer_admission_{name}", text, labels=["pool", "tenant"])
        for name, text in _TENANT_GAUGES
    ]
    for side in sides:
        for name, account in side.gate.budget.accounts.items():
            for family, value in zip(families, (account.used, account.hold), strict=True):
                family.add_metric([side.pool.name, name], value)
    return families


def _scaling(sides: Iterable[PoolSide]) -> Iterable[Metric]:
    families = [
        GaugeMetricFamily(f"kvsteer_scale_{name}", text, labels=["pool"]) for name, text in _SCALE_GAUGES
    ]
    rank = GaugeMetricFamily(
        "kvsteer_scale_in_rank",
        "Order in which replicas would be missed least; 0 first.",
        labels=["pool", "replica"],
    )
    for side in sides:
        if side.reading is not None:
            values = (side.trend.demand, side.trend.growth, side.trend.replicas(side.reading))
            for family, value in zip(families, values, strict=True):
                family.add_metric([side.pool.name], value)
        for place, address in enumerate(coldest_first(side.pool)):
            rank.add_metric([side.pool.name, address], place)
    return [*families, rank]
