"""What the fast transport counts, as Prometheus metrics; plain numbers until a scrape asks."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.io.transports.fast import FastTransport
from extproc.io.transports.h2.limits import REASONS


class TransportMetrics(Collector):
    """Refusals by reason, connections, bytes of unfinished messages."""

    def __init__(self, transport: FastTransport) -> None:
        self._transport = transport

    def collect(self) -> Iterator[Metric]:
        """As Prometheus' library asks."""
        shared = self._transport.shared
        refused = CounterMetricFamily(
            "kvsteer_transport_refusals",
            "Connections, streams and messages that the fast transport refused, by the limit they hit.",
            labels=["reason"],
        )
        for reason in REASONS:
            refused.add_metric([reason], shared.refusals.counts[reason])
        yield refused
        yield GaugeMetricFamily(
            "kvsteer_transport_connections",
            "Connections to the fast transport now.",
            value=self._transport.connected,
        )
        yield GaugeMetricFamily(
            "kvsteer_transport_buffered_bytes",
            "Bytes of messages that have not come whole yet.",
            value=shared.budget.held,
        )
