"""Alert rules and dashboards in a real Prometheus that scrapes a real stack: all fire, all clear, all show something.

Rules run a hundred times as fast as written. Most alerts are brought about by faults of the stack; those that no
fault brings about within seconds (memory, a bug of ours, a day's overload) by an exporter that plays a sick gateway.
`make test` leaves the faults of the stack out (marked long: a minute and a half).
"""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import redis
import yaml

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import until
from tests.integration.patience import patient
from tests.integration.prometheus_server import Played, PrometheusServer, quick_rules
from tests.runbooks import queries

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not installed (package prometheus)"
)

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "kvsteer-alerts.yml"

_ENGINE = ["--prefill-speed", "200000", "--step-ms", "2", "--tokens-per-chunk", "4"]
_WELL = """
kvsteer_build_info{version="0"} 1
kvsteer_internal_errors_total N
kvsteer_task_failures_total{task="sweep"} N
kvsteer_decision_seconds_bucket{le="0.001"} N
kvsteer_decision_seconds_bucket{le="+Inf"} N
process_resident_memory_bytes 1e8
kvsteer_ledger_tokens 0
kvsteer_open_streams 0
kvsteer_journal_dropped_total{kind="placement"} N
kvsteer_policy_version{pool="p",policy="charged_cost"} 1
kvsteer_replica_backlog_seconds{pool="p",replica="a"} 1
kvsteer_replica_headroom{pool="p",replica="a"} 0.9
kvsteer_replica_cache_scale{pool="p",replica="a"} 1
kvsteer_replica_prefill_tokens_per_second{pool="p",replica="a"} 9000
kvsteer_pool_prefill_tokens_per_second{pool="p"} 8000
kvsteer_scale_recommended_replicas{pool="p"} 1
kvsteer_replica_candidate{pool="p",replica="a"} 1
kvsteer_version_step_backs_total{model="*"} N
"""
_SICK = """
kvsteer_build_info{version="0"} 1
kvsteer_internal_errors_total N
kvsteer_task_failures_total{task="sweep"} N
kvsteer_decision_seconds_bucket{le="0.001"} 0
kvsteer_decision_seconds_bucket{le="1"} N
kvsteer_decision_seconds_bucket{le="+Inf"} N
process_resident_memory_bytes 3e9
kvsteer_ledger_tokens 70
kvsteer_open_streams 0
kvsteer_journal_dropped_total{kind="placement"} N
kvsteer_policy_version{pool="p",policy="charged_cost"} 1
kvsteer_policy_version{pool="p",policy="round_robin"} 2
kvsteer_replica_backlog_seconds{pool="p",replica="a"} 90
kvsteer_replica_backlog_seconds{pool="p",replica="b"} 0
kvsteer_replica_backlog_seconds{pool="p",replica="c"} 0
kvsteer_replica_backlog_seconds{pool="p",replica="d"} 0
kvsteer_replica_backlog_seconds{pool="p",replica="e"} 0
kvsteer_replica_headroom{pool="p",replica="a"} 0.02
kvsteer_replica_cache_scale{pool="p",replica="a"} 0.1
kvsteer_replica_prefill_tokens_per_second{pool="p",replica="a"} 500
kvsteer_pool_prefill_tokens_per_second{pool="p"} 8000
kvsteer_backlog_off_seconds_total{pool="p",replica="a",source="counters"} N
kvsteer_backlog_seen_seconds_total{pool="p",replica="a",source="counters"} N
kvsteer_held_seconds_bucket{le="1"} 0
kvsteer_held_seconds_bucket{le="10"} N
kvsteer_held_seconds_bucket{le="+Inf"} N
kvsteer_waits_total{pool="p",how="longest_wait"} N
kvsteer_scale_recommended_replicas{pool="p"} 4
kvsteer_replica_candidate{pool="p",replica="a"} 1
kvsteer_version_step_backs_total{model="*"} N
"""
#: What the played gateway brings about.
PLAYED = {
    "KvsteerInternalErrors",
    "KvsteerTaskFailed",
    "KvsteerGatewaySlow",
    "KvsteerMemoryHigh",
    "KvsteerLedgerLeak",
    "KvsteerJournalDrops",
    "KvsteerPoliciesDiffer",
    "KvsteerReplicaHot",
    "KvsteerPoolFull",
    "KvsteerCacheDistrusted",
    "KvsteerSpeedOff",
    "KvsteerWorkMispredicted",
    "KvsteerHeldTooLong",
    "KvsteerWaitsOverrun",
    "KvsteerTooFewReplicas",
    "KvsteerVersionSteppedBack",
}
#: What faults of the stack bring about, by the test that does it.
ENGINES = {
    "KvsteerReplicaStale",
    "KvsteerScrapesFail",
    "KvsteerDecisionsFailing",
    "KvsteerReplicaBreakerOpen",
    "KvsteerReplicaExcluded",
    "KvsteerUpstreamErrors",
    "KvsteerRetries",
}
REQUESTS = {"KvsteerUnsteered", "KvsteerRejects"}
SLOW = {"KvsteerReplicaSlow", "KvsteerLowHitShare"}
DRAINED = {"KvsteerNoReplica"}
JOURNAL = {"KvsteerJournalSlow", "KvsteerJournalRefused"}
REDIS = {"KvsteerSharedStateDegraded", "KvsteerNoCollector", "KvsteerAdmissionAlone"}
GATEWAYS = {"KvsteerGatewayDown", "KvsteerEnvoyBypasses", "KvsteerNoDecisions"}
PEERS = {"KvsteerPeersMissing"}


