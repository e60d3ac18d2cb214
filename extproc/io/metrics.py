"""Prometheus metrics. Every label comes from a closed set or from the configuration, never from a request."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as PrometheusCollector

from extproc.core.exchange import Exchange
from extproc.core.fleet import Replica
from extproc.core.pool import Pool
from extproc.core.shadow import Opinion
from extproc.core.steering import Steering
from extproc.io import clock
from extproc.io.histograms import Buckets

#: From 10 us, a quick decision, to 1 s, where Envoy stops waiting.
_DECISION_BUCKETS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.1, 1.0)
_SHARE_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class Counts:
    """Counters of one name, plain numbers until a scrape asks: a tenth of what a locked Counter costs."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        #: By labels, which come from closed sets or the configuration; that bounds the map.
        self.values: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Count."""
        self.values[labels] += amount

    def family(self) -> Metric:
        """As Prometheus' library wants it."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


#: Counters of the hot path: name, help, labels. `Metrics` takes them apart in this order.
_HOT_COUNTS: tuple[tuple[str, str, list[str]], ...] = (
    ("exchanges", "Exchanges by how they were dealt with.", ["outcome", "why"]),
    ("picks", "Decisions for a replica.", ["pool", "replica", "reason"]),
    ("decision_troubles", "Decisions made although something was out of order.", ["pool", "trouble"]),
    (
        "shadow_decisions",
        "Decisions of shadow policies: agrees is yes, no, or failed.",
        ["pool", "policy", "agrees"],
    ),
    (
        "shadow_predicted_seconds",
        "Charged cost of what was chosen and of what the shadow would have chosen, where both are known.",
        ["pool", "policy", "choice"],
    ),
)

#: Tokens of decisions by pool: name and help, in the order of `_Tokens`.
_TOKENS: tuple[tuple[str, str], ...] = (
    ("prompt_tokens", "Prompt tokens routed, as estimated."),
    ("predicted_cached_tokens", "Prompt tokens expected to be found in the chosen replica's cache."),
)

#: Histograms of the hot path: name, help, bounds.
_HOT_BUCKETS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("decision_seconds", "Gateway's own work on the message that settled an exchange.", _DECISION_BUCKETS),
    ("predicted_hit_share", "Share of a prompt expected in the chosen replica's cache.", _SHARE_BUCKETS),
)

#: Counters of what is rare, which may cost what the library's own cost: name, help, labels.
_RARE: tuple[tuple[str, str, list[str]], ...] = (
    ("scrape_failures", "Scrapes of replicas that failed.", ["reason"]),
    (
        "reports",
        "Reports of engines by what became of them; way is http or redis.",
        ["way", "result"],
    ),
    ("task_failures", "Background tasks that failed and were restarted.", ["task"]),
    (
        "policy_versions_refused",
        "Versions of policy settings that this gateway could not use, so that it kept what it had.",
        ["pool"],
    ),
    (
        "internal_errors",
        "Exchanges on which the gateway itself failed; they went on unsteered.",
        [],
    ),
    ("redis_errors", "Redis calls that failed or ran out of time.", []),
)


class _Tokens:
    """Tokens of one pool's decisions."""

    __slots__ = ("cached", "prompt")

    def __init__(self) -> None:
        self.prompt = self.cached = 0.0


class _TokenCounts:
    """Those of each pool that had some."""

    def __init__(self) -> None:
        self.pools: defaultdict[str, _Tokens] = defaultdict(_Tokens)

    def families(self) -> Iterator[Metric]:
        """As Prometheus' library wants them."""
        for (name, text), counted in zip(_TOKENS, ("prompt", "cached"), strict=True):
            family = CounterMetricFamily(f"kvsteer_{name}", text, labels=["pool"])
            for pool, tokens in self.pools.items():
                family.add_metric([pool], getattr(tokens, counted))
            yield family


