"""What is told of requests that wait: how many, how long, how that ended, and whether replicas ran dry meanwhile."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.holding import Holding
from extproc.io.histograms import Buckets

#: From what is hardly noticed to the longest wait there is by default.
_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class WaitingMetrics(Collector):
    """Read when scraped; pools that hold nothing by their settings have no series.

    Args:
        holding: what a gateway holds.
        registry: which these go to.
    """

    def __init__(self, holding: Holding, registry: CollectorRegistry) -> None:
        self._holding = holding
        self._seconds = Buckets(
            "kvsteer_held_seconds",
            "Seconds that requests waited in the gateway, of those that did.",
            _BUCKETS,
        )
        registry.register(self)

    def bound(self, waited: float, request_id: str = "") -> None:
        """A request was bound after so many seconds."""
        self._seconds.observe(waited, request_id)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        yield self._seconds.family()
        waits = CounterMetricFamily(
            "kvsteer_waits",
            "Requests by how waiting ended, or that it could not begin.",
            labels=["pool", "how"],
        )
        requests = GaugeMetricFamily("kvsteer_held_requests", "Requests that wait now.", labels=["pool"])
        size = GaugeMetricFamily(
            "kvsteer_held_bytes", "Bytes of their bodies, which Envoy keeps.", labels=["pool"]
        )
        time = CounterMetricFamily(
            "kvsteer_held_replica_seconds",
            "Replica-seconds while something waited, as far as the gateway knows; without prompt work: idle though "
            "a request that waits would be computed sooner there, spared as none would.",
            labels=["pool", "state"],
        )
        horizon = GaugeMetricFamily(
            "kvsteer_late_binding_horizon_seconds",
            "Prompt work ahead at which a replica counts as nearly free now.",
            labels=["pool"],
        )
        for name, hall in self._holding.halls.items():
            horizon.add_metric([name], hall.room.horizon)
            for how, count in hall.ended.items():
                waits.add_metric([name, how], count)
            requests.add_metric([name], hall.room.own)
            size.add_metric([name], hall.size)
            time.add_metric([name, "idle"], hall.idle)
            time.add_metric([name, "spared"], hall.spared)
            time.add_metric([name, "busy"], hall.seconds - hall.idle - hall.spared)
        yield from (waits, requests, size, time, horizon)
