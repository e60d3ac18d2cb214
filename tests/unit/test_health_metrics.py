"""What alerts ask of replicas, leases and the process, as a scrape shows it."""

from prometheus_client import CollectorRegistry, generate_latest

from extproc.app import Gateway
from extproc.config import parse
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.io import clock
from extproc.io.health_metrics import HealthMetrics

_TEXT = """
grpc: {transport: fast}
redis: {url: "redis://127.0.0.1:1"}
admission: {mode: "on", others: {tokens_per_minute: 1000}}
pools: [{late_binding: on, capacity: {prefill_speed: 5000}, replicas: ["10.0.0.1:8000", "10.0.0.2:8000"]}]
"""


def gateway() -> Gateway:
    return Gateway(parse(_TEXT, "test"))


def lines(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_a_drained_replica_is_shown_as_excluded_with_its_reason_and_others_are_not() -> None:
    made = gateway()
    replica = made.steering.pools[0].replicas[0]
    replica.drain("operator", clock.monotonic())
    told = [line for line in lines(made.prometheus) if line.startswith("kvsteer_replica_excluded{")]
    assert told == ['kvsteer_replica_excluded{pool="default",reason="quiescing",replica="10.0.0.1:8000"} 1.0']


def test_slow_replicas_open_breakers_and_speeds_are_shown() -> None:
    made = gateway()
    replica = made.steering.pools[0].replicas[1]
    replica.pace.slow = True
    replica.breaker.state = "half_open"
    told = lines(made.prometheus)
    where = '{pool="default",replica="10.0.0.2:8000"}'
    assert f"kvsteer_replica_slow{where} 1.0" in told
    assert f"kvsteer_replica_breaker_open{where} 1.0" in told
    assert f"kvsteer_replica_prefill_tokens_per_second{where} 5000.0" in told
    assert 'kvsteer_pool_prefill_tokens_per_second{pool="default"} 5000.0' in told
    assert not [line for line in told if line.startswith("kvsteer_replica_sample_age_seconds{")]  # unknown


def test_leases_are_shown_as_held_or_not_and_redis_as_configured() -> None:
    told = lines(gateway().prometheus)
    assert 'kvsteer_lease_held{lease="collector:default"} 0.0' in told
    assert "kvsteer_redis_configured 1.0" in told
    registry = CollectorRegistry()
    HealthMetrics(list[Pool](), list, False, registry)
    assert "kvsteer_redis_configured 0.0" in lines(registry)


def test_the_process_tells_its_memory() -> None:
    told = [line for line in lines(gateway().prometheus) if line.startswith("process_resident_memory_bytes ")]
    assert float(told[0].split()[1]) > 10 * 2**20


def test_every_family_has_a_help_text_that_is_a_sentence_and_names_its_unit() -> None:
    for family in gateway().prometheus.collect():
        assert family.documentation.strip(), family.name
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb", "_mb", "_percent", "_count")), (
            family.name
        )
        if family.name.startswith("kvsteer_"):
            assert family.documentation.endswith("."), family.name


def test_replicas_that_do_not_tell_the_metric_of_a_factor_are_counted() -> None:
    text = 'pools: [{engine: vllm, factor: {metric: mine}, replicas: ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]}]'
    made = Gateway(parse(text, "test"))
    (pool,) = made.steering.pools
    pool.observe("10.0.0.1:80", Sample(at=1.0, factor=2.0))
    pool.observe("10.0.0.2:80", Sample(at=1.0))  # the third was not heard yet
    assert 'kvsteer_factor_unknown{pool="default"} 1.0' in lines(made.prometheus)
    assert not [line for line in lines(gateway().prometheus) if line.startswith("kvsteer_factor_unknown{")]
