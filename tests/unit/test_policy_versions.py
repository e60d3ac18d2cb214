"""Versions as they are kept, and the rules of following them; with a real Redis in test_policy_command.py."""

import random
from typing import Any, cast

import orjson
import pytest
from redis.exceptions import ConnectionError as RedisGone
from redis.exceptions import NoPermissionError, ResponseError
from structlog.testing import capture_logs

from extproc.cli.policy_texts import no_versions
from extproc.config import PolicySettings, ShadowSettings
from extproc.core.pool import Pool
from extproc.io.policy_follower import Follower, shown
from extproc.io.policy_store import Newest, VersionStore
from extproc.io.policy_versions import (
    MOST_WHY,
    BadVersion,
    Chosen,
    Version,
    read_version,
    standing_of,
)
from extproc.io.redis_check import AtKey, Lost


class Shelf:
    """A store that lies in memory: what `Follower` needs of one, with a count of the reads."""

    def __init__(self) -> None:
        self.versions: dict[str, bytes] = {}
        #: What names each pool's newest, where that is not the version that stands there.
        self.pointers: dict[str, bytes] = {}
        self.refused: dict[str, Exception] = {}
        self.stamp: bytes | None = None
        self.reports_made: list[dict[str, Any]] = []
        self.gone = False
        self.reads = 0

    async def revision(self) -> bytes | None:
        if self.gone:
            raise RedisGone
        return self.stamp

    def there(self, pool: str) -> Newest:
        text = self.versions.get(pool)
        if pool in self.pointers or text is None:
            return Newest(self.pointers.get(pool), text)
        return Newest(b"%d" % orjson.loads(text)["version"], text)

    async def newest(self, pool: str) -> Newest:
        self.reads += 1
        if pool in self.refused:
            raise AtKey(f"kvsteer:policy:{pool}", self.refused[pool])
        return self.there(pool)

    async def glance(self, numbers: dict[str, int]) -> dict[str, Newest]:
        return {pool: self.there(pool) for pool in numbers}

    async def put_back(self, pool: str, version: Version, pointer: bytes | None) -> bool:
        if self.there(pool).pointer != pointer:
            return False
        self.pointers.pop(pool, None)
        self.put(version, pool)
        return True

    def lost(self, pool: str) -> AtKey:
        return AtKey(f"kvsteer:policy:{pool}", Lost())

    async def report(self, gateway_id: str, policies: dict[str, Any], ttl: float) -> None:
        self.reports_made.append(policies)

    def put(self, version: Version, pool: str = "p") -> None:
        self.versions[pool] = orjson.dumps(version.as_dict())
        self.stamp = f"{pool}:{version.number}@{version.at}".encode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def version(
    number: int, name: str = "random", shadow: str = "", at: float = 5.0, **settings: float
) -> Version:
    chosen = Chosen(PolicySettings(name=name, settings=settings), ShadowSettings(name=shadow))
    return Version(number=number, chosen=chosen, who="ops", at=at, why="to see")


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def pool() -> Pool:
    return Pool("p", now=0.0)


def follower(shelf: Shelf, *pools: Pool, clock: Clock | None = None) -> tuple[Follower, list[str]]:
    refused: list[str] = []
    made = Follower(
        cast(VersionStore, shelf),
        list(pools),
        random.Random(0),
        gateway_id="gw",
        heartbeat=2.0,
        clock=clock or Clock(),
        on_refused=refused.append,
    )
    return made, refused


def test_a_version_reads_back_as_it_was_written() -> None:
    written = version(3, "charged_cost", "cache_aware", gain=1 / 3)
    assert read_version(orjson.dumps(written.as_dict())) == written


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"null", b'"x"', b'{"version": 1}', b'{"version": 1, "policy": 3}', b"\xff"]
)
def test_garbage_is_a_bad_version_and_nothing_else(text: bytes) -> None:
    with pytest.raises(BadVersion):
        read_version(text)