class Watched(Stack):
    """Two gateways behind Envoy with everything on that is watched. Gateways in `apart` share with nobody."""

    def __init__(self) -> None:
        super().__init__(
            StackSettings(
                replicas=4,
                gateways=2,
                engine=_ENGINE,
                pool={"late_binding": True, "metrics": {"interval": "500ms", "stale_after": "2s"}},
                gateway={
                    "admission": {
                        "mode": "on",
                        "identity": {"source": "header", "header": "x-team"},
                        "tenants": [{"name": "trial", "ids": ["trial"], "tokens_per_minute": 1}],
                    }
                },
            )
        )
        self.apart: set[int] = set()

    def configuration(self, number: int) -> dict[str, Any]:
        """As the stack's, and a name of its own in Redis for who is apart."""
        tree = super().configuration(number)
        if number in self.apart:
            tree["redis"] = {**tree["redis"], "prefix": "apart"}
        return tree

    def control(self, fault: dict[str, Any], *numbers: int) -> None:
        """Set or end faults of engines, of all unless numbered."""
        for number in numbers or range(len(self.replicas)):
            _post(f"http://{self.replicas[number]}/_control", fault)

    def order(self, what: str) -> None:
        """Drain or undrain every replica."""
        for address in self.replicas:
            _post(f"http://127.0.0.1:{self.gateway_ports[0][1]}/replicas/{address}/{what}", {})


def _post(url: str, body: dict[str, Any]) -> None:
    asked = urllib.request.Request(url, orjson.dumps(body), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=patient(5)) as answer:
        answer.read()


class Traffic:
    """Requests, one after the other in four lines, for as long as it lives; what becomes of them is all the same.

    Attributes:
        bad: whether most can't be read, and come from a tenant beyond its rate in parts.
    """

    def __init__(self, url: str) -> None:
        self.bad = False
        self._url, self._count = url, itertools.count()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=patient(10))
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(self._line(session) for _ in range(4)))

    async def _line(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            body, headers = self._next()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(
                    f"{self._url}/v1/chat/completions", data=body, headers=headers
                ) as answer:
                    await answer.read()
            await asyncio.sleep(0.15)

    def _next(self) -> tuple[bytes, dict[str, str]]:
        number = next(self._count)
        headers = {"content-type": "application/json"}
        if self.bad and number % 2:
            return b"{broken", headers
        if self.bad:
            headers["x-team"] = "trial"
        # Twelve conversations of some 1,000 tokens that go on: most of each prompt is known already.
        text = f"conversation {number % 12} " * 250
        said = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"{text}{number}"}],
            "max_tokens": 8,
        }
        return orjson.dumps(said), headers


