"""Versions of models, mirrors, ranks and prompts computed apart as Prometheus metrics, read when scraped.

Labels come from the configuration and closed sets.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.steering import Steering
from extproc.core.versions import shares
from extproc.io.version_desk import VersionDesk


class VersionMetrics(Collector):
    """Reads a gateway's versions; shows no samples where no model has several."""

    def __init__(self, steering: Steering, desk: VersionDesk, registry: CollectorRegistry) -> None:
        self._steering = steering
        self._desk = desk
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        labels = ["model", "version"]
        share = GaugeMetricFamily(
            "kvsteer_version_share", "Share of the conversations that a version is to get.", labels=labels
        )
        ended = CounterMetricFamily(
            "kvsteer_version_requests", "Requests of a version whose end is known.", labels=labels
        )
        failed = CounterMetricFamily("kvsteer_version_errors", "Of them, those that failed.", labels=labels)
        back = CounterMetricFamily(
            "kvsteer_version_step_backs", "Versions that the guard took back.", labels=["model"]
        )
        for model, weights in self._steering.router.weights.items():
            for version, part in shares(weights).items():
                share.add_metric([model or "*", version], part)
                tally = self._steering.watch.tallies.get(model, {}).get(version)
                ended.add_metric([model or "*", version], tally.requests if tally else 0)
                failed.add_metric([model or "*", version], tally.errors if tally else 0)
            back.add_metric([model or "*"], self._desk.step_backs.get(model, 0))
        yield from (share, ended, failed, back, self._mirrored(), self._handed_over(), self._ranked())

    def _handed_over(self) -> Metric:
        family = CounterMetricFamily(
            "kvsteer_prefill",
            "Requests by where their prompts are computed, and why.",
            labels=["pool", "how"],
        )
        for pool in self._steering.pools:
            if pool.handover is not None:
                for how, count in pool.handover.counts.items():
                    family.add_metric([pool.name, how], count)
        return family

    def _ranked(self) -> Metric:
        family = CounterMetricFamily(
            "kvsteer_ranks", "Requests by how their data-parallel rank was chosen.", labels=["pool", "how"]
        )
        for pool in self._steering.pools:
            if pool.ranks is not None:
                for how, count in pool.ranks.counts.items():
                    family.add_metric([pool.name, how], count)
        return family

    def _mirrored(self) -> Metric:
        family = CounterMetricFamily(
            "kvsteer_mirrored", "Requests that Envoy was told to send to another pool too.", labels=["pool"]
        )
        for pool in self._steering.pools:
            if pool.mirror is not None:
                family.add_metric([pool.name], pool.mirror.count)
        return family
