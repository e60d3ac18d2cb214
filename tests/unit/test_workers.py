"""Several gateways by one configuration: a port each, and Envoy told of all."""

import pytest

from extproc.config import parse
from extproc.envoyconfig import render
from extproc.errors import ConfigError
from extproc.workers import listeners, with_workers, worker_settings

POOL = 'pools: [{replicas: ["10.0.0.1:8000"]}]\n'
THREE = (
    POOL + "workers: 3\ngateway_id: gw\ngrpc: {address: '[::1]:50051'}\nadmin: {address: '127.0.0.1:9095'}\n"
)


def test_each_worker_has_the_next_port_and_a_name_of_its_own() -> None:
    settings = parse(THREE, "f.yaml")
    last = worker_settings(settings, 2, "unix:///tmp/redis.sock")
    assert (last.grpc.address, last.admin.address, last.gateway_id) == (
        "[::1]:50053",
        "127.0.0.1:9097",
        "gw-2",
    )
    assert (last.workers, last.redis.url) == (1, "unix:///tmp/redis.sock")
    assert [str(one) for one in listeners(settings)] == ["[::1]:50051", "[::1]:50052", "[::1]:50053"]


def test_a_configured_redis_wins_over_the_parents() -> None:
    settings = parse(THREE + "redis: {url: 'redis://h'}\n", "f.yaml")
    assert worker_settings(settings, 0, "unix:///x").redis.url == "redis://h"


def test_port_0_stays_0_and_no_name_stays_none() -> None:
    settings = parse(POOL + "grpc: {address: '127.0.0.1:0'}\nadmin: {address: '127.0.0.1:0'}\n", "f.yaml")
    one = worker_settings(with_workers(settings, 2), 1)
    assert (one.grpc.address, one.admin.address, one.gateway_id) == ("127.0.0.1:0", "127.0.0.1:0", "")


def test_envoy_is_told_of_every_worker() -> None:
    text = render(with_workers(parse(POOL, "f.yaml"), 3))
    for port in (50051, 50052, 50053):
        assert f"port_value: {port}\n" in text
    assert "port_value: 50054" not in text


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ("grpc: {address: '0.0.0.0:65534'}\n", "65536"),
        ("admin: {address: '127.0.0.1:50053'}\n", "2 ports apart"),
    ],
)
def test_workers_without_a_port_each_are_refused(keys: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(POOL + "workers: 3\n" + keys, "f.yaml")
    with pytest.raises(ConfigError, match=word):
        with_workers(parse(POOL + keys, "f.yaml"), 3)
