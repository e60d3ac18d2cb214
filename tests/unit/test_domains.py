"""Fallbacks outside the failure domain of the first pick."""

from random import Random
from typing import Any

import pytest
import yaml

from extproc.building import build_steering
from extproc.config import parse
from extproc.core.domains import Domains
from extproc.core.pool import Pool
from extproc.core.steering import Rules, Steering
from extproc.envoyconfig import bootstrap

A1, A2, B1, C1 = "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.3:1"


def candidates(*addresses: str) -> tuple[Domains, Any]:
    pool = Pool("p")
    for address in addresses:
        pool.join(address, 0.0)
    return pool.domains, pool.replicas


@pytest.mark.parametrize(
    ("order", "scores", "expected"),
    [
        ([0, 1, 2], [1.0, 2.0, 3.0, 4.0], [0, 2, 3]),  # A2 stands with A1
        ([0, 1], [1.0, 2.0, 3.0, 4.0], [0, 2]),
        ([2, 0, 1], [2.0, 3.0, 1.0, 4.0], [2, 0, 3]),  # the second A waits behind C
        ([2, 0, 3], [2.0, 3.0, 1.0, 4.0], [2, 0, 3]),  # nothing to mend
        ([0, 1, 2], [], [0, 2, 1]),  # no scores: only those in the order are known
        ([0], [1.0, 2.0, 3.0, 4.0], [0]),
    ],
)
def test_each_pick_is_the_best_outside_the_domains_before_it(
    order: list[int], scores: list[float], expected: list[int]
) -> None:
    domains, replicas = candidates(A1, A2, B1, C1)
    assert domains.matter
    assert domains.spread(order, replicas, scores) == expected


def test_where_all_domains_had_one_the_best_that_is_left_comes():
    domains, replicas = candidates(A1, A2, B1)
    assert domains.spread([0, 1, 2], replicas, [1.0, 2.0, 3.0]) == [0, 2, 1]


@pytest.mark.parametrize(
    ("addresses", "matter"), [((A1, A2), False), ((A1, B1, C1), False), ((A1, A2, B1), True), ((), False)]
)
def test_one_domain_or_as_many_as_replicas_cost_nothing(addresses: tuple[str, ...], matter: bool) -> None:
    assert candidates(*addresses)[0].matter is matter


def test_who_leaves_and_joins_changes_what_matters():
    pool = Pool("p")
    for address in (A1, A2, B1):
        pool.join(address, 0.0)
    pool.restarted(A1, 1.0)
    pool.join(A1, 1.0)
    assert pool.domains.matter
    pool.leave(A2)
    pool.leave(A2)
    assert not pool.domains.matter


def test_labels_of_discovery_count_and_the_configuration_before_them():
    domains = Domains({A1: "rack 1"})
    for address in (A1, B1, C1):
        domains.join(address)
    assert not domains.matter
    domains.found([(A1, "rack 9"), (B1, "rack 1")])
    assert [domains.of(address) for address in (A1, B1, C1)] == ["rack 1", "rack 1", "10.0.0.3"]
    assert domains.matter


def test_a_decision_falls_back_to_another_host():
    pool = Pool("p", policy="least_tokens")
    for address in (A1, A2, B1):
        pool.join(address, 0.0)
    steering = Steering([pool], Rules(fallbacks=1), Random(3))
    for key in range(1, 20):
        first, second = steering.decide(None, pool, key, 0.0).order
        assert pool.domains.of(first.address) != pool.domains.of(second.address)
        steering.ledger.release(key, 0.0)


CONFIGURED: dict[str, Any] = {
    "pools": [
        {
            "name": "chat",
            "replicas": [{"address": A1, "domain": "rack 1"}, {"address": B1, "domain": "rack 1"}, C1],
            "retries": {"share": 0.2, "least": 5},
        }
    ]
}


def settings(**retries: Any) -> Any:
    pool = {**CONFIGURED["pools"][0], **({"retries": retries} if retries else {})}
    return parse(yaml.safe_dump({"pools": [pool]}), "kvsteer.yaml")


def test_domains_of_the_configuration_reach_the_pool():
    assert build_steering(settings(), 0.0).pools[0].domains.matter


def thresholds(found: Any) -> dict[str, Any]:
    (cluster,) = [
        it for it in bootstrap(found)["static_resources"]["clusters"] if it["name"] == "kvsteer_pool_chat"
    ]
    (threshold,) = cluster["circuit_breakers"]["thresholds"]
    return dict(threshold)


def test_envoy_gets_a_budget_for_retries_of_each_pool():
    budget = {"budget_percent": {"value": 20.0}, "min_retry_concurrency": 5}
    assert thresholds(settings())["retry_budget"] == budget
    assert "retry_budget" not in thresholds(settings(share=0)), "0 is no bound, not no retries"
