"""LoRA adapters as Prometheus metrics, read when scraped; labels come from the configuration and closed sets."""

from collections.abc import Iterable, Sequence
from itertools import product

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.pool import Pool
from extproc.engines.adapter_calls import RESULTS


class AdapterMetrics(Collector):
    """Reads the pools' adapters; shows no samples where no pool looks at them."""

    def __init__(self, pools: Sequence[Pool], registry: CollectorRegistry) -> None:
        self._pools = pools
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        yield from self._known()
        yield from self._loaded()

    def _known(self) -> Iterable[Metric]:
        """What is known of adapters, and how requests found them."""
        bound = CounterMetricFamily(
            "kvsteer_adapter_requests",
            "Requests for a LoRA adapter, by how their replica stood to it when they were bound.",
            labels=["pool", "tier"],
        )
        known = GaugeMetricFamily("kvsteer_adapters", "LoRA adapters that are known.", labels=["pool"])
        listed = GaugeMetricFamily(
            "kvsteer_adapters_listed", "Pairs of a replica and a LoRA adapter that it lists.", labels=["pool"]
        )
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
            listed.add_metric([pool.name], pool.adapters.listings)
            load.add_metric([pool.name], pool.adapters.load)
        yield from (bound, known, listed, load)

    def _loaded(self) -> Iterable[Metric]:
        """Of pools whose adapters are loaded and unloaded."""
        calls = CounterMetricFamily(
            "kvsteer_adapter_calls",
            "Calls of this gateway that load or unload a LoRA adapter.",
            labels=["pool", "call", "result"],
        )
        waited = CounterMetricFamily(
            "kvsteer_adapter_waits",
            "Requests that waited for a LoRA adapter, by how waiting ended.",
            labels=["pool", "how"],
        )
        waiting = GaugeMetricFamily(
            "kvsteer_adapter_waiting", "Requests that wait for a LoRA adapter.", labels=["pool"]
        )
        for pool in self._pools:
            if pool.adapters is None or (loading := pool.adapters.loading) is None:
                continue
            for call, result in product(("load", "unload"), RESULTS):
                calls.add_metric([pool.name, call, result], loading.calls[call, result])
            for how, count in loading.waits.ended.items():
                waited.add_metric([pool.name, how], count)
            waiting.add_metric([pool.name], len(loading.waits))
        yield from (calls, waited, waiting)
