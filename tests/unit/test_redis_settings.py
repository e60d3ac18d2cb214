"""Where Redis is and how to log in, as settings; and what stands between a gateway and a Redis that fails."""

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from pydantic import ValidationError
from redis import exceptions

from extproc.config import RedisSettings
from extproc.io import redis_guard
from extproc.io.redis_check import AtKey, MissingPassword, cause, judge
from extproc.io.redis_client import Login, make_client
from extproc.io.redis_guard import Fuse, Guard, RedisResting, closing
from extproc.io.scrape_duty import ScrapeDuty
from extproc.settings.redis_url import read_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://u:p%40ss@h:1/3", "redis://h:1/3"),
        ("rediss://[::1]:7000/", "rediss://[::1]:7000/0"),
        ("redis+sentinel://a,b:7/main/2", "redis+sentinel://a:26379,b:7/main/2"),
        ("rediss+sentinel://:secret@a/m", "rediss+sentinel://a:26379/m/0"),
        ("redis+cluster://a,b:7", "redis+cluster://a:6379,b:7"),
        ("unix://:secret@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_every_form_of_the_url_is_read_and_shown_without_its_login(url: str, shown: str) -> None:
    assert read_url(url).shown() == shown
    assert "secret" not in repr(read_url(url))


def test_user_and_password_of_a_url_are_unquoted() -> None:
    place = read_url("redis://gate%3Away:p%40%2Fss@h")
    assert (place.username, place.password) == ("gate:way", "p@/ss")


@pytest.mark.parametrize(
    "url",
    ["http://h", "redis://", "redis://h:0", "redis://h:x", "redis://h?x=s3cret", "redis://a,b", "redis://h/x",
     "redis+sentinel://h", "redis+cluster://h/1", "unix://x", "redis://:s3cret/x@h", "redis://a@b@h"],
)  # fmt: skip
def test_a_url_that_can_not_be_used_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="write") as caught:
        read_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"password": "plain"},
        {"password": "env:A", "password_file": "/x"},
        {"cert_file": "/x"},
        {"ca_file": "/x"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RedisSettings(url="redis://h", **keys)


def test_all_keys_of_a_cluster_are_in_one_slot_by_a_hash_tag() -> None:
    assert RedisSettings(url="redis+cluster://h").key_prefix == "{kvsteer}"
    assert (
        RedisSettings(url="redis://h", prefix="x").key_prefix == RedisSettings(prefix="x").key_prefix == "x"
    )


def test_a_changed_password_file_serves_the_next_connection(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("first\n")
    login = Login("gateway", "of the url", path=str(path))
    assert login.get_credentials() == ("gateway", "first")
    path.write_text("second")
    assert login.get_credentials() == ("gateway", "second")
    path.unlink()
    with pytest.raises(exceptions.AuthenticationError, match="can't be read"):
        login.get_credentials()


def test_a_password_from_the_environment_wins_over_the_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_SECRET", "hidden")
    assert Login("", "of the url", variable="REDIS_SECRET").get_credentials() == ("hidden",)


def test_the_fuse_opens_after_failures_in_a_row_and_lets_one_call_try() -> None:
    fuse = Fuse(failures=2, longest_rest=1.0, rng=lambda: 1.0)  # the longest of each rest: 0.1, 0.2, 0.4 ...
    for ok in (False, True, False, False):
        assert fuse.admits(10.0)
        fuse.ended(ok, 10.0)
    assert fuse.is_open
    assert not fuse.admits(10.05)
    assert fuse.admits(10.11)
    assert not fuse.admits(10.11), "one tries at a time"
    fuse.ended(False, 10.2)
    assert not fuse.admits(10.39)
    assert fuse.admits(10.41)
    fuse.ended(None, 10.41)  # its caller gave up: that says nothing
    assert fuse.admits(10.42)
    fuse.ended(True, 10.5)
    assert not fuse.is_open


async def test_calls_through_an_open_fuse_fail_at_once_and_are_never_made() -> None:
    guard = Guard(0.01, Fuse(1, 60.0, lambda: 1.0))
    made = []

    async def hangs() -> None:
        made.append(1)
        await asyncio.Event().wait()

    with pytest.raises(exceptions.TimeoutError):
        await guard.call(hangs)
    with pytest.raises(RedisResting):
        await guard.call(hangs)
    assert (len(made), guard.up, guard.errors, guard.resting) == (1, False, 2, True)


class Deaf:
    """A call as redis-py's where it loses cancellations: it goes on after the first few."""

    def __init__(self, loses: int) -> None:
        self.loses, self.ended = loses, asyncio.Event()

    async def __call__(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.loses -= 1
                if self.loses < 0:
                    self.ended.set()
                    raise


async def test_a_call_that_loses_its_cancellation_holds_nobody_beyond_the_deadline_and_ends_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_guard, "_AGAIN", 0.01)
    guard, deaf = Guard(0.01, Fuse(1, 60.0)), Deaf(loses=2)
    async with asyncio.timeout(30):
        with pytest.raises(exceptions.TimeoutError):
            await guard.call(deaf)
        assert (guard.up, guard.errors, guard.resting) == (False, 1, True)
        await deaf.ended.wait()


async def test_who_is_cancelled_in_a_call_that_loses_cancellations_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_guard, "_AGAIN", 0.01)
    guard, deaf = Guard(60.0, Fuse(1, 60.0)), Deaf(loses=2)
    caller = asyncio.create_task(guard.call(deaf))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (guard.up, guard.errors, guard.resting) == (None, 0, False), "it says nothing of Redis"
        await deaf.ended.wait()


async def test_a_call_that_ends_as_cancelled_by_itself_is_a_failure_and_cancels_nobody() -> None:
    guard = Guard(1.0, Fuse(1, 60.0))

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(exceptions.TimeoutError):
        await guard.call(cancelled)
    assert guard.up is False


@pytest.mark.parametrize("error", [exceptions.TimeoutError, OSError, None])
async def test_closing_ends_within_its_bound_and_tells_no_error(
    error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.io.redis_guard._CLOSE", 0.01)

    async def close() -> None:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    async with asyncio.timeout(30):
        await closing(close())


async def test_an_answer_that_refuses_is_an_answer() -> None:
    guard = Guard(1.0, Fuse(1, 60.0))

    async def refused() -> None:
        raise exceptions.ResponseError("OOM")

    for _ in range(3):
        with pytest.raises(exceptions.ResponseError):
            await guard.call(refused)
    assert guard.up
    assert not guard.resting
    assert guard.last_error == "ResponseError"


@pytest.mark.parametrize(
    ("info", "word"),
    [
        ({"redis_version": "7.2.4", "role": "master", "maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, ""),
        ({"redis_version": "6.0.16"}, "older"),
        ({"redis_version": "7.2.4", "role": "slave"}, "replica"),
        ({"maxmemory": 10, "used_memory": 5, "maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
        ({"maxmemory": 10, "used_memory": 10, "maxmemory_policy": "noeviction"}, "full"),
        ({"maxmemory": 10, "used_memory": 9}, ""),
        ({}, ""),
    ],
)
def test_an_unsafe_redis_is_told_by_its_info(info: dict[str, object], word: str) -> None:
    said = judge(info)
    assert bool(said) == bool(word)
    assert word in said


def test_causes_of_failures_quote_nothing() -> None:
    assert "password" in cause(exceptions.AuthenticationError("WRONGPASS s3cret"))
    assert cause(exceptions.ResponseError("s3cret")) == "it refuses the call (ResponseError)"
    assert cause(TimeoutError()) == "it does not answer in time"
    denied = exceptions.NoPermissionError("User s3cret has no permissions to run the 'eval' command")
    assert cause(denied) == "the user may not call EVAL; docs/redis.md lists what it needs"
    wrong = exceptions.ResponseError("WRONGTYPE Operation against a key")
    assert cause(AtKey("kvsteer:policies", wrong)) == (
        "the key kvsteer:policies is of another type than kvsteer's; rename or delete it"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            exceptions.MasterDownError("MASTERDOWN Link with MASTER is down"),
            "it is a replica that has lost its master",
        ),
        (
            exceptions.MovedError("1 10.0.0.1:6379"),
            "it is a node of a Cluster; write redis+cluster:// in redis.url",
        ),
        (
            exceptions.ResponseError("BUSY Redis is busy running a script. You can only call SCRIPT KILL"),
            "it is busy with somebody's script; SCRIPT KILL ends that",
        ),
    ],
)
def test_an_answer_that_has_a_remedy_or_a_name_is_told_with_it(error: Exception, words: str) -> None:
    assert cause(error) == words


async def test_the_first_reason_that_is_told_is_why_redis_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extproc.io.redis_guard._FIRST_REST", 60.0)  # as long as any stall of this machine
    guard = Guard(60.0, Fuse(1, 60.0))
    with pytest.raises(exceptions.BusyLoadingError):
        await guard.call(AsyncMock(side_effect=exceptions.BusyLoadingError("LOADING")))
    with pytest.raises(RedisResting) as caught:
        await guard.call(AsyncMock())
    assert cause(caught.value) == "it still loads its data"


async def test_a_password_file_that_is_missing_is_named(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = str(tmp_path / "nowhere")
    url = f"redis://127.0.0.1:{port}"
    client = make_client(RedisSettings(url=url, password_file=path, deadline=10, connect_timeout=10))
    with pytest.raises(MissingPassword) as caught:
        await client.get("kvsteer:x")
    assert cause(caught.value) == f"the password file {path} can't be read (FileNotFoundError)"
    await client.aclose()
    server.close()
    await server.wait_closed()


def test_a_gateway_scrapes_until_a_fresh_sample_of_that_replica_came_from_another() -> None:
    now, held = [100.0], [False]
    duty = ScrapeDuty(lambda: held[0], 0.2, lambda: now[0])  # fresh: two and a half intervals, 0.5 s
    assert duty("chat", "a"), "nothing heard: unknown is not zero"
    duty.heard("a", age=0.1)
    assert not duty("chat", "a")
    assert duty("chat", "b")
    now[0] = 100.41  # 0.51 s after it was taken
    assert duty("chat", "a")
    duty.heard("a")
    held[0] = True
    assert duty("chat", "a"), "the holder scrapes whatever others say"
    held[0] = False
    duty.keep_only({"b"})
    assert duty("chat", "a")
