"""Redis as it is run: ACL users, password files, Sentinel, Cluster; paused, killed; none of it stops a caller."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis import exceptions

from extproc.config import PolicySettings, RedisSettings, ShadowSettings
from extproc.core.membership import Endpoint
from extproc.core.pool import Pool
from extproc.demo.processes import Child, free_port
from extproc.demo.stack import redis_program
from extproc.io.discovery.registration import Registration
from extproc.io.fleet_state import read_fleet
from extproc.io.leases import Leases
from extproc.io.policy_store import Conflict, VersionStore
from extproc.io.policy_versions import Chosen
from extproc.io.redis_client import make_client
from extproc.io.registry import Registry
from tests.integration.conftest import until, until_async
from tests.integration.gates import got
from tests.integration.patience import bar
from tests.integration.redis_server import PROGRAMS, redis_server


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[int, Child]]:
    with redis_server(tmp_path, program=request.param) as running:
        yield running


async def test_an_acl_user_with_a_password_file_and_only_the_documented_rights_beats(
    server: tuple[int, Child], tmp_path: Path
) -> None:
    port, _ = server
    with redis.Redis(port=port) as root:
        rules = (
            Path("docs/redis.md").read_text().partition("ACL SETUSER kvsteer ")[2].partition("\n")[0].split()
        )
        root.execute_command("ACL", "SETUSER", "kvsteer", *(r.replace("PASSWORD", "s3cret") for r in rules))
    (tmp_path / "password").write_text("s3cret\n")
    settings = RedisSettings(
        url=f"redis://127.0.0.1:{port}/1", username="kvsteer", password_file=str(tmp_path / "password")
    )
    pool = Pool("chat", now=0.0)
    pool.join("10.0.0.1:8000", 0.0)
    made = Registry(settings, "gw-1", [pool], lambda: 0)
    await made.beat()
    assert (made.up, made.why) == (True, "")
    await _everything(settings)
    (tmp_path / "password").write_text("wrong")
    with redis.Redis(port=port) as root:
        root.execute_command("CLIENT", "KILL", "USER", "kvsteer")
    await made.beat()
    assert made.up is False
    assert "refuses the user" in made.why
    await made.close()


async def _everything(settings: RedisSettings) -> None:
    """What the other users of Redis call."""
    versions, chosen = VersionStore(settings), Chosen(PolicySettings(name="least_tokens"), ShadowSettings())
    await versions.add("chat", [(chosen, "ops", "try")], after=0)
    await versions.report("gw-1", {}, 5.0)
    await versions.reports()
    await versions.close()
    leases = Leases(settings, "gw-1")
    await leases.of("snapshot").attempt()
    await leases.of("snapshot").write("kvsteer:snapshot", b"x", 5.0)
    await leases.stop()
    registration = Registration(settings, "chat", Endpoint(address="10.0.0.1:8000"))
    await registration.beat()
    await registration.leave()
    await registration.close()
    client = make_client(settings, "journal")
    await client.xadd("kvsteer:journal", {b"b": b"x"}, minid=b"1-0", approximate=True)
    await client.xread({"kvsteer:journal": "0"}, count=1)
    await client.xrevrange("kvsteer:journal", count=1)
    await client.mget(["kvsteer:snapshot"])
    await client.aclose()


async def test_a_redis_that_drops_keys_is_used_and_told_of(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as (port, _):
        made = Registry(RedisSettings(url=f"redis://127.0.0.1:{port}", deadline=2.0), "gw-1", [], lambda: 0)
        await made.beat()
        assert made.up
        assert made.degraded
        assert "allkeys-lru" in made.why
        with redis.Redis(port=port) as root:
            root.config_set("maxmemory-policy", "noeviction")
        await made.beat()
        assert not made.degraded, "that it was mended is seen at the next beat"
        await made.close()


async def test_a_paused_redis_costs_a_deadline_and_then_nothing_and_is_used_again(
    server: tuple[int, Child],
) -> None:
    port, child = server
    client = make_client(RedisSettings(url=f"redis://127.0.0.1:{port}", deadline=0.2), "test")
    await client.set("kvsteer:a", 1)
    child.signal(signal.SIGSTOP)
    try:
        began, waits = time.monotonic(), []
        while time.monotonic() - began < 3:
            asked = time.monotonic()
            with pytest.raises((exceptions.ConnectionError, exceptions.TimeoutError)):
                await client.get("kvsteer:a")
            waits.append(time.monotonic() - asked)
            await asyncio.sleep(0.005)
    finally:
        child.signal(signal.SIGCONT)
    assert max(waits) < bar(0.2 + 0.5 + 0.2)  # the deadline, the time to connect, and a busy machine
    assert sum(wait < bar(0.05) for wait in waits) > len(waits) * 0.8, "the fuse did not open"

    async def answered() -> bool:
        try:
            return bool(await client.get("kvsteer:a") == b"1")
        except (exceptions.RedisError, OSError):
            return False

    await until_async(answered, 3, "the client is back")
    await client.aclose()


async def test_a_restarted_redis_is_not_noticed_by_the_next_call(server: tuple[int, Child]) -> None:
    port, child = server
    client = make_client(RedisSettings(url=f"redis://127.0.0.1:{port}", deadline=4.0), "test")
    await client.ping()
    child.kill()
    child.restart()
    with redis.Redis(port=port) as other:
        until(lambda: _pings(other), 10, "redis is back")
    assert await client.ping()
    await client.aclose()


async def test_a_server_that_became_a_replica_is_connected_to_anew(server: tuple[int, Child]) -> None:
    port, _ = server
    client = make_client(RedisSettings(url=f"redis://127.0.0.1:{port}", deadline=4.0), "test")
    before = await client.client_id()
    with redis.Redis(port=port) as root:
        root.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(exceptions.ReadOnlyError):
        await client.set("kvsteer:a", 1)
    assert await client.client_id() != before, "its name may lead to another server by now"
    assert client.guard.up
    await client.aclose()


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except exceptions.RedisError:
        return False


async def test_a_cluster_takes_transactions_and_scripts_over_all_keys_of_the_fleet(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--cluster-enabled", "yes") as (port, _):
        with redis.Redis(port=port) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: "cluster_state:ok" in str(node.execute_command("CLUSTER", "INFO")), 10, "cluster")
        pool = Pool("chat", now=0.0)
        pool.join("10.0.0.1:8000", 0.0)
        settings = RedisSettings(url=f"redis+cluster://127.0.0.1:{port}", deadline=4.0)
        made = Registry(settings, "gw-1", [pool], lambda: 7)
        await made.beat()
        assert (made.up, made.why) == (True, "")
        with redis.Redis(port=port) as node:
            assert sorted(node.keys()) == [b"{kvsteer}:gateway:gw-1", b"{kvsteer}:replicas:chat:gw-1"]
        await made.close()
        versions = VersionStore(settings)
        chosen = Chosen(PolicySettings(name="least_tokens"), ShadowSettings())
        assert (await versions.add("chat", [(chosen, "ops", "try")], after=0)).number == 1
        with pytest.raises(Conflict):
            await versions.add("chat", [(chosen, "ops", "late")], after=0)
        await versions.close()
        leases = Leases(settings, "gw-1")
        lease = leases.of("collector:chat")
        await got(lease)
        await lease.write("{kvsteer}:written", b"x", 5.0)
        await leases.stop()
        assert [g["gateway"] for g in (await read_fleet(settings))["gateways"]] == []


async def test_after_a_failover_the_client_follows_the_sentinels(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as (first, first_child),
        redis_server(tmp_path, "--replicaof", "127.0.0.1", str(first)) as (second, _),
    ):
        port = free_port()
        conf = tmp_path / "sentinel.conf"
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {first} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        sentinel = Child("sentinel", [redis_program(), str(conf), "--sentinel"], tmp_path)
        try:
            with redis.Redis(port=port) as asked:
                until(lambda: _knows_replica(asked), 15, "the sentinel knows the replica")
            settings = RedisSettings(url=f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/main", deadline=0.5)
            client = make_client(settings, "test")
            await client.set("kvsteer:a", 1)
            first_child.kill()

            async def written() -> bool:
                try:
                    return bool(await client.set("kvsteer:a", 2))
                except (exceptions.RedisError, OSError):
                    return False

            await until_async(written, 20, "the client writes to the new server")
            with redis.Redis(port=second) as other:
                assert other.get("kvsteer:a") == b"2"
            await client.aclose()
        finally:
            sentinel.kill()


def _knows_replica(asked: redis.Redis) -> bool:
    try:
        found = asked.execute_command("SENTINEL", "REPLICAS", "main")
    except exceptions.RedisError:
        return False
    return bool(found) and b"slave" in str(found).encode()
