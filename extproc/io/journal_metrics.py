"""The journal's counts as Prometheus metrics, read when scraped."""

from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.io.journal_counts import DELAYS
from extproc.io.sharing import Sharing


class JournalMetrics(Collector):
    """Reads a gateway's sharing."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        sharing, counts, shared = self._sharing, self._sharing.counts, self._sharing.shared
        yield _histogram(
            "kvsteer_journal_delay_seconds",
            "From when an own batch was made until it came back from Redis.",
            counts.delays,
            counts.delay_sum,
        )
        yield _counter("kvsteer_journal_batches", "Batches written and read.", "way", counts.batches)
        yield _counter("kvsteer_journal_bytes", "Bytes of them.", "way", counts.bytes)
        yield _counter("kvsteer_journal_dropped", "News that were never sent.", "kind", sharing.dropped)
        yield _counter(
            "kvsteer_journal_refused", "Batches that could not be used.", "reason", sharing.refused
        )
        yield CounterMetricFamily(
            "kvsteer_journal_gaps", "Batches of others that never came.", value=shared.gaps
        )
        yield CounterMetricFamily(
            "kvsteer_journal_unknown",
            "News of replicas not known here, or of another incarnation.",
            value=shared.unknown,
        )
        yield GaugeMetricFamily(
            "kvsteer_journal_peers", "Other gateways that are heard.", value=len(shared.peers)
        )
        yield GaugeMetricFamily("kvsteer_journal_queue", "News that wait.", value=len(sharing.outbox))
        yield GaugeMetricFamily(
            "kvsteer_others_requests_in_flight",
            "Requests of other gateways on replicas known here.",
            value=shared.requests,
        )


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([word], value)
    return family


def _histogram(name: str, text: str, counts: list[int], total: float) -> Metric:
    names = [str(bound) for bound in DELAYS] + ["+Inf"]
    family = HistogramMetricFamily(name, text)
    family.add_metric([], list(zip(names, accumulate(counts), strict=True)), total)
    return family
