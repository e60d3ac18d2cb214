"""LoRA adapters as Prometheus metrics, read when scraped; labels come from the configuration and a closed set."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.pool import Pool


class AdapterMetrics(Collector):
    """Reads the pools' adapters; shows no samples where no pool looks at them."""

    def __init__(self, pools: Sequence[Pool], registry: CollectorRegistry) -> None:
        self._pools = pools
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        bound = CounterMetricFamily(
            "kvsteer_adapter_requests",
            "Requests for a LoRA adapter, by how their replica stood to it when they were bound.",
            labels=["pool", "tier"],
        )
        known = GaugeMetricFamily("kvsteer_adapters", "LoRA adapters that are known.", labels=["pool"])
        load = GaugeMetricFamily(
            "kvsteer_adapter_load_seconds",
            "What loading a LoRA adapter is believed to take.",
            labels=["pool"],
        )
        for pool in self._pools:
            if pool.adapters is None:
                continue
            for tier, count in pool.adapters.bound.items():
                bound.add_metric([pool.name, tier], count)
            known.add_metric([pool.name], len(pool.adapters.names))
            load.add_metric([pool.name], pool.adapters.load)
        yield from (bound, known, load)