class World:
    """The stack, its traffic, what is played, and the Prometheus that looks at them."""

    def __init__(self, folder: Path, close: contextlib.ExitStack) -> None:
        self.stack = close.enter_context(Watched())
        self.traffic = close.enter_context(contextlib.closing(Traffic(self.stack.url)))
        self.played = close.enter_context(contextlib.closing(Played(_WELL, _SICK)))
        jobs = {
            "kvsteer": ("/metrics", [f"127.0.0.1:{admin}" for _, admin in self.stack.gateway_ports]),
            "envoy": ("/stats/prometheus", [f"127.0.0.1:{self.stack.envoy_admin}"]),
            "engines": ("/metrics", self.stack.replicas),
            "played": ("/metrics", [self.played.target]),
        }
        rules = quick_rules(RULES)
        self.prometheus = close.enter_context(contextlib.closing(PrometheusServer(folder, jobs, rules)))
        self.fired: set[str] = set()

    def fires(self, *names: str, job: str = "") -> None:
        """Wait until each has fired, at once or one after the other, in one job or in any."""
        missing = set(names)

        def all_fired() -> bool:
            missing.difference_update(self.prometheus.firing(job))
            return not missing

        self._within(all_fired, lambda: f"never fired: {sorted(missing)}", 40)
        self.fired.update(names)

    def clears(self, *names: str, job: str = "") -> None:
        """Wait until none of them fires, in one job or in any."""
        left: set[str] = set(names)

        def none_fires() -> bool:
            left.intersection_update(names)
            left.clear()
            left.update(set(names) & self.prometheus.firing(job))
            return not left

        self._within(none_fires, lambda: f"still fires: {sorted(left)}", 60)

    def _within(self, condition: Any, what: Any, seconds: float) -> None:
        try:
            until(condition, seconds, "alerts")
        except pytest.fail.Exception:
            pytest.fail(what())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with contextlib.ExitStack() as close:
        yield World(tmp_path_factory.mktemp("prometheus"), close)


def test_alerts_on_what_a_gateway_says_of_itself_fire_and_clear(world: World) -> None:
    world.played.sick = True
    world.fires(*PLAYED, job="played")
    world.played.sick = False
    world.clears(*PLAYED, job="played")  # a test before this one may have left the stack something to tell


@pytest.mark.long
def test_alerts_on_engines_that_fail_fire_and_clear(world: World) -> None:
    world.stack.control({"error": {"status": 503, "share": 1, "scope": "requests"}})
    world.fires("KvsteerReplicaBreakerOpen", "KvsteerUpstreamErrors", "KvsteerRetries")
    world.stack.control({"error": {"status": 503, "share": 1, "scope": "metrics"}}, 0, 1, 2)
    world.stack.control({"error": None, "reset": {"when": "before_headers", "scope": "metrics"}}, 3)
    world.fires(
        "KvsteerReplicaStale", "KvsteerDecisionsFailing", "KvsteerReplicaExcluded", "KvsteerScrapesFail"
    )
    world.stack.control({"error": None, "reset": None})
    world.clears(*ENGINES)


@pytest.mark.long
def test_alerts_on_requests_that_cannot_be_read_or_are_refused_fire_and_clear(world: World) -> None:
    world.traffic.bad = True
    world.fires(*REQUESTS)
    world.traffic.bad = False
    world.clears(*REQUESTS)


@pytest.mark.long
def test_alerts_on_a_slow_replica_and_on_caches_that_forget_fire_and_clear(world: World) -> None:
    world.stack.control({"drop_cache": {"every": 0.05}})
    world.stack.control({"slow": 20}, 1)
    world.fires(*SLOW)
    world.stack.control({"drop_cache": None})
    world.stack.control(
        {"slow": None, "restart": {"down": 0.1}}
    )  # else its pace is remembered for half a minute
    world.clears(*SLOW)


@pytest.mark.long
def test_the_alert_on_a_pool_without_replicas_fires_and_clears(world: World) -> None:
    world.stack.order("drain")
    world.fires(*DRAINED)
    world.stack.order("undrain")
    world.clears(*DRAINED)