def test_keys_of_a_later_kvsteer_are_ignored_and_long_texts_cut() -> None:
    fields = version(1).as_dict() | {"scope": "all", "why": "w" * 10_000}
    assert len(read_version(orjson.dumps(fields)).why) == MOST_WHY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("when", value) for value in ("abc", "nan", "5", None, True, -1, 1e18, 10**300, [], {})),
        *(("version", value) for value in ("1", 0, -1, 1.5, True, None, 2**53, 10**30, [])),
        *(("restores", value) for value in ("1", 0, -1, 1.5, True, 2**53, [], {})),
        *((name, value) for name in ("who", "why") for value in (None, 3, [], {})),
        *((name, value) for name in ("policy", "shadow") for value in (3, "x", ["a"], {"name": 3}, {"settings": 1})),
        ("policy", {"name": "random", "settings": {"a": "x"}}),
        ("policy", None),
    ],
)  # fmt: skip
def test_a_field_of_another_kind_is_a_bad_version(field: str, value: object) -> None:
    with pytest.raises(BadVersion):
        read_version(orjson.dumps(version(1).as_dict() | {field: as_json(value)}).replace(b'"HUGE"', HUGE))


HUGE = b"1" + b"0" * 300


def as_json(value: object) -> object:
    """A number that orjson can't write is put in later."""
    return "HUGE" if type(value) is int and value > 2**63 else value


@pytest.mark.parametrize("when", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_time_that_is_no_json_is_a_bad_version(when: bytes) -> None:
    with pytest.raises(BadVersion):
        read_version(orjson.dumps(version(1).as_dict() | {"when": "HERE"}).replace(b'"HERE"', when))


def test_control_characters_reach_no_terminal_and_no_log() -> None:
    fields = version(1).as_dict() | {"who": "a\x1b[31mb", "why": "x\ny"}
    found = read_version(orjson.dumps(fields))
    assert (found.who, found.why) == ("a?[31mb", "x?y")


def hash_of(*versions: Version, **more: bytes) -> dict[bytes, bytes]:
    held = {b"%d" % one.number: orjson.dumps(one.as_dict()) for one in versions}
    return held | {name.encode(): value for name, value in more.items()}


def test_a_pool_stands_at_its_newest_version() -> None:
    found = standing_of(hash_of(version(1), version(3), version(2), newest=b"3"))
    assert (found.number, found.skipped, found.is_current) == (3, [], True)
    assert found.newest == version(3)
    assert [one.number for one in found.versions] == [3, 2, 1]
    assert standing_of({}) == (0, None, [], None, [])


@pytest.mark.parametrize(
    "pointer",
    [
        b"abc",
        b"",
        b"-1",
        b"0",
        b"1.5",
        b"nan",
        b"03",
        b" 3",
        b"\xff\xfe",
        b"9" * 400,
        b"%d" % 2**53,
        "\u0663".encode(),
    ],
)
def test_a_pointer_that_is_no_number_is_skipped_and_said(pointer: bytes) -> None:
    found = standing_of(hash_of(version(1), version(3), newest=pointer))
    assert (found.number, found.newest, found.pointer) == (3, version(3), pointer)
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("the number of the newest version: '")
    assert found.skipped[0].isprintable()
    assert len(found.skipped[0]) < 250


def test_a_newest_version_that_can_not_be_read_leaves_the_one_before_it() -> None:
    held = hash_of(version(1), version(2), newest=b"4") | {b"4": b"\xff", b"x\xff": b"{}", b"3": b"null"}
    found = standing_of(held)
    assert (found.number, found.newest, found.is_current) == (4, version(2), False)
    assert len(found.skipped) == 3
    assert "version 'x\\xff': it can't be read" in " ".join(found.skipped)


def test_a_newest_version_that_is_missing_leaves_the_one_before_it() -> None:
    found = standing_of(hash_of(version(1), newest=b"7"))
    assert (found.number, found.newest, found.is_current) == (7, version(1), False)


def test_a_version_under_another_number_is_skipped() -> None:
    found = standing_of({b"5": orjson.dumps(version(3).as_dict()), b"newest": b"5"})
    assert (found.number, found.newest, found.versions) == (5, None, [])
    assert found.skipped == ["version '5': it says that it is 3"]


async def test_nothing_is_read_but_the_stamp_until_that_changes(shelf: Shelf, pool: Pool) -> None:
    made, _ = follower(shelf, pool)
    for _ in range(3):
        await made.poll()
    assert (shelf.reads, pool.policy_version, pool.policy_name) == (0, 0, "charged_cost")
    shelf.put(version(1))
    for _ in range(3):
        await made.poll()
    assert (shelf.reads, pool.policy_version, pool.policy_name) == (1, 1, "random")


async def test_a_new_version_is_reported_at_once_and_then_each_heartbeat(shelf: Shelf, pool: Pool) -> None:
    clock = Clock()
    made, _ = follower(shelf, pool, clock=clock)
    await made.poll()
    shelf.put(version(1))
    await made.poll()
    assert [report["p"]["version"] for report in shelf.reports_made] == [0, 1]
    for clock.now in (0.5, 1.0, 1.5, 2.0, 2.5):
        await made.poll()
    assert len(shelf.reports_made) == 3
    assert shelf.reports_made[-1] == {"p": {"version": 1, "when": 5.0, "refused": None}}


async def test_a_version_that_can_not_be_built_changes_nothing_and_counts_once(
    shelf: Shelf, pool: Pool
) -> None:
    made, refused = follower(shelf, pool)
    shelf.put(version(1, "least_tokens", "random"))
    await made.poll()
    before = (pool.policy, pool.shadow)
    shelf.put(version(2, "random", "of_tomorrow"))  # the policy is known, its shadow is not
    await made.poll()
    shelf.stamp = b"p:2@again"
    await made.poll()
    assert refused == ["p"]
    assert (pool.policy, pool.shadow, pool.policy_version) == (*before, 1)
    told = made.shown()[0]["refused"]
    assert (told["version"], "no policy 'of_tomorrow'" in told["reason"]) == (2, True)
    shelf.put(version(3, "random"))
    await made.poll()
    assert (made.shown()[0]["refused"], pool.policy_version) == (None, 3)


async def test_one_pools_bad_version_does_not_keep_another_back(shelf: Shelf, pool: Pool) -> None:
    other = Pool("other", now=0.0)
    made, refused = follower(shelf, pool, other)
    shelf.put(version(1, "of_tomorrow"))
    shelf.put(version(1, "random"), "other")
    await made.poll()
    assert (refused, pool.policy_version, other.policy_version) == (["p"], 0, 1)


async def test_redis_gone_or_emptied_changes_no_gateways_policy(shelf: Shelf, pool: Pool) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(4, "random"))
    await made.poll()
    shelf.gone = True
    await made.poll()
    assert (made.up, made.errors, pool.policy_version) == (False, 1, 4)
    shelf.gone, shelf.stamp, shelf.versions = False, None, {}
    await made.poll()
    assert (made.up, pool.policy_version) == (True, 4)
    shelf.put(version(4, "least_request", at=99.0))  # the same number made at another time is another version
    await made.poll()
    assert pool.policy_name == "least_request"


