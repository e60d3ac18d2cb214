"""Metrics in the form that is asked for, and histograms that name the request that came last into a bucket."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from extproc.core.ending import Ending
from extproc.io.exposition import exposed, wants_openmetrics
from extproc.io.histograms import Buckets
from extproc.io.metrics import Metrics
from extproc.io.outcome_metrics import OutcomeMetrics
from tests.unit.test_records import World

#: What Prometheus 3 sends.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


class Alone(Collector):
    """A registry's only histogram."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def collect(self) -> Iterable[Metric]:
        yield self._buckets.family()


def shown(buckets: Buckets) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Alone(buckets))
    return registry


@pytest.mark.parametrize(
    ("accept", "open_metrics"),
    [
        ([], False),
        (["*/*"], False),
        (["text/plain;version=0.0.4"], False),
        ([PROMETHEUS], True),
        (["text/plain", "Application/OpenMetrics-Text"], True),
        (["application/openmetrics-text; version=nonsense"], True),  # 1.0.0 is what there is
        (["application/openmetrics-text;q=0"], False),
        (["application/openmetrics-text; q=0.000, */*"], False),
        (["application/openmetrics-text;q=0.1"], True),
        (["application/openmetrics-text;q=0.1, text/plain;q=0.9"], False),  # text is liked better
        (["application/openmetrics-text;q=0.1", "*/*;q=0.9"], False),
        (["application/openmetrics-text;q=0.1, */*;q=0.9, text/plain;q=0.1"], True),  # text by its own name
        (["application/openmetrics-text;q=0.5, text/plain;q=0.5"], True),
        (["application/openmetrics-text;q=nan"], False),
        ([",;,q="], False),
    ],
)
def test_openmetrics_is_for_those_who_name_it(accept: list[str], open_metrics: bool) -> None:
    assert wants_openmetrics(accept) is open_metrics


def test_a_bucket_names_the_request_that_came_last_into_it_in_openmetrics_alone() -> None:
    buckets = Buckets("x_seconds", "Help.", (0.1, 1.0), "pool")
    buckets.observe(0.05, "first", "p")
    buckets.observe(0.07, "second", "p")
    buckets.observe(0.5, "", "p")  # has no id
    buckets.observe(3.0, "third", "q")
    body, kind = exposed(shown(buckets), [PROMETHEUS])
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    (family,) = text_string_to_metric_families(body.decode())
    named = {
        (sample.labels["pool"], sample.labels["le"]): (
            sample.exemplar.labels["request_id"],
            sample.exemplar.value,
        )
        for sample in family.samples
        if sample.exemplar
    }
    assert named == {("p", "0.1"): ("second", 0.07), ("q", "+Inf"): ("third", 3.0)}
    values = {
        s.labels["le"]: s.value
        for s in family.samples
        if s.name == "x_seconds_bucket" and s.labels["pool"] == "p"
    }
    assert values == {"0.1": 2.0, "1.0": 3.0, "+Inf": 3.0}
    text, kind = exposed(shown(buckets), ["text/plain"])
    assert kind.startswith("text/plain")
    assert b'"second"' not in text
    assert b'x_seconds_bucket{le="0.1",pool="p"} 2.0' in text


def test_an_id_that_is_too_long_for_an_exemplar_is_left_out() -> None:
    buckets = Buckets("x_seconds", "Help.", (1.0,))
    buckets.observe(0.5, "a" * 118)
    buckets.observe(2.0, "b" * 119)
    body, _ = exposed(shown(buckets), [PROMETHEUS])
    assert b'request_id="aaa' in body
    assert b"bbb" not in body
    list(text_string_to_metric_families(body.decode()))


def test_without_labels_a_histogram_is_there_before_its_first_value() -> None:
    body, _ = exposed(shown(Buckets("x_seconds", "Help.", (1.0,))), [])
    assert b'x_seconds_bucket{le="+Inf"} 0.0' in body


def test_all_that_a_gateway_counts_reads_as_openmetrics_with_the_request_of_a_decision() -> None:
    world, registry = World(), CollectorRegistry()
    metrics = Metrics(world.steering, registry)
    outcomes = OutcomeMetrics(world.steering.pools, registry)
    world.decide(1.0)
    kept = world.records.numbered(1)
    assert kept is not None
    exchange = kept[0]
    assert exchange.decision is not None
    exchange.request_id = "req-1"
    metrics.settled(exchange, 0.0003)
    ending = exchange.ending = Ending()
    ending.first_token = exchange.decision.at + 0.3
    exchange.waited = 0.4
    outcomes.ended(exchange)
    body, _ = exposed(registry, [PROMETHEUS])
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    named = {
        family.name: sample.exemplar
        for family in families.values()
        for sample in family.samples
        if sample.exemplar
    }
    assert {name: exemplar.labels for name, exemplar in named.items()} == {
        "kvsteer_decision_seconds": {"request_id": "req-1"},
        "kvsteer_first_token_seconds": {"request_id": "req-1"},
    }
    assert named["kvsteer_first_token_seconds"].value == pytest.approx(0.7)  # 0.3 s after it waited 0.4
    assert "kvsteer_exchanges" in families
