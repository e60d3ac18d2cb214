"""How requests ended, as Prometheus metrics: true tokens, and whether caches held what was believed."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.core.ending import Ending
from extproc.core.exchange import Exchange
from extproc.core.pool import Pool
from extproc.core.usage.record import Usage
from extproc.io.histograms import Buckets
from extproc.io.metrics import Counts

_GAUGES = {
    "precision": "Share of a replica's predicted cached tokens that came true; absent before any was compared.",
    "scale": "What a predicted cached token of a replica counts for, 0 to 1; below 1 it is distrusted.",
    "believed_bytes": "Bytes of prompts that a replica's cache is believed to hold at most.",
}


#: From a whole prompt in the cache to what nobody waits for: TTFT objectives lie between 0.1 and 10 s.
_FIRST_TOKEN_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)

#: The end of an exchange of which nobody told anything.
_UNTOLD = Ending()

#: Kinds of tokens that a usage tells of, by the attributes of `Usage` and the labels of the metric.
_KINDS = ("input", "cached", "output")


class _Tokens:
    """Tokens of one pool; a kind of which nothing was told yet is None."""

    __slots__ = _KINDS

    def __init__(self) -> None:
        self.input: int | None = None
        self.cached: int | None = None
        self.output: int | None = None

    def add(self, usage: Usage) -> None:
        """Count what a usage tells."""
        if usage.input is not None:
            self.input = (self.input or 0) + usage.input
        if usage.cached is not None:
            self.cached = (self.cached or 0) + usage.cached
        if usage.output is not None:
            self.output = (self.output or 0) + usage.output


class OutcomeMetrics(Collector):
    """Counts endings; reads the rest of the pools when scraped, so that a replica that left leaves no series."""

    def __init__(self, pools: Sequence[Pool], registry: CollectorRegistry) -> None:
        self._pools = pools
        #: By pool, who ended it, hundreds of the status and what the usage was like: counted once a request, and told
        #: apart when a scrape asks.
        self._ended: dict[tuple[str, str, int, str], int] = {}
        self._tokens: dict[str, _Tokens] = {}
        self._log = Counts(
            "kvsteer_log_entries", "Entries of Envoy's access log by what became of them.", ["result"]
        )
        self._first = Buckets(
            "kvsteer_first_token_seconds",
            "Seconds from a request's arrival, waiting included, to its first token, where that was told.",
            _FIRST_TOKEN_BUCKETS,
            "pool",
        )
        registry.register(self)

    def log_entry(self, result: str) -> None:
        """Something became of an entry of the access log: a word of docs/metrics.md."""
        self._log.values[(result,)] += 1.0

    def ended(self, exchange: Exchange) -> None:
        """A stream is over."""
        decision, ending, ended = exchange.decision, exchange.ending or _UNTOLD, self._ended
        if decision is None:
            return
        pool = decision.pool.name
        # What the gateway refused is told by kvsteer_exchanges_total; here are replicas' statuses, and Envoy's.
        status = ending.status if decision.replica is not None else None
        key = pool, ending.by, (status or 0) // 100, ending.verdict
        ended[key] = ended.get(key, 0) + 1
        if ending.first_token is not None:
            first = ending.first_token - decision.at + exchange.waited
            self._first.observe(first, exchange.request_id, pool)
        usage = ending.usage
        if usage is not None:
            tokens = self._tokens.get(pool)
            if tokens is None:
                tokens = self._tokens[pool] = _Tokens()
            tokens.add(usage)

    def _counted(self) -> Iterator[Metric]:
        """What is counted once a request, as counters."""
        endings = Counts(
            "kvsteer_endings",
            "Decided exchanges by who ended them and the class of their status.",
            ["pool", "by", "status"],
        )
        usage = Counts("kvsteer_usage", "Usage records by what they were like.", ["verdict"])
        settled = Counts("kvsteer_settled_tokens", "Tokens as engines' usage counted them.", ["pool", "kind"])
        for (pool, by, hundreds, verdict), count in self._ended.items():
            endings.add((pool, by, f"{hundreds}xx" if hundreds else "unknown"), count)
            usage.add((verdict,), count)
        for pool, tokens in self._tokens.items():
            for kind in _KINDS:
                if (total := getattr(tokens, kind)) is not None:
                    settled.add((pool, kind), total)
        yield from (endings.family(), settled.family(), usage.family())

    def collect(self) -> Iterable[Metric]:
        """As Prometheus' library wants it."""
        yield from self._counted()
        yield self._log.family()
        yield self._first.family()
        retried = Counts(
            "kvsteer_retried", "Exchanges that another replica served than the one chosen.", ["pool"]
        )
        failed = Counts(
            "kvsteer_failed_tries",
            "Tries that a replica failed and Envoy repeated elsewhere.",
            ["pool", "replica"],
        )
        gauges = {
            name: GaugeMetricFamily(f"kvsteer_replica_cache_{name}", text, labels=["pool", "replica"])
            for name, text in _GAUGES.items()
        }
        for pool in self._pools:
            retried.add((pool.name,), pool.retried)
            for replica in pool.replicas:
                if replica.failed_tries:
                    failed.add((pool.name, replica.address), replica.failed_tries)
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
        yield failed.family()
        yield from gauges.values()