@pytest.mark.long
def test_alerts_on_a_journal_that_is_late_or_spoilt_fire_and_clear(world: World) -> None:
    stop = threading.Event()

    def hinder() -> None:
        with redis.Redis.from_url(world.stack.redis_url) as client:
            while not stop.wait(0.05):
                with contextlib.suppress(redis.RedisError):  # tried again, as long as the test waits
                    client.xadd("kvsteer:journal", {"b": b"no batch"})
                    client.client_pause(300, all=True)

    hindering = threading.Thread(target=hinder)
    hindering.start()
    try:
        world.fires(*JOURNAL)
    finally:
        stop.set()
        hindering.join()
    world.clears(*JOURNAL)


@pytest.mark.long
def test_alerts_on_a_redis_that_is_gone_fire_and_clear(world: World) -> None:
    world.stack.children["redis"].kill()
    world.fires(*REDIS)
    world.stack.children["redis"].restart()
    world.clears(*REDIS)


@pytest.mark.long
def test_alerts_on_gateways_that_are_gone_or_apart_fire_and_clear(world: World) -> None:
    for number in range(2):
        world.stack.children[f"gateway-{number}"].kill()
    world.fires(*GATEWAYS)
    world.stack.apart = {1}
    for number in range(2):
        world.stack.start_gateway(number)
    world.clears(*GATEWAYS)
    world.fires(*PEERS)
    world.stack.children["gateway-1"].kill()
    world.stack.apart = set()
    world.stack.start_gateway(1)
    world.clears(*PEERS)


def panels() -> Iterator[tuple[str, str]]:
    """Title and query of every panel of every dashboard, its variables filled."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$job", "kvsteer").replace("$pool", ".*")
                yield f"{path.stem}: {panel['title']}", query.replace("$span", "10s")


def test_every_query_of_every_dashboard_returns_data(world: World) -> None:
    queries = list(panels())
    assert len(queries) > 50
    empty: list[str] = []

    def all_show_something() -> bool:
        empty[:] = [f"{title}: {query}" for title, query in queries if not world.prometheus.query(query)]
        return not empty

    with contextlib.suppress(pytest.fail.Exception):
        until(all_show_something, 20, "data")
    assert empty == []


#: Words of queries in runbooks that show something only while something is wrong, or where a pool has versions.
FAULTS = (
    "_excluded", "_slow == 1", "_scale < 1", "_up == 0", "_version_", "status!=", "reject", "_ledger_tokens and",
    "steered", "_refused", "_failed_tries_",
)  # fmt: skip


def test_every_query_of_the_runbooks_is_understood_and_shows_what_there_is(world: World) -> None:
    missing: list[str] = []

    def all_show_something() -> bool:
        shown = {query: world.prometheus.query(query) for _, query in queries()}  # a faulty one raises
        missing[:] = [
            query for query, found in shown.items() if not found and not any(word in query for word in FAULTS)
        ]
        return not missing

    with contextlib.suppress(pytest.fail.Exception):
        until(all_show_something, 20, "data")
    assert missing == []


def test_prometheus_keeps_the_ids_of_requests_with_the_latency_of_decisions(world: World) -> None:
    found: list[dict[str, str]] = []

    def told() -> bool:
        found[:] = world.prometheus.exemplars("kvsteer_decision_seconds_bucket")
        return bool(found)

    until(told, 20, "an exemplar")
    assert all(set(labels) == {"request_id"} and labels["request_id"] for labels in found)


def test_every_alert_is_brought_about_here(world: World) -> None:
    tested = PLAYED | ENGINES | REQUESTS | SLOW | DRAINED | JOURNAL | REDIS | GATEWAYS | PEERS
    assert {rule["name"] for rule in world.prometheus.rules()} == tested


def test_prometheus_finds_no_fault_with_any_rule(world: World) -> None:
    def evaluated() -> bool:
        return all(rule["health"] == "ok" for rule in world.prometheus.rules())

    until(evaluated, 10, "every rule has been evaluated without a fault")
    assert "rror" not in world.prometheus.child.said(200)


def test_every_metric_in_a_rule_is_one_that_is_exposed(world: World) -> None:
    text = "\n".join(expressions()).replace("envoy_http_conn_manager_prefix", "")  # a label
    named = set(re.findall(r"\b(?:kvsteer|envoy|process)_\w+", text))
    until(lambda: named <= world.prometheus.names(), 20, f"all of {sorted(named)} are there")


def expressions() -> list[str]:
    """Of all rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]
