"""The replica registry in a real Redis, and what Redis' death does: nothing to requests."""

import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from structlog.testing import capture_logs

from extproc.config import RedisSettings
from extproc.core.pool import Pool
from extproc.demo.processes import answers
from extproc.demo.stack import Stack, StackSettings
from extproc.io.fleet_state import read_fleet
from extproc.io.registry import Registry
from tests.integration.conftest import until
from tests.integration.patience import bar, patient


@pytest.fixture
def client(server: Stack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.redis_url, decode_responses=True) as made:
        made.flushall()
        yield made


def registry(url: str, name: str = "gw-1", deadline: float = 2.0) -> Registry:
    pool = Pool("chat", now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    pool.join("[::1]:8000", 0.0)
    return Registry(RedisSettings(url=url, deadline=deadline), name, [pool], lambda: 7)


async def test_a_beat_writes_the_gateway_and_its_replicas_with_a_ttl(
    server: Stack, client: redis.Redis
) -> None:
    made = registry(server.redis_url)
    await made.beat()
    gateway = client.hgetall("kvsteer:gateway:gw-1")
    assert gateway["streams"] == "7"
    assert 0 <= client.time()[0] - int(gateway["seen"]) <= bar(1)
    replicas = client.hgetall("kvsteer:replicas:chat:gw-1")
    assert set(replicas) == {"10.0.0.1:8000", "[::1]:8000"}
    assert json.loads(replicas["[::1]:8000"])["incarnation"] == 1
    assert all(0 < client.pttl(key) <= 20_000 for key in client.keys("*"))
    await made.close()


@pytest.mark.parametrize("key", ["kvsteer:gateway:gw-1", "kvsteer:journal"])
async def test_a_key_of_another_type_is_named_and_the_rest_is_written(
    server: Stack, client: redis.Redis, key: str
) -> None:
    client.rpush(key, "x")
    made = registry(server.redis_url)
    await made.beat()
    assert made.why == f"redis fails: the key {key} is of another type than kvsteer's; rename or delete it"
    assert client.exists("kvsteer:replicas:chat:gw-1")
    client.delete(key)
    await made.beat()
    assert (made.why, made.up) == ("", True)
    await made.close()


async def test_what_is_no_hash_is_told_by_the_fleets_state(server: Stack, client: redis.Redis) -> None:
    for key in ("kvsteer:gateway:gw-1", "kvsteer:lease:collector:chat"):
        client.rpush(key, "x")
    client.set("kvsteer:lease:collector:chat:token", "5")
    said = await read_fleet(RedisSettings(url=server.redis_url, deadline=2.0))
    assert (said["gateways"], said["leases"]) == ([], [])
    assert said["skipped"] == [
        "key 'kvsteer:gateway:gw-1': holds no hash, so it is no gateway's",
        "key 'kvsteer:lease:collector:chat': holds no hash, so it is no lease's",
    ]


async def test_closing_takes_the_entries_away_and_leaves_others(server: Stack, client: redis.Redis) -> None:
    first, second = registry(server.redis_url, "gw-1"), registry(server.redis_url, "gw-2")
    await first.beat()
    await second.beat()
    await first.close()
    assert sorted(client.keys("*")) == ["kvsteer:gateway:gw-2", "kvsteer:replicas:chat:gw-2"]
    await second.close()


async def test_a_replica_that_left_leaves_no_field_behind(server: Stack, client: redis.Redis) -> None:
    pool = Pool("chat", now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    made = Registry(RedisSettings(url=server.redis_url, deadline=2.0), "gw-1", [pool], lambda: 0)
    await made.beat()
    pool.leave("10.0.0.1:8000")
    await made.beat()
    assert not client.exists("kvsteer:replicas:chat:gw-1")
    await made.close()


async def test_two_gateways_of_one_id_are_told_once_each_and_a_restarted_one_is_not(
    server: Stack, client: redis.Redis
) -> None:
    first = registry(server.redis_url)
    with capture_logs() as told:
        await first.beat()
        restarted = registry(server.redis_url)
        for _ in range(2):
            await restarted.beat()
        assert told == []
        for _ in range(2):
            await first.beat()
            await restarted.beat()
    assert ["same id" in entry["event"] for entry in told] == [True, True]
    await first.close()
    await restarted.close()


async def test_no_redis_is_told_and_never_raises() -> None:
    made = registry("redis://127.0.0.1:1/0")
    await made.beat()
    assert (made.up, made.errors) == (False, 1)
    await made.close()


async def test_a_redis_that_hangs_costs_a_deadline_and_comes_back(server: Stack) -> None:
    made = registry(server.redis_url, deadline=0.1)
    await made.beat()
    assert made.up
    server.children["redis"].signal(signal.SIGSTOP)
    try:
        await made.beat()
        assert made.up is False
    finally:
        server.children["redis"].signal(signal.SIGCONT)
    for _ in range(20):
        await made.beat()
        if made.up:
            break
    assert made.up
    await made.close()


async def test_a_redis_that_restarted_is_written_at_the_next_beat_over_a_fresh_connection(
    server: Stack, client: redis.Redis
) -> None:
    seen = []

    async def sync(connection: redis.asyncio.Redis, _ahead: float) -> None:
        seen.append(await connection.ping())

    pool = Pool("chat", now=0.0)
    made = Registry(RedisSettings(url=server.redis_url, deadline=2.0), "gw-1", [pool], lambda: 7, sync)
    await made.beat()
    server.children["redis"].kill()
    server.children["redis"].restart()
    until(lambda: answers(int(server.redis_url.rpartition(":")[2].partition("/")[0])), 10, "Redis is back")
    await made.beat()
    assert (made.up, made.errors, len(seen)) == (True, 0, 2)
    await made.close()


def test_a_gateway_serves_on_while_redis_is_dead_and_says_so_everywhere() -> None:
    with Stack(StackSettings(replicas=2)) as stack:
        until(lambda: stack.admin("/healthz")["shared"] == "ok", 10, "the registry is written")
        assert _said(stack) == ("ok", 1.0)
        stack.children["redis"].kill()
        until(lambda: stack.admin("/healthz")["shared"] == "degraded", 15, "the loss of Redis is told")
        assert stack.admin_status(0, "/readyz") == 200
        assert _said(stack) == ("degraded", 0.0)
        gateway = stack.children["gateway-0"]
        gateway.kill()
        gateway.restart()
        until(lambda: stack.admin_status(0, "/readyz") == 200, 10, "it starts without Redis")
        assert stack.admin("/healthz")["shared"] == "degraded"
        until(lambda: _said(stack) == ("degraded", 0.0), 10, "it steers, and says that it is alone")
        stack.children["redis"].restart()
        until(lambda: stack.admin("/healthz")["shared"] == "ok", 15, "Redis is used again")
        assert _said(stack) == ("ok", 1.0)


def _said(stack: Stack) -> tuple[str, float]:
    """How state is shared by the record of a new decision, and by the metrics."""
    body = json.dumps({"model": "demo", "prompt": "hello", "max_tokens": 1}).encode()
    call = urllib.request.Request(f"{stack.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(call, timeout=patient(10)):
        pass
    records = stack.admin("/decisions?last=1")["decisions"]
    with urllib.request.urlopen(
        f"http://127.0.0.1:{stack.gateway_ports[0][1]}/metrics", timeout=patient(5)
    ) as answer:
        up = next(
            line for line in answer.read().decode().splitlines() if line.startswith("kvsteer_redis_up ")
        )
    return records[0]["shared"] if records else "", float(up.split()[1])
