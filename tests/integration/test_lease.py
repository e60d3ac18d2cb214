"""Leases in a real Redis: one holder, takeover within two seconds of a death, and a paused holder is fenced."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from extproc.config import RedisSettings
from extproc.demo.processes import Child
from extproc.io.fleet_state import read_fleet
from extproc.io.lease import Fenced, Lease
from extproc.io.leases import Leases
from extproc.io.redis_client import make_client
from extproc.io.tasks import Supervisor
from tests.integration.conftest import until_async
from tests.integration.gates import got
from tests.integration.patience import bar
from tests.integration.redis_server import PROGRAMS, redis_server

#: Within so many seconds of its holder's death a lease has another.
_TAKEOVER = 2.0


@pytest.fixture(params=PROGRAMS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Child]]:
    with redis_server(tmp_path, program=request.param) as (port, child):
        yield f"redis://127.0.0.1:{port}/0", child


@pytest.fixture
def holder(server: tuple[str, Child]) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lease `test`."""
    argv = [sys.executable, "-m", "tests.integration.lease_holder", server[0], "other"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("held ")
        yield process
    finally:
        process.kill()
        process.communicate()


async def holding(lease: Lease) -> bool:
    return lease.held


async def test_of_two_gateways_one_holds_and_a_release_is_followed_at_once(server: tuple[str, Child]) -> None:
    settings = RedisSettings(url=server[0], deadline=1.0)
    first, second = Leases(settings, "gw-1"), Leases(settings, "gw-2")
    one, two = first.of("collector:chat"), second.of("collector:chat")
    tasks, others = Supervisor(), Supervisor()
    first.start(tasks)
    await until_async(lambda: holding(one), 3, "the first holds")
    second.start(others)
    await until_async(lambda: _names(two, "gw-1"), 3, "the second knows who holds")
    assert not two.held
    await tasks.close()
    await first.stop()
    began = time.monotonic()
    await until_async(lambda: holding(two), 3, "the second holds")
    assert time.monotonic() - began < bar(1.0)
    assert two.token > one.token
    await others.close()
    await second.stop()


async def _names(lease: Lease, gateway: str) -> bool:
    return lease.holder == gateway


async def test_the_lease_of_a_killed_holder_is_taken_over_within_two_seconds(
    server: tuple[str, Child], holder: "subprocess.Popen[str]"
) -> None:
    leases, tasks = Leases(RedisSettings(url=server[0], deadline=1.0), "gw-2"), Supervisor()
    lease = leases.of("test")
    leases.start(tasks)
    await until_async(lambda: _names(lease, "other"), 3, "the other is known")
    killed = time.monotonic()
    holder.send_signal(signal.SIGKILL)
    await until_async(lambda: holding(lease), 5, "taken over")
    assert time.monotonic() - killed < bar(_TAKEOVER)
    await tasks.close()
    await leases.stop()


async def test_a_holder_that_was_paused_notices_and_can_not_write_over_the_new_one(
    server: tuple[str, Child], holder: "subprocess.Popen[str]"
) -> None:
    leases, tasks = Leases(RedisSettings(url=server[0], deadline=1.0), "gw-2"), Supervisor()
    lease = leases.of("test")
    leases.start(tasks)
    holder.send_signal(signal.SIGSTOP)
    await until_async(lambda: holding(lease), 5, "taken over")
    await lease.write("kvsteer:written", b"new", 60.0)
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("old\n")
    holder.stdin.flush()
    holder.send_signal(signal.SIGCONT)
    said = await asyncio.to_thread(holder.stdout.readline)
    assert said.split() == ["False", "fenced"]
    with redis.Redis.from_url(server[0]) as client:
        assert client.get("kvsteer:written") == b"new"
    await tasks.close()
    await leases.stop()


async def test_with_redis_gone_nobody_holds_and_an_emptied_one_gives_a_greater_token(
    server: tuple[str, Child],
) -> None:
    settings = RedisSettings(url=server[0], deadline=1.0)
    leases, tasks = Leases(settings, "gw-1"), Supervisor()
    lease = leases.of("test")
    leases.start(tasks)
    await until_async(lambda: holding(lease), 3, "held")
    before = lease.token
    server[1].kill()

    async def lost() -> bool:
        return not lease.held

    await until_async(lost, 3, "nobody holds")
    server[1].restart()
    await until_async(lambda: holding(lease), 5, "held again")
    assert lease.token > before
    await tasks.close()
    await leases.stop()


async def test_a_lease_without_an_end_and_a_key_of_another_kind_are_lived_with(
    server: tuple[str, Child],
) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    await client.hset(
        "kvsteer:lease:test", mapping={"holder": "dead#1", "token": "7"}
    )  # by hand, without a TTL
    await client.set("kvsteer:lease:odd", "x")
    lease, odd = Lease(client, "kvsteer", "test", "gw-1", ttl=0.2), Lease(client, "kvsteer", "odd", "gw-1")
    await odd.attempt()
    assert not odd.held

    async def taken() -> bool:
        await lease.attempt()
        return lease.held

    await until_async(taken, 3, "it ends after a TTL and is taken")
    await client.aclose()


@pytest.mark.parametrize("garbage", ["inf", "text", "1e300", "", "9" * 30, "-5"])
async def test_a_token_that_is_no_number_is_mended_with_one_above_any_before(
    server: tuple[str, Child], garbage: str
) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    lease = Lease(client, "kvsteer", "test", "gw-1")
    await got(lease)
    before = lease.token
    await client.set("kvsteer:lease:test:token", garbage)
    await client.hset("kvsteer:lease:test", "token", garbage)
    await got(lease)
    assert lease.token > before
    await lease.write("kvsteer:written", b"x", 1.0)
    await client.aclose()


async def test_a_lease_whose_keys_are_of_another_type_says_so_after_three_failures(
    server: tuple[str, Child],
) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    await client.hset("kvsteer:lease:test:token", "a", "b")
    lease = Lease(client, "kvsteer", "test", "gw-1")
    for _ in range(3):
        assert lease.trouble.why == ""
        await lease.attempt()
    assert lease.trouble.why == (
        "lease test: the key kvsteer:lease:test or kvsteer:lease:test:token is of another type than kvsteer's; "
        "rename or delete it"
    )
    await client.delete("kvsteer:lease:test:token")
    await got(lease)
    assert lease.trouble.why == ""
    await client.aclose()


async def test_leases_of_more_pools_than_there_are_connections_are_all_held(
    server: tuple[str, Child],
) -> None:
    leases = Leases(RedisSettings(url=server[0], deadline=1.0), "gw-1")
    made = [leases.of(f"collector:{number}") for number in range(40)]
    await until_async(lambda: _rounds(leases, made), 3, "every lease is held after a round")
    await leases.stop()
    other = Leases(RedisSettings(url=server[0], deadline=1.0), "gw-2")
    lease = other.of("collector:39")
    await until_async(lambda: _rounds(other, [lease]), 1, "all were given up")
    await other.stop()


async def _rounds(leases: Leases, made: list[Lease]) -> bool:
    await leases.round()
    return all(lease.held for lease in made)


@pytest.mark.parametrize(
    "holder",
    ["", "gw-2", "gw 2#ab", "gw-2#xyz", "\x1b[31mgw-2#ab", "gw-2\n#ab", "g" * 65 + "#" + "a" * 16, "\xff#ab"],
)
async def test_a_holder_that_no_gateway_can_be_holds_nothing(server: tuple[str, Child], holder: str) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    forged = holder.encode("latin-1")
    await client.hset("kvsteer:lease:test", mapping={"holder": forged, "token": "7"})
    await client.pexpire("kvsteer:lease:test", 86_400_000)
    [seen] = (await read_fleet(RedisSettings(url=server[0], deadline=1.0)))["leases"]
    assert seen["holder"] is None
    lease = Lease(client, "kvsteer", "test", "gw-1")
    await got(lease)
    assert lease.holder == "gw-1"
    await client.aclose()


async def test_a_lease_that_ends_far_too_late_is_given_a_ttl(server: tuple[str, Child]) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    await client.hset("kvsteer:lease:test", mapping={"holder": "gw-2#ab", "token": "7"})
    await client.pexpire("kvsteer:lease:test", 86_400_000)
    lease = Lease(client, "kvsteer", "test", "gw-1")
    await lease.attempt()
    assert (lease.held, lease.holder) == (False, "gw-2")
    assert 0 < await client.pttl("kvsteer:lease:test") <= 1200
    await client.aclose()


async def test_who_never_held_can_write_nothing(server: tuple[str, Child]) -> None:
    client = make_client(RedisSettings(url=server[0], deadline=1.0), "test")
    with pytest.raises(Fenced):
        await Lease(client, "kvsteer", "test", "gw-1").write("kvsteer:written", b"x", 1.0)
    await client.aclose()
