"""Large bodies as Prometheus metrics: what became of them."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.io.reading.reader import Reader


class ReadingMetrics(Collector):
    """Read when scraped."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        bodies = CounterMetricFamily(
            "kvsteer_large_bodies", "Large request bodies by what became of them.", labels=["how"]
        )
        for how, count in self._reader.counts.items():
            bodies.add_metric([how], count)
        waiting = GaugeMetricFamily(
            "kvsteer_large_bodies_waiting_bytes", "Bytes of those that wait to be read."
        )
        waiting.add_metric([], self._reader.waiting)
        yield bodies
        yield waiting
