"""How requests ended, as Prometheus metrics: true tokens, and whether caches held what was believed."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.io.metrics import Counts

_GAUGES = {
    "precision": "Share of a replica's predicted cached tokens that came true; absent before any was compared.",
    "scale": "What a predicted cached token of a replica counts for, 0 to 1; below 1 it is distrusted.",
    "believed_bytes": "Bytes of prompts that a replica's cache is believed to hold at most.",
}


class OutcomeMetrics(Collector):
    """Counts endings; reads the rest of the pools when scraped, so that a replica that left leaves no series."""

    def __init__(self, pools: Sequence[Pool], registry: CollectorRegistry) -> None:
        self._pools = pools
        self._endings = Counts(
            "kvsteer_endings",
            "Decided exchanges by who ended them and the class of their status.",
            ["pool", "by", "status"],
        )
        self._tokens = Counts(
            "kvsteer_settled_tokens", "Tokens as engines' usage counted them.", ["pool", "kind"]
        )
        self._usage = Counts("kvsteer_usage", "Usage records by what they were like.", ["verdict"])
        self._log = Counts(
            "kvsteer_log_entries", "Entries of Envoy's access log by what became of them.", ["result"]
        )
        registry.register(self)

    def log_entry(self, result: str) -> None:
        """Something became of an entry of the access log: a word of docs/metrics.md."""
        self._log.add((result,))

    def ended(self, exchange: Exchange) -> None:
        """A stream is over."""
        decision, ending = exchange.decision, exchange.ending or Ending()
        if decision is None:
            return
        pool = decision.pool.name
        self._endings.add((pool, ending.by, f"{ending.status // 100}xx" if ending.status else "unknown"))
        self._usage.add((ending.verdict,))
        usage = ending.usage
        if usage is not None:
            told = (("input", usage.input), ("cached", usage.cached), ("output", usage.output))
            for kind, tokens in told:
                if tokens is not None:
                    self._tokens.add((pool, kind), tokens)

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        for counts in (self._endings, self._tokens, self._usage, self._log):
            yield counts.family()
        retried = Counts(
            "kvsteer_retried", "Exchanges that another replica served than the one chosen.", ["pool"]
        )
        gauges = {
            name: GaugeMetricFamily(f"kvsteer_replica_cache_{name}", text, labels=["pool", "replica"])
            for name, text in _GAUGES.items()
        }
        for pool in self._pools:
            retried.add((pool.name,), pool.retried)
            if pool.feedback is None:
                continue
            for replica in pool.replicas:
                view = pool.feedback.truth.view(replica.slot)
                numbers = (
                    ("precision", view.precision),
                    ("scale", view.scale),
                    ("believed_bytes", view.believed),
                )
                for name, value in numbers:
                    if value is not None:
                        gauges[name].add_metric([pool.name, replica.address], value)
        yield retried.family()
        yield from gauges.values()
