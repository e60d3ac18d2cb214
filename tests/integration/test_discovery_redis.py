"""Registrations in a real Redis: held by beats, gone by expiry or leaving, and what a lost Redis does: nothing."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest
import redis
from structlog.testing import capture_logs

from extproc.config import RedisSettings
from extproc.core.membership import Changes, Endpoint
from extproc.demo.stack import Stack, StackSettings
from extproc.io import clock
from extproc.io.discovery import Discovery, Failed, Found, RedisSource, Registration, SourceFailed
from tests.integration.patience import patient

A = Endpoint(address="10.0.0.1:8000")
B = Endpoint(address="[fd00::2]:8000", metrics="http://[fd00::2]:9000/m", labels={"zone": "b"})
SET, DETAILS = "kvsteer:register:chat", "kvsteer:register:chat:details"


@pytest.fixture
def client(server: Stack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.redis_url, decode_responses=True) as made:
        made.flushall()
        yield made


def settings(server: Stack, deadline: float = 2.0) -> RedisSettings:
    return RedisSettings(url=server.redis_url, deadline=deadline)


@asynccontextmanager
async def registered(server: Stack, endpoint: Endpoint, ttl: float = 10.0) -> AsyncIterator[Registration]:
    made = Registration(settings(server), "chat", endpoint, ttl=ttl)
    try:
        await made.beat()
        yield made
    finally:
        await made.close()


async def look(server: Stack, **options: float) -> tuple[Endpoint, ...]:
    """What a first look finds, in order of address."""
    async with (
        asyncio.timeout(patient(10)),
        aclosing(RedisSource(settings(server), "chat", **options).watch()) as said,
    ):  # type: ignore[arg-type]
        answer = await anext(said)
    assert isinstance(answer, Found), answer
    return tuple(sorted(answer.endpoints, key=lambda endpoint: endpoint.address))


# -- keys ----------------------------------------------------------------------------------------------------


async def test_a_registration_is_found_as_it_was_written(server: Stack, client: redis.Redis) -> None:
    before, _ = client.time()
    async with registered(server, A), registered(server, B):
        assert await look(server) == (A, B)
    assert json.loads(client.hget(DETAILS, B.address)) == {"metrics": B.metrics, "labels": {"zone": "b"}}
    seconds, _ = client.time()
    assert before + 10 <= client.zscore(SET, A.address) <= seconds + 11


async def test_another_pools_registrations_are_not_seen(server: Stack, client: redis.Redis) -> None:
    other = Registration(settings(server), "embed", A)
    await other.beat()
    await other.close()
    assert await look(server) == ()


async def test_an_expired_registration_is_none_though_it_is_still_written(
    server: Stack, client: redis.Redis
) -> None:
    async with registered(server, A):
        client.zadd(SET, {B.address: client.time()[0] - 1})
        assert await look(server) == (A,)


async def test_whoever_registers_takes_the_expired_away(server: Stack, client: redis.Redis) -> None:
    client.zadd(SET, {B.address: client.time()[0] - 1})
    client.hset(DETAILS, B.address, "{}")
    async with registered(server, A):
        assert (client.zrange(SET, 0, -1), client.hkeys(DETAILS)) == ([A.address], [A.address])


async def test_both_keys_expire_with_the_last_registration(server: Stack, client: redis.Redis) -> None:
    async with registered(server, A, ttl=60.0), registered(server, B, ttl=5.0):
        assert 55_000 < client.pttl(SET) <= 60_001
        assert 55_000 < client.pttl(DETAILS) <= 60_001


async def test_leaving_takes_the_registration_away_at_once(server: Stack, client: redis.Redis) -> None:
    async with registered(server, A) as one, registered(server, B):
        await one.leave()
        assert await look(server) == (B,)
    assert client.hkeys(DETAILS) == [B.address]


async def test_a_replica_that_means_to_stop_says_so_by_a_beat(server: Stack, client: redis.Redis) -> None:
    async with registered(server, A) as one:
        stopping = Endpoint(address=A.address, terminating=True)
        await one.beat(stopping)
        await one.beat()
        assert await look(server) == (stopping,)
        with pytest.raises(ValueError, match="is not the registered"):
            await one.beat(B)


async def test_a_spoilt_registration_is_told_once_and_spoils_no_other(
    server: Stack, client: redis.Redis
) -> None:
    async with registered(server, A):
        later = client.time()[0] + 60
        client.zadd(
            SET, {"engine:8000": later, "10.0.0.7:80": later, "10.0.0.8:80": later, "10.0.0.9:80": later}
        )
        client.hset(DETAILS, "10.0.0.7:80", "{half")
        client.hset(DETAILS, "10.0.0.8:80", '{"labels": 5}')
        client.hset(DETAILS, "10.0.0.9:80", "[]")
        with capture_logs() as logs:
            source = RedisSource(settings(server), "chat", every=0.01)
            async with asyncio.timeout(patient(10)), aclosing(source.watch()) as said:
                for _ in range(3):
                    assert await anext(said) == Found((A,))
        assert [log["count"] for log in logs] == [4]
    client.zrem(SET, A.address)
    async with asyncio.timeout(patient(10)), aclosing(RedisSource(settings(server), "chat").watch()) as said:
        answer = await anext(said)
    assert isinstance(answer, Failed)
    assert answer.reason == "unreadable"


async def test_ten_thousand_registrations_are_read_and_one_more_is_told(
    server: Stack, client: redis.Redis
) -> None:
    later = client.time()[0] + 60
    addresses = [f"10.{n // 62500}.{n // 250 % 250}.{n % 250 + 1}:8000" for n in range(10_002)]
    client.zadd(SET, dict.fromkeys(addresses[:10_000], later))
    assert len(await look(server)) == 10_000
    client.zadd(SET, dict.fromkeys(addresses, later))
    assert len(await look(server)) == 10_001  # not all, but enough to be told as too many


# -- followed ------------------------------------------------------------------------------------------------


class Following:
    """A discovery of the pool, with a record of its changes."""

    def __init__(self, server: Stack, grace: float = 30.0, deadline: float = 2.0) -> None:
        self.changes: list[Changes] = []
        source = RedisSource(settings(server, deadline), "chat", every=0.05)
        self.discovery = Discovery("chat", [source], self.changes.append, clock.monotonic, grace=grace)

    async def __aenter__(self) -> "Following":
        self.task = asyncio.create_task(self.discovery.run())
        assert await self.discovery.first(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def addresses(self) -> set[str]:
        return set(self.discovery.membership.endpoints)

    @property
    def error(self) -> str:
        return self.discovery.status()[0].error

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(15)):
            while not happened():
                await asyncio.sleep(0.01)


async def test_a_replica_that_beats_no_more_leaves_when_its_time_is_over(
    server: Stack, client: redis.Redis
) -> None:
    async with Following(server) as following, registered(server, A), registered(server, B, ttl=2.0):
        await following.until(lambda: following.addresses == {A.address, B.address})
        await following.until(lambda: following.addresses == {A.address})
        assert following.changes[-1].left == (B.address,)


async def test_an_emptied_redis_loses_nobody_while_they_register_again(
    server: Stack, client: redis.Redis
) -> None:
    async with Following(server) as following, registered(server, A) as one, registered(server, B) as two:
        await following.until(lambda: following.addresses == {A.address, B.address})
        client.flushall()
        await following.until(lambda: following.discovery.status()[0].doubted is not None)
        await one.beat()
        await asyncio.sleep(0.3)  # several looks that see one of two
        assert following.addresses == {A.address, B.address}
        await two.beat()
        await following.until(lambda: following.discovery.status()[0].doubted is None)
        assert not any(change.left for change in following.changes)


async def test_a_redis_that_hangs_costs_its_deadline_and_nobody(server: Stack, client: redis.Redis) -> None:
    async with Following(server, deadline=0.3) as following, registered(server, A, ttl=60.0):
        await following.until(lambda: following.addresses == {A.address})
        server.children["redis"].signal(signal.SIGSTOP)
        try:
            await following.until(lambda: following.error == "timeout")
        finally:
            server.children["redis"].signal(signal.SIGCONT)
        await following.until(lambda: following.error == "")
        assert following.addresses == {A.address}


async def test_a_redis_that_comes_back_empty_and_fills_up_loses_nobody(client: redis.Redis) -> None:
    stack = Stack(StackSettings())
    try:
        stack.start_redis()
        async with Following(stack, grace=30.0) as following, registered(stack, A) as one:
            async with registered(stack, B):
                await following.until(lambda: len(following.addresses) == 2)
            stack.children["redis"].kill()
            await following.until(lambda: following.error == "connect")
            stack.children["redis"].restart()
            await asyncio.to_thread(wait_for, stack.redis_url)
            await one.beat()
            await following.until(lambda: following.error == "")
            await asyncio.sleep(0.3)  # several looks that see one of two
            assert following.addresses == {A.address, B.address}
    finally:
        stack.close()


def wait_for(url: str) -> None:
    """Return when a Redis answers."""
    with redis.Redis.from_url(url) as made:
        for _ in range(500):
            try:
                made.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return
    raise AssertionError("redis is not back")


# -- what goes wrong -----------------------------------------------------------------------------------------


async def test_no_redis_is_a_failure_that_shows_no_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        url = f"redis://user:secret@127.0.0.1:{taken.getsockname()[1]}/0"
        source = RedisSource(RedisSettings(url=url, deadline=2.0), "chat")
        async with asyncio.timeout(patient(10)), aclosing(source.watch()) as said:
            answer = await anext(said)
        registration = Registration(RedisSettings(url=url, deadline=2.0), "chat", A)
        with pytest.raises(SourceFailed) as caught:
            await registration.beat()
        await registration.close()
    assert isinstance(answer, Failed)
    assert (answer.reason, caught.value.reason) == ("connect", "connect")
    assert "secret" not in answer.detail + str(caught.value)


async def test_a_user_without_rights_is_told_and_no_password_shown(
    server: Stack, client: redis.Redis
) -> None:
    url = server.redis_url.replace("redis://", "redis://nobody:secret@")
    async with (
        asyncio.timeout(patient(10)),
        aclosing(RedisSource(RedisSettings(url=url, deadline=2.0), "chat").watch()) as said,
    ):
        answer = await anext(said)
    assert isinstance(answer, Failed)
    assert answer.reason == "denied"
    assert "secret" not in answer.detail


async def test_cancelling_closes_the_connection(server: Stack, client: redis.Redis) -> None:
    before = {row["id"] for row in client.client_list()}
    async with Following(server):
        (own,) = {row["id"] for row in client.client_list()} - before
    async with asyncio.timeout(patient(5)):
        while own in {row["id"] for row in client.client_list()}:
            await asyncio.sleep(0.01)
