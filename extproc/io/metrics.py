"""Prometheus metrics. Every label comes from a closed set or from the configuration, never from a request."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector

from extproc.core.decide import Decision
from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.steering import Steering

#: From 10 us, a quick decision, to 1 s, where Envoy stops waiting.
_DECISION_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.1, 1.0)
_SHARE_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class Metrics:
    """Counters fed by the watcher, and gauges read from the state when scraped."""

    def __init__(self, steering: Steering, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._exchanges = Counter(
            "kvsteer_exchanges",
            "Exchanges by how they were dealt with.",
            ["outcome", "why"],
            registry=registry,
        )
        self._picks = Counter(
            "kvsteer_picks", "Decisions for a replica.", ["pool", "replica", "reason"], registry=registry
        )
        self._troubles = Counter(
            "kvsteer_decision_troubles",
            "Decisions made although something was out of order.",
            ["pool", "trouble"],
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "kvsteer_prompt_tokens", "Prompt tokens routed, as estimated.", ["pool"], registry=registry
        )
        self._cached_tokens = Counter(
            "kvsteer_predicted_cached_tokens",
            "Prompt tokens expected to be found in the chosen replica's cache.",
            ["pool"],
            registry=registry,
        )
        self._seconds = Histogram(
            "kvsteer_decision_seconds",
            "Gateway's own work on the message that settled an exchange.",
            registry=registry,
            buckets=_DECISION_BUCKETS,
        )
        self._hit = Histogram(
            "kvsteer_predicted_hit_share",
            "Share of a prompt expected in the chosen replica's cache.",
            ["pool"],
            registry=registry,
            buckets=_SHARE_BUCKETS,
        )
        self.open_streams = Gauge("kvsteer_open_streams", "Exchanges open now.", registry=registry)
        self.scrape_failures = Counter(
            "kvsteer_scrape_failures", "Scrapes of replicas that failed.", ["reason"], registry=registry
        )
        self.task_failures = Counter(
            "kvsteer_task_failures",
            "Background tasks that failed and were restarted.",
            ["task"],
            registry=registry,
        )
        self.redis_errors = Counter(
            "kvsteer_redis_errors", "Redis calls that failed or ran out of time.", registry=registry
        )
        self.redis_up = Gauge(
            "kvsteer_redis_up",
            "1 while Redis answers, 0 while it does not, absent without one.",
            registry=registry,
        )
        # Finding a labelled child costs more than counting; the hot ones are kept. Labels are a closed set.
        self._children: dict[tuple[str, ...], Counter] = {}
        registry.register(_StateCollector(steering))

    def settled(self, exchange: Exchange, seconds: float) -> None:
        """Count an exchange that was decided, refused or let go."""
        self._child(self._exchanges, exchange.outcome, exchange.why).inc()
        self._seconds.observe(seconds)
        decision = exchange.decision
        if decision is not None:
            self._decided(decision)

    def _decided(self, decision: Decision) -> None:
        pool = decision.pool.name
        if decision.trouble:
            self._child(self._troubles, pool, decision.trouble).inc()
        if decision.replica is None:
            return
        self._child(self._picks, pool, decision.replica.address, decision.reason).inc()
        if decision.tokens:
            self._child(self._prompt_tokens, pool).inc(decision.tokens)
            self._child(self._cached_tokens, pool).inc(decision.cached)
            self._hit.labels(pool).observe(decision.cached / decision.tokens)

    def _child(self, counter: Counter, *labels: str) -> Counter:
        key = (counter._name, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*labels)
        return child

    def forget_replica(self, pool: str, address: str) -> None:
        """Drop the series of a replica that left."""
        for key in [k for k in self._children if k[:3] == (self._picks._name, pool, address)]:
            del self._children[key]
            self._picks.remove(*key[1:])


_REPLICA_GAUGES: tuple[tuple[str, str], ...] = (
    ("headroom", "Headroom score 0..1; absent while unknown."),
    ("requests_in_flight", "Requests sent to a replica and not ended, by this gateway."),
    ("tokens_in_flight", "Prompt and expected output tokens of them."),
    ("backlog_tokens", "Prompt tokens sent and believed not yet computed."),
    ("index_entries", "Prefix hashes a replica is believed to hold."),
    ("candidate", "1 while a replica may be chosen."),
)


class _StateCollector(PrometheusCollector):
    """Reads replicas when scraped, so that a replica that left leaves no series behind."""

    def __init__(self, steering: Steering) -> None:
        self._steering = steering

    def collect(self) -> Iterable[Metric]:
        families = {
            name: GaugeMetricFamily(f"kvsteer_replica_{name}", text, labels=["pool", "replica"])
            for name, text in _REPLICA_GAUGES
        }
        for pool in self._steering.pools:
            for replica in pool.replicas:
                for name, value in _replica_values(replica, pool.index.count(replica.slot)):
                    families[name].add_metric([pool.name, replica.address], value)
        yield from families.values()
        ledger = GaugeMetricFamily("kvsteer_ledger_tokens", "Tokens charged and not released.")
        ledger.add_metric([], self._steering.ledger.tokens)
        yield ledger


def _replica_values(replica: Replica, entries: int) -> Iterator[tuple[str, float]]:
    if replica.headroom is not None:
        yield "headroom", replica.headroom
    yield "requests_in_flight", replica.books.requests
    yield "tokens_in_flight", replica.books.tokens
    yield "backlog_tokens", replica.books.pending
    yield "index_entries", entries
    yield "candidate", 0 if replica.barred else 1
