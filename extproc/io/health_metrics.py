"""What alerts ask beyond counts: why replicas are out, how fast they are taken to be, who holds leases, memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.core.breaker import CLOSED
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.factors import silent

_GAUGES = (
    (
        "share",
        "Share 0..1 of the requests for which a replica is a candidate: below 1 while warming up or slow.",
    ),
    ("slow", "1 while a replica is found slow beside the others of its pool."),
    ("breaker_open", "1 while a replica's breaker is open or lets only one request at a time try."),
    ("sample_age_seconds", "Seconds since the last sample of a replica's metrics; absent before the first."),
    ("prefill_tokens_per_second", "Prompt tokens a second that a replica is taken to compute, as learned."),
    ("decode_tokens_per_second", "Output tokens a second that a replica is taken to generate, as learned."),
)


class HealthMetrics(Collector):
    """Reads replicas, leases and the process when scraped.

    Args:
        pools: the gateway's.
        leases: as `Leases.shown`; a function that returns nothing where there are none.
        has_redis: whether `redis.url` is set.
        registry: which these go to.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        leases: Callable[[], Iterable[Mapping[str, Any]]],
        has_redis: bool,
        registry: CollectorRegistry,
    ) -> None:
        self._pools, self._leases, self._has_redis = pools, leases, has_redis
        registry.register(self)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        yield _build()
        yield GaugeMetricFamily(
            "kvsteer_redis_configured", "1 where a Redis is configured.", value=float(self._has_redis)
        )
        yield from _replicas(self._pools)
        speed = GaugeMetricFamily(
            "kvsteer_pool_prefill_tokens_per_second",
            "Prompt tokens a second of one replica, by the configuration.",
            labels=["pool"],
        )
        for pool in self._pools:
            speed.add_metric([pool.name], pool.traits.prefill_speed)
        yield speed
        yield _unknown_factors(self._pools)
        held = GaugeMetricFamily(
            "kvsteer_lease_held", "1 for a lease that this gateway holds, 0 for others.", labels=["lease"]
        )
        for lease in self._leases():
            held.add_metric([lease["lease"]], float(lease["held"]))
        yield held


def _unknown_factors(pools: Iterable[Pool]) -> Metric:
    family = GaugeMetricFamily(
        "kvsteer_factor_unknown",
        "Replicas that were heard and don't tell the metric of their pool's factor.",
        labels=["pool"],
    )
    for pool in pools:
        if pool.traits.factor is not None:
            family.add_metric([pool.name], float(silent(pool)))
    return family


def _build() -> Metric:
    family = GaugeMetricFamily("kvsteer_build_info", "1; the label is the release.", labels=["version"])
    family.add_metric([__version__], 1.0)
    return family


def _replicas(pools: Iterable[Pool]) -> Iterator[Metric]:
    now = clock.monotonic()
    families = {
        name: GaugeMetricFamily(f"kvsteer_replica_{name}", text, labels=["pool", "replica"])
        for name, text in _GAUGES
    }
    excluded = GaugeMetricFamily(
        "kvsteer_replica_excluded",
        "1 while a replica may not be chosen, and why; absent while it may.",
        labels=["pool", "replica", "reason"],
    )
    for pool in pools:
        for replica in pool.replicas:
            for name, value in _values(replica, now):
                families[name].add_metric([pool.name, replica.address], value)
            if (reason := replica.excluded(now)) is not None:
                excluded.add_metric([pool.name, replica.address, reason], 1.0)
    yield from families.values()
    yield excluded


def _values(replica: Replica, now: float) -> Iterator[tuple[str, float]]:
    yield "share", replica.share
    yield "slow", float(replica.pace.slow)
    yield "breaker_open", float(replica.breaker.state != CLOSED)
    if replica.sample is not None:
        yield "sample_age_seconds", max(now - replica.sample.at, 0.0)
    yield "prefill_tokens_per_second", replica.prefill_speed
    yield "decode_tokens_per_second", replica.decode_speed