class Metrics:
    """Counted on the hot path as plain numbers; the rest, which is rare, with Prometheus' own types."""

    def __init__(self, steering: Steering, registry: CollectorRegistry) -> None:
        self.registry = registry
        counts = [Counts(f"kvsteer_{name}", text, labels) for name, text, labels in _HOT_COUNTS]
        self._exchanges, self._picks, self._troubles, self._shadow, self._shadow_seconds = counts
        self._tokens = _TokenCounts()
        buckets = [Buckets(f"kvsteer_{name}", text, bounds) for name, text, bounds in _HOT_BUCKETS]
        self._seconds, self._hit = (each.row() for each in buckets)
        rare = {
            name: Counter(f"kvsteer_{name}", text, labels, registry=registry) for name, text, labels in _RARE
        }
        self.scrape_failures = rare["scrape_failures"]
        self.reports = rare["reports"]
        self.task_failures = rare["task_failures"]
        self.versions_refused = rare["policy_versions_refused"]
        self.internal_errors = rare["internal_errors"]
        self.redis_errors = rare["redis_errors"]
        self.open_streams = Gauge("kvsteer_open_streams", "Exchanges open now.", registry=registry)
        self.redis_up = Gauge(
            "kvsteer_redis_up", "1 while state is shared through Redis, 0 while it is not.", registry=registry
        )
        registry.register(_StateCollector(steering, (*counts, *buckets), self._tokens))

    def settled(self, exchange: Exchange, seconds: float) -> None:
        """Count an exchange that was decided, refused or let go."""
        self._exchanges.values[exchange.outcome, exchange.why] += 1.0
        self._seconds.observe(seconds, exchange.request_id)
        decision = exchange.decision
        if decision is None:
            return
        pool, replica, prompt = decision.pool.name, decision.replica, decision.tokens
        if decision.trouble:
            self._troubles.add((pool, decision.trouble))
        if replica is None:
            return
        self._picks.values[pool, replica.address, decision.reason] += 1.0
        if prompt:
            tokens, cached = self._tokens.pools[pool], decision.cached
            tokens.prompt += prompt
            tokens.cached += cached
            self._hit.observe(cached / prompt)
        if decision.shadow is not None:
            self._looked(pool, decision.shadow)

    def _looked(self, pool: str, opinion: Opinion) -> None:
        agrees = "failed" if opinion.replica is None else "yes" if opinion.agrees else "no"
        self._shadow.add((pool, opinion.policy, agrees))
        if opinion.seconds is not None and opinion.chosen_seconds is not None:
            self._shadow_seconds.add((pool, opinion.policy, "shadow"), opinion.seconds)
            self._shadow_seconds.add((pool, opinion.policy, "chosen"), opinion.chosen_seconds)

    @property
    def outcomes(self) -> Mapping[tuple[str, ...], float]:
        """Exchanges so far by outcome and why, as words of docs/metrics.md."""
        return self._exchanges.values

    def shadow_seen(self, pool: str, policy: str) -> dict[str, float]:
        """What a pool's shadow policy said so far: decisions by agreement, and seconds by charged cost, summed."""
        said, seconds = self._shadow.values, self._shadow_seconds.values
        return {
            **{agrees: said.get((pool, policy, agrees), 0.0) for agrees in ("yes", "no", "failed")},
            **{
                f"{choice}_seconds": seconds.get((pool, policy, choice), 0.0)
                for choice in ("shadow", "chosen")
            },
        }

    def forget_replicas(self, pool: str, addresses: Collection[str]) -> None:
        """Drop the series of replicas that left."""
        gone = {(pool, address) for address in addresses}
        for labels in [labels for labels in self._picks.values if labels[:2] in gone]:
            del self._picks.values[labels]


class _Exposed(Protocol):
    def family(self) -> Metric: ...


#: How well prompt work ahead was predicted: sums by what told the truth.
_BACKLOG_SUMS: tuple[tuple[str, str], ...] = (
    ("news", "Times that first tokens or counters showed how far a replica is with its prompts."),
    ("off_seconds", "Seconds that a replica's predicted prompt work was off, summed, whatever its sign."),
    ("seen_seconds", "Seconds that it truly was, summed: off by seen is the mean relative error."),
)

_REPLICA_GAUGES: tuple[tuple[str, str], ...] = (
    ("headroom", "Headroom score 0..1; absent while unknown."),
    ("requests_in_flight", "Requests sent to a replica and not ended, by this gateway."),
    ("tokens_in_flight", "Prompt and expected output tokens of them."),
    ("backlog_seconds", "Prompt work sent and believed not yet done, at the replica's speed."),
    ("index_entries", "Prefix hashes a replica is believed to hold."),
    ("candidate", "1 while a replica may be chosen."),
)


class _StateCollector(PrometheusCollector):
    """Reads replicas when scraped, so that a replica that left leaves no series behind."""

    def __init__(self, steering: Steering, hot: Iterable[_Exposed], tokens: _TokenCounts) -> None:
        self._steering = steering
        self._hot = hot
        self._tokens = tokens

    def collect(self) -> Iterable[Metric]:
        for exposed in self._hot:
            yield exposed.family()
        yield from self._tokens.families()
        families = {
            name: GaugeMetricFamily(f"kvsteer_replica_{name}", text, labels=["pool", "replica"])
            for name, text in _REPLICA_GAUGES
        }
        now = clock.monotonic()
        for pool in self._steering.pools:
            for replica in pool.replicas:
                for name, value in _replica_values(replica, pool.index.count(replica.slot), now):
                    families[name].add_metric([pool.name, replica.address], value)
        yield from families.values()
        yield from _backlog_errors(self._steering.pools)
        yield _versions(self._steering.pools)
        ledger = GaugeMetricFamily("kvsteer_ledger_tokens", "Tokens charged and not released.")
        ledger.add_metric([], self._steering.ledger.tokens)
        yield ledger


def _backlog_errors(pools: Iterable[Pool]) -> Iterable[Metric]:
    """How far the estimate of prompt work ahead was off; the sums begin anew with an engine."""
    families = [
        CounterMetricFamily(f"kvsteer_backlog_{name}", text, labels=["pool", "replica", "source"])
        for name, text in _BACKLOG_SUMS
    ]
    for pool in pools:
        for replica in pool.replicas:
            books = replica.books
            for source, tally in (("first_token", books.by_first_tokens), ("counters", books.by_counters)):
                for family, value in zip(families, (tally.news, tally.off, tally.seen), strict=True):
                    family.add_metric([pool.name, replica.address, source], value)
    return families


def _versions(pools: Iterable[Pool]) -> Metric:
    family = GaugeMetricFamily(
        "kvsteer_policy_version",
        "Version of the settings by which a pool chooses; 0 is the file's.",
        labels=["pool", "policy"],
    )
    for pool in pools:
        family.add_metric([pool.name, pool.policy_name], pool.policy_version)
    return family


def _replica_values(replica: Replica, entries: int, now: float) -> Iterator[tuple[str, float]]:
    if replica.headroom is not None:
        yield "headroom", replica.headroom
    yield "requests_in_flight", replica.books.requests
    yield "tokens_in_flight", replica.books.tokens
    yield "backlog_seconds", replica.backlog(now)
    yield "index_entries", entries
    yield "candidate", 0 if replica.excluded(now) else 1