async def test_an_emptied_redis_gets_the_version_in_use_again_once(shelf: Shelf, pool: Pool) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(4, "random"))
    await made.poll()
    shelf.stamp, shelf.versions = None, {}
    with capture_logs() as told:
        for _ in range(3):
            await made.poll()
    assert read_version(shelf.versions["p"]) == version(4, "random")
    assert shelf.stamp == b"p:4@5.0"
    assert [(entry["log_level"], entry["version"], entry["kept"]) for entry in told] == [("warning", 0, 4)]


async def test_of_two_gateways_with_an_emptied_redis_the_newer_version_stays(
    shelf: Shelf, pool: Pool
) -> None:
    older, newer = Pool("p", now=0.0), pool
    behind, ahead = follower(shelf, older)[0], follower(shelf, newer)[0]
    shelf.put(version(2, "random", at=5.0))
    await behind.poll()
    shelf.put(version(3, "round_robin", at=9.0))
    await ahead.poll()
    shelf.stamp, shelf.versions = None, {}
    await behind.poll()
    assert shelf.stamp == b"p:2@5.0", "who is first writes what it has"
    await ahead.poll()
    assert shelf.stamp == b"p:3@9.0", "who has a newer one writes that"
    await behind.poll()
    assert (older.policy_version, older.policy_name) == (3, "round_robin")


async def test_each_pools_version_comes_back_though_another_pools_was_written_before(
    shelf: Shelf, pool: Pool
) -> None:
    other = Pool("q", now=0.0)
    one, both = follower(shelf, pool)[0], follower(shelf, pool, other)[0]
    shelf.put(version(1, "random", at=5.0), "p")
    shelf.put(version(7, "round_robin", at=6.0), "q")
    await one.poll()
    await both.poll()
    shelf.stamp, shelf.versions = None, {}
    await one.poll()
    await both.poll()
    assert {name: orjson.loads(text)["version"] for name, text in shelf.versions.items()} == {"p": 1, "q": 7}


async def test_where_only_the_stamp_was_lost_it_is_written_again_and_a_newer_version_followed(
    shelf: Shelf, pool: Pool
) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(3, "round_robin", at=5.0))
    await made.poll()
    shelf.put(version(4, "random", at=9.0))
    shelf.stamp = None
    await made.poll()
    assert (pool.policy_version, shelf.stamp) == (4, b"p:4@9.0")


def write_over(shelf: Shelf, pointer: bytes | None, text: bytes | None) -> None:
    """As DEL, an eviction or HSET by somebody else, while the newest change still stands there."""
    shelf.pointers = {} if pointer is None else {"p": pointer}
    shelf.versions = {} if text is None else {"p": text}


@pytest.mark.parametrize(
    ("pointer", "text"),
    [
        (None, None),
        (b"3", None),
        (b"3", b"{"),
        (b"2", None),
        (b"1", orjson.dumps(version(1, at=1.0).as_dict())),
        (b"3", orjson.dumps(version(1, at=1.0).as_dict())),
    ],
)
async def test_a_version_that_was_lost_or_written_over_alone_comes_back_within_a_heartbeat(
    shelf: Shelf, pool: Pool, pointer: bytes | None, text: bytes | None
) -> None:
    clock = Clock()
    made, refused = follower(shelf, pool, clock=clock)
    shelf.put(version(3, "round_robin", at=5.0))
    await made.poll()
    write_over(shelf, pointer, text)
    clock.now = 2.0
    with capture_logs() as told:
        await made.poll()
    assert shelf.there("p").pointer == b"3"
    assert read_version(shelf.versions["p"]) == version(3, "round_robin", at=5.0)
    assert [(entry["log_level"], entry["kept"]) for entry in told] == [("warning", 3)]
    assert refused == []
    fresh = Pool("p", now=0.0)
    late, _ = follower(shelf, fresh)
    await late.poll()
    assert fresh.policy_version == 3


async def test_a_version_that_comes_back_is_taken_by_who_started_without_it(shelf: Shelf, pool: Pool) -> None:
    clock = Clock()
    made, _ = follower(shelf, pool, clock=clock)
    shelf.put(version(3, "round_robin", at=5.0))
    held = shelf.versions["p"]
    write_over(shelf, None, None)
    await made.poll()
    assert (pool.policy_version, made.trouble.why) == (0, "")
    for _ in range(3):
        await made.poll()
    assert made.trouble.why == (
        "policies: what stood there was deleted or evicted, and this gateway does not know it (key kvsteer:policy:p)"
    )
    assert made.up, "Redis itself is well"
    write_over(shelf, b"3", held)
    clock.now = 2.0
    await made.poll()
    assert (pool.policy_version, made.trouble.why) == (3, "")


@pytest.mark.parametrize(("pointer", "number"), [(b"x", 0), (b"9", 9)])
async def test_a_pointer_to_nothing_that_is_newer_or_no_number_is_told_and_left(
    shelf: Shelf, pool: Pool, pointer: bytes, number: int
) -> None:
    clock = Clock()
    made, refused = follower(shelf, pool, clock=clock)
    shelf.put(version(3, "round_robin", at=5.0))
    await made.poll()
    write_over(shelf, pointer, None)
    for clock.now in (2.0, 4.0):
        await made.poll()
    assert (refused, pool.policy_version, shelf.there("p").pointer) == (["p"], 3, pointer)
    assert made.shown()[0]["refused"]["version"] == number


async def test_one_pools_key_that_can_not_be_used_holds_up_no_other_pool(shelf: Shelf, pool: Pool) -> None:
    other = Pool("q", now=0.0)
    made, _ = follower(shelf, pool, other)
    shelf.refused = {"p": ResponseError("WRONGTYPE Operation against a key")}
    shelf.put(version(7, "round_robin"), "q")
    for _ in range(3):
        await made.poll()
    assert other.policy_version == 7
    assert made.trouble.why == (
        "policies: the key kvsteer:policy:p is of another type than kvsteer's; rename or delete it"
    )


async def test_who_follows_the_configuration_writes_nothing_into_an_empty_redis(
    shelf: Shelf, pool: Pool
) -> None:
    made, _ = follower(shelf, pool)
    await made.poll()
    assert (shelf.stamp, shelf.versions) == (None, {})


async def test_a_redis_that_came_back_with_an_older_version_gets_the_newer_one_again(
    shelf: Shelf, pool: Pool
) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(3, "round_robin", at=9.0))
    await made.poll()
    shelf.put(version(2, "random", at=5.0))
    with capture_logs() as told:
        await made.poll()
        await made.poll()
    assert (pool.policy_name, pool.policy_version) == ("round_robin", 3)
    assert orjson.loads(shelf.versions["p"])["version"] == 3
    assert [(entry["log_level"], entry["version"], entry["kept"]) for entry in told] == [("warning", 2, 3)]


async def test_a_lower_version_that_was_made_later_is_a_decision_and_is_followed(
    shelf: Shelf, pool: Pool
) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(3, "round_robin", at=5.0))
    await made.poll()
    shelf.put(version(2, "random", at=9.0))
    await made.poll()
    assert (pool.policy_name, pool.policy_version) == ("random", 2)


async def test_polls_that_redis_refuses_again_and_again_are_told_once_with_the_command(
    shelf: Shelf, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        error = NoPermissionError("this user has no permissions to run the 'get' command")
        raise AtKey("kvsteer:policies", error)

    made, _ = follower(shelf, pool)
    with monkeypatch.context() as patch, capture_logs() as told:
        patch.setattr(shelf, "revision", refuse)
        for _ in range(2):
            await made.poll()
        assert made.trouble.why == ""
        for _ in range(3):
            await made.poll()
    assert made.trouble.why == (
        "policies: the user may not call GET; docs/redis.md lists what it needs (key kvsteer:policies)"
    )
    assert [entry["log_level"] for entry in told] == ["warning"]
    await made.poll()
    assert made.trouble.why == ""


async def test_a_change_of_the_shadow_alone_keeps_what_the_policy_remembers(shelf: Shelf, pool: Pool) -> None:
    made, _ = follower(shelf, pool)
    shelf.put(version(1, "round_robin", "random"))
    await made.poll()
    policy, shadow = pool.policy, pool.shadow
    shelf.put(version(2, "round_robin", "least_request"))
    await made.poll()
    assert pool.policy is policy
    assert pool.shadow is not shadow
    kept = pool.shadow
    shelf.put(version(3, "random", "least_request"))
    await made.poll()
    assert pool.shadow is kept
    shelf.put(version(4, "random"))
    await made.poll()
    assert pool.shadow is None


async def test_what_is_shown_says_where_it_is_from(shelf: Shelf, pool: Pool) -> None:
    assert shown(pool)["source"] == "file"
    made, _ = follower(shelf, pool)
    shelf.put(version(7, "charged_cost", gain=2.0))
    await made.poll()
    assert made.shown() == [
        {
            "pool": "p",
            "version": 7,
            "source": "redis",
            "policy": {"name": "charged_cost", "settings": {"gain": 2.0}},
            "shadow": None,
            "who": "ops",
            "when": 5.0,
            "why": "to see",
            "refused": None,
        }
    ]


def test_versions_that_are_lost_while_gateways_use_one_are_not_called_none() -> None:
    own = PolicySettings(name="random")
    assert "each gateway chooses as its own file says (here: random" in no_versions("p", own, {})
    used = {"gw-0": {"version": 3, "refused": None}, "gw-1": {"version": 0, "refused": None}}
    said = no_versions("p", own, used)
    assert said.startswith("pool p: Redis has no versions any more, and gateways use version 3;")
