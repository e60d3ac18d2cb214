"""Orders of operators: what they ask of pools, with hand-written ones in Redis, and what deadlines do."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from aiohttp.test_utils import make_mocked_request
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from extproc.core.lifecycle import HEALTHY, QUIESCING, WARMING
from extproc.core.membership import Endpoint, Membership
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.operator import OperatorDesk
from extproc.io.orders import patience_of, read_order
from extproc.io.redis_check import AtKey, cause
from extproc.io.roster import FixedRoster

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


class Clocks:
    """A monotonic clock and a wall clock that only move when they are told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_800_000_000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(clock, "monotonic", clocks.monotonic)
    monkeypatch.setattr(clock, "wall", clocks.wall)
    return clocks


class Redis:
    """The few calls the desk makes, on a dict."""

    def __init__(self, off: float = 0.0) -> None:
        self.keys: dict[str, dict[bytes, bytes]] = {}
        self.ttl = 0.0
        self.off = off
        self.trips = 0
        #: What each call answers instead, by its name.
        self.refuses: dict[str, Exception] = {}
        #: Awaited after Redis answered a round trip, before who asked has the answers.
        self.between: Callable[[], Awaitable[None]] = self.at_once

    async def at_once(self) -> None:
        """Nothing happens in between."""

    async def time(self) -> tuple[int, int]:
        """Of a clock that is so many seconds off."""
        now = clock.monotonic() + 1_800_000_000.0 + self.off
        return int(now), int(now % 1 * 1e6)

    def pipeline(self, transaction: bool) -> "Pipe":
        assert not transaction
        self.trips += 1
        return Pipe(self)

    def order(self, address: str) -> dict[str, Any] | None:
        raw = self.keys.get("kvsteer:operator:chat", {}).get(address.encode())
        return None if raw is None else orjson.loads(raw)


def copied(held: Any) -> Any:
    return held if isinstance(held, Exception) else dict(held)


class Faulty(dict[str, dict[bytes, bytes]]):
    """Keys of which some are of another type."""

    def __init__(self, held: dict[str, dict[bytes, bytes]], faults: dict[str, Exception]) -> None:
        super().__init__(held)
        self.faults = faults

    def get(self, key: str, default: Any = None) -> Any:
        return self.faults.get(key) or super().get(key, default)


class Pipe:
    """The calls of one round trip."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.calls: list[Callable[[], Any]] = []

    async def __aenter__(self) -> "Pipe":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def hgetall(self, key: str) -> None:
        self._add("hgetall", lambda: copied(self.redis.keys.get(key, {})))

    def expire(self, _key: str, seconds: float) -> None:
        self._add("expire", lambda: None)

    def eval(self, _script: str, _keys: int, key: str, *said: Any) -> None:
        """What the script of io/order_store.py does; test_drains.py runs the real one."""
        self._add("eval", lambda: self._write(key, *said))

    async def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        answers = self._answers()
        await self.redis.between()
        return answers

    def _answers(self) -> list[Any]:
        return [call() for call in self.calls]

    def _add(self, name: str, call: Callable[[], Any]) -> None:
        self.calls.append(lambda: self.redis.refuses[name] if name in self.redis.refuses else call())

    def _write(
        self, key: str, read: int, least: int, word: str, ttl: float, exactly: bytes, count: int, *said: Any
    ) -> bytes:
        held = self.redis.keys.setdefault(key, {})
        if exactly and exactly != b"=" + held.get(b"*count", b""):
            return b""
        there = int(held.get(b"*count", b"0:").split(b":")[0])
        if there < read:
            return b""
        for field, raw in zip(said[:count:2], said[1:count:2], strict=True):
            held[field.encode()] = raw
        for field in said[count:]:
            held.pop(field.encode(), None)
        held |= {b"*": b"{}", b"*count": b"%d:%b" % (max(there, least) + 1, word.encode())}
        self.redis.ttl = ttl
        return held[b"*count"]


class Discovered:
    """A roster on a Membership, as PoolFollower is one."""

    def __init__(self, pool: Pool) -> None:
        self.members = Membership(["dns"])
        self.pool = pool
        self.after: Callable[[], None] = lambda: None

    def names(self, *addresses: str, terminating: tuple[str, ...] = ()) -> None:
        found = [Endpoint(address=a, terminating=a in terminating) for a in addresses]
        self._tell(self.members.took("dns", found, clock.monotonic()))

    @property
    def dropped(self) -> Any:
        return self.members.dropped

    def drop(self, address: str) -> None:
        self._tell(self.members.drop(address, clock.monotonic()))

    def restore(self, address: str) -> None:
        self._tell(self.members.restore(address))

    def terminating(self, address: str) -> bool:
        return address in self.members.endpoints and self.members.endpoints[address].terminating

    def _tell(self, changes: Any) -> None:
        if not changes:
            return
        now = clock.monotonic()
        for endpoint in changes.joined:
            self.pool.join(endpoint.address, now, None if changes.first else now)
        for address in changes.left:
            self.pool.leave(address)
        for endpoint in changes.terminating:
            self.pool.get(endpoint.address).drain("discovery", now)  # type: ignore[union-attr]
        for endpoint in changes.returned:
            if self.pool.get(endpoint.address).life.cause == "discovery":  # type: ignore[union-attr]
                self.pool.get(endpoint.address).undrain("discovery", now)  # type: ignore[union-attr]
        self.after()


class Gateway:
    """A pool with its desk."""

    def __init__(self, redis: Redis | None = None, discovered: bool = False) -> None:
        self.pool = Pool("chat", now=clock.monotonic())
        self.redis = redis
        if not discovered:
            for address in (A, B):
                self.pool.join(address, clock.monotonic())
        self.discovery = Discovered(self.pool)
        roster = self.discovery if discovered else FixedRoster(self.pool, [A, B])
        self.desk = OperatorDesk([self.pool], "kvsteer", redis is not None, {"chat": roster})
        self.discovery.after = self.desk.enforce
        if discovered:
            self.discovery.names(A, B)

    async def order(self, address: str, what: str) -> tuple[int, dict[str, Any]]:
        handler = next(r.handler for r in self.desk.routes() if r.path.endswith("/" + what.partition("?")[0]))
        path = f"/replicas/{address}/{what}"
        request = make_mocked_request("POST", path, match_info={"address": address}, app=Mock())
        answer = await handler(request)  # type: ignore[arg-type, misc]
        return answer.status, orjson.loads(answer.body)  # type: ignore[arg-type, union-attr]

    def tick(self) -> None:
        for address in self.pool.tick(clock.monotonic()):
            self.desk.gone(self.pool, address)
        self.desk.enforce()

    async def beat(self) -> None:
        await self.desk.sync(self.redis)

    def state(self, address: str) -> str | None:
        replica = self.pool.get(address)
        return None if replica is None else replica.life.state

    def removed(self) -> list[str]:
        return [row["replica"] for row in self.desk.removed()]


# -- orders as they stand in Redis ---------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b'{"deadline": "nan"}', b'{"deadline": true}', b'{"deadline": [1]}', b"{}"])
def test_a_deadline_that_is_no_time_is_none_and_removes_nobody(raw: bytes) -> None:
    order = read_order(raw, 10.0)
    assert order is not None
    assert order.due is None


@pytest.mark.parametrize("raw", [b"not json at all", b"[]", b"1", b"null", b"", b"\xff"])
async def test_what_is_no_order_drains_nobody_and_is_told_once(time: Clocks, raw: bytes) -> None:
    redis = Redis()
    gateway = Gateway(redis)
    await gateway.beat()
    redis.keys["kvsteer:operator:chat"][A.encode()] = raw
    with capture_logs() as told:
        for _ in range(3):
            await gateway.beat()
    assert gateway.state(A) == HEALTHY
    assert [entry["replica"] for entry in told if "can't be read" in entry["event"]] == [A]
    assert redis.keys["kvsteer:operator:chat"][A.encode()] == raw, "it is not ours to take away"


async def test_an_order_under_no_address_is_ignored_and_not_put_back(time: Clocks) -> None:
    redis = Redis()
    gateway = Gateway(redis)
    await gateway.order(B, "drain")
    await gateway.beat()
    redis.keys["kvsteer:operator:chat"] |= {b"no address": b"{}", b"[::ffff:10.0.0.1]:8000": b"{}"}
    with capture_logs() as told:
        await gateway.beat()
    assert [entry["reason"] for entry in told] == ["its field is no address"] * 2
    redis.keys.clear()
    await gateway.beat()
    held = redis.keys["kvsteer:operator:chat"]
    assert {field for field in held if not field.startswith(b"*")} == {B.encode()}


async def test_an_order_that_somebody_wrote_over_still_holds_and_is_put_right(time: Clocks) -> None:
    redis = Redis()
    gateway = Gateway(redis)
    await gateway.order(A, "drain")
    await gateway.beat()
    redis.keys["kvsteer:operator:chat"][A.encode()] = b"garbage"
    await gateway.beat()
    assert gateway.state(A) == QUIESCING
    assert redis.order(A) is not None


# -- an older state, and a Redis that takes nothing -----------------------------------------------------------


async def test_a_redis_that_came_back_older_ends_no_drain_and_brings_none_back(time: Clocks) -> None:
    redis = Redis()
    one, two = Gateway(redis), Gateway(redis)
    await one.order(B, "drain")
    await one.beat()
    await two.beat()
    older = {key: dict(held) for key, held in redis.keys.items()}
    time.now += 1
    await one.order(A, "drain")
    await one.order(B, "undrain")
    await one.beat()
    await two.beat()
    redis.keys = older
    with capture_logs() as told:
        await two.beat()
        await one.beat()
        await two.beat()
    for gateway in (one, two):
        assert (gateway.state(A), gateway.state(B)) == (QUIESCING, HEALTHY)
    assert redis.order(A) is not None
    assert redis.order(B) is None
    assert [(e["log_level"], e["orders"]) for e in told] == [("warning", 1)], "told by who put it right"


async def test_an_order_given_to_an_older_redis_by_a_fresh_gateway_counts(time: Clocks) -> None:
    redis = Redis()
    one = Gateway(redis)
    await one.beat()
    older = {key: dict(held) for key, held in redis.keys.items()}
    await one.order(A, "drain?deadline=600")
    await one.beat()
    await one.order(A, "drain?deadline=500")
    await one.beat()
    redis.keys = older
    time.now += 1
    fresh = Gateway(redis)
    await fresh.order(B, "drain")
    await fresh.order(A, "drain?deadline=60")
    await fresh.beat()
    await one.beat()
    await fresh.beat()
    for gateway in (one, fresh):
        assert (gateway.state(A), gateway.state(B)) == (QUIESCING, QUIESCING)
        replica = gateway.pool.get(A)
        assert replica is not None
        assert replica.life.deadline == pytest.approx(1061.0), "the later order counts"


async def test_a_read_that_is_taken_in_after_our_own_write_is_no_older_redis(time: Clocks) -> None:
    redis = Redis()
    one, other = Gateway(redis), Gateway(redis)
    await one.beat()
    await other.beat()
    has_read, goes_on = asyncio.Event(), asyncio.Event()

    async def held_up() -> None:
        redis.between = redis.at_once
        has_read.set()
        await goes_on.wait()

    redis.between = held_up
    with capture_logs() as told:
        early = asyncio.create_task(one.desk.look(redis))
        await has_read.wait()
        await one.order(A, "drain")
        written = asyncio.create_task(one.desk.look(redis))
        for _ in range(20):  # as far as it comes while the other one's answers are on their way
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(early, written)
        assert redis.order(A) is not None
        await one.desk.look(redis)
    assert [entry["event"] for entry in told] == []
    assert one.state(A) == QUIESCING


async def test_an_undrain_elsewhere_is_not_undone_by_who_writes_again_what_redis_lost(time: Clocks) -> None:
    redis = Redis()
    one, other = Gateway(redis), Gateway(redis)
    await one.order(A, "drain")
    await one.beat()
    await other.beat()
    redis.keys.clear()

    async def undrained_elsewhere() -> None:
        redis.between = redis.at_once
        await other.beat()
        await other.order(A, "undrain")
        await other.desk.look(redis)

    redis.between = undrained_elsewhere  # between the read of `one` and its write
    await one.desk.look(redis)
    await other.desk.look(redis)
    assert redis.order(A) is None
    assert (one.state(A), other.state(A)) == (HEALTHY, HEALTHY)


async def test_an_answer_says_every_gateway_only_when_the_order_stands_in_redis(time: Clocks) -> None:
    redis = Redis()
    gateway = Gateway(redis)

    async def push() -> None:
        with suppress(AtKey):
            await gateway.desk.look(redis)

    gateway.desk.push = push
    _, said = await gateway.order(A, "drain")
    assert (said["reaches"], said["written"]) == ("every gateway on this Redis", True)
    for refused in ("hgetall", "eval"):
        redis.refuses = {refused: ResponseError("WRONGTYPE Operation against a key")}
        for what in ("drain", "undrain", "drain"):
            _, said = await gateway.order(B, what)
            assert said["written"] is False
            assert said["reaches"].startswith("this gateway only for now (Redis did not take it")
    assert redis.order(B) is None
    redis.refuses = {}
    await gateway.beat()
    assert redis.order(B) is not None, "it is written when Redis takes it"
    _, said = await Gateway().order(A, "drain")
    assert (said["reaches"], said["written"]) == ("this gateway only", None)


async def test_a_look_is_one_round_trip_and_a_write_one_more_whatever_the_number_of_pools(
    time: Clocks,
) -> None:
    redis = Redis()
    pools = [Pool(f"pool-{n}", now=0.0) for n in range(40)]
    desk = OperatorDesk(pools, "kvsteer", True)
    await desk.sync(redis)
    assert redis.trips == 2, "read, and the marks written"
    await desk.look(redis)
    await desk.sync(redis, 0.0)
    assert redis.trips == 4


async def test_one_pools_key_of_a_wrong_type_is_named_and_holds_up_no_other_pool(time: Clocks) -> None:
    redis = Redis()
    pools = [Pool(name, now=0.0) for name in ("bad", "chat")]
    for pool in pools:
        pool.join(A, 0.0)
    desk = OperatorDesk(pools, "kvsteer", True)
    answers: dict[str, Exception] = {
        "kvsteer:operator:bad": ResponseError("WRONGTYPE Operation against a key")
    }
    redis.keys["kvsteer:operator:chat"] = {b"*": b"{}", A.encode(): b"{}"}
    redis.keys = Faulty(redis.keys, answers)
    with pytest.raises(AtKey) as caught:
        await desk.sync(redis)
    assert "the key kvsteer:operator:bad is of another type" in cause(caught.value)
    assert [pool.get(A).life.state for pool in pools] == [HEALTHY, QUIESCING]  # type: ignore[union-attr]


def test_times_of_redis_are_brought_to_our_clock_and_back() -> None:
    raw = b'{"deadline":1800001060.0,"who":"ops","at":1800001000.0}'
    order = read_order(raw, 1_800_000_000.0)  # its clock showed that when ours was 0
    assert order is not None
    assert (order.due, order.given_at, order.who) == (1060.0, 1000.0, "ops")
    assert order.written(1_800_000_000.0).raw == raw


@pytest.mark.parametrize("of_redis", [0.0, 3600.0, -3600.0])
@pytest.mark.parametrize("of_gateways", [0.0, 3600.0, -3600.0])
async def test_a_drain_lasts_as_long_as_was_said_whosever_clock_is_an_hour_off(
    time: Clocks, monkeypatch: pytest.MonkeyPatch, of_redis: float, of_gateways: float
) -> None:
    redis = Redis(of_redis)
    one, two = Gateway(redis), Gateway(redis)
    monkeypatch.setattr(clock, "wall", lambda: time.now + of_gateways)
    await one.order(A, "drain?deadline=60")
    await one.beat()
    monkeypatch.setattr(clock, "wall", lambda: time.now - of_gateways)
    time.now += 20
    await two.beat()
    late = Gateway(redis)
    await late.beat()
    time.now += 39.9
    for gateway in (one, two, late):
        await gateway.beat()
        gateway.tick()
        assert (gateway.state(A), gateway.removed()) == (QUIESCING, [])
    time.now += 0.2
    for gateway in (one, two, late):
        gateway.tick()
        assert (gateway.state(A), gateway.removed()) == (None, [A])


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "604801"])
def test_a_patience_that_is_none_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match=r"from 1 to 604800, as in"):
        patience_of(text)


# -- deadlines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discovered", [False, True])
async def test_a_replica_whose_deadline_passed_is_shown_as_removed_and_undrain_brings_it_back(
    time: Clocks, discovered: bool
) -> None:
    gateway = Gateway(discovered=discovered)
    assert (await gateway.order(A, "drain?deadline=60"))[0] == 200
    assert gateway.state(A) == QUIESCING
    time.now += 59.9
    gateway.tick()
    assert (gateway.state(A), gateway.removed()) == (QUIESCING, [])
    time.now += 0.1
    gateway.tick()
    assert (gateway.state(A), gateway.removed()) == (None, [A])
    if discovered:
        gateway.discovery.names(A, B)
    gateway.tick()
    assert gateway.state(A) is None, "what discovery still names does not come back by itself"
    status, said = await gateway.order(A, "undrain")
    assert (status, said["state"], said["changed"]) == (200, WARMING, True)
    assert (gateway.state(A), gateway.removed()) == (WARMING, [])
    time.now += 3600
    gateway.tick()
    assert gateway.state(A) == HEALTHY


async def test_a_removed_replica_that_discovery_names_no_more_is_forgotten_and_its_successor_serves(
    time: Clocks,
) -> None:
    redis = Redis()
    gateway = Gateway(redis, discovered=True)
    await gateway.order(A, "drain?deadline=60")
    await gateway.beat()
    time.now += 61
    gateway.tick()
    assert gateway.removed() == [A]
    gateway.discovery.names(B)
    gateway.tick()
    assert gateway.removed() == []
    gateway.discovery.names(A, B)
    assert gateway.state(A) == WARMING, "a new replica at the old address joins"
    await gateway.beat()
    assert (gateway.state(A), redis.order(A)) == (WARMING, None)


async def test_a_successor_that_is_named_at_once_serves_too(time: Clocks) -> None:
    gateway = Gateway(Redis(), discovered=True)
    await gateway.order(A, "drain?deadline=60")
    await gateway.beat()
    time.now += 61
    gateway.tick()
    gateway.discovery.names(B)
    gateway.discovery.names(A, B)  # before any tick
    await gateway.beat()
    gateway.tick()
    assert (gateway.state(A), gateway.removed()) == (WARMING, [])


async def test_an_undrain_of_a_removed_replica_reaches_the_other_gateway(time: Clocks) -> None:
    redis = Redis()
    one, two = Gateway(redis), Gateway(redis, discovered=True)
    await one.order(A, "drain?deadline=60")
    await one.beat()
    await two.beat()
    time.now += 61
    for gateway in (one, two):
        gateway.tick()
        await gateway.beat()
        assert gateway.removed() == [A]
    await one.order(A, "undrain")
    await one.beat()
    await two.beat()
    assert (two.state(A), two.removed(), redis.order(A)) == (WARMING, [], None)


async def test_a_gateway_that_starts_after_the_deadline_removes_the_replica_and_can_bring_it_back(
    time: Clocks,
) -> None:
    redis = Redis()
    one = Gateway(redis)
    await one.order(A, "drain?deadline=60")
    await one.beat()
    time.now += 7200
    late = Gateway(redis, discovered=True)
    await late.beat()
    assert (late.state(A), late.removed()) == (None, [A])
    assert (await late.order(A, "undrain"))[0] == 200
    assert late.state(A) == WARMING


async def test_a_changed_deadline_reaches_the_other_gateway_while_the_replica_drains(time: Clocks) -> None:
    redis = Redis()
    one, two = Gateway(redis), Gateway(redis)
    for patience, due in (("?deadline=600", 1600.0), ("?deadline=60", 1060.0), ("", None)):
        await one.order(A, f"drain{patience}")
        await one.beat()
        await two.beat()
        for gateway in (one, two):
            replica = gateway.pool.get(A)
            assert replica is not None
            assert replica.life.state == QUIESCING
            assert replica.life.deadline == (due if due is None else pytest.approx(due))


async def test_an_order_outlives_its_deadline_though_every_gateway_is_down_meanwhile(time: Clocks) -> None:
    redis = Redis()
    gateway = Gateway(redis)
    await gateway.order(A, "drain?deadline=604800")  # the longest: a week
    await gateway.beat()
    assert redis.ttl > 604_800 + 86_400


async def test_an_order_for_a_replica_nobody_knows_is_forgotten_a_day_after_its_deadline(
    time: Clocks,
) -> None:
    redis = Redis()
    gateway = Gateway(redis, discovered=True)
    await gateway.order(A, "drain?deadline=60")
    await gateway.beat()
    gateway.discovery.names(B)
    time.now += 60 + 86_000
    await gateway.beat()
    await gateway.beat()
    assert redis.order(A) is not None, "a gateway whose discovery has not answered yet may still need it"
    time.now += 1_000
    await gateway.beat()
    await gateway.beat()
    assert redis.order(A) is None


async def test_an_emptied_redis_is_told_again_what_holds_also_of_removed_replicas(time: Clocks) -> None:
    redis = Redis()
    gateway = Gateway(redis)
    await gateway.order(A, "drain?deadline=60")
    await gateway.order(B, "drain")
    await gateway.beat()
    time.now += 61
    gateway.tick()
    redis.keys.clear()
    await gateway.beat()
    assert redis.order(A) is not None
    assert redis.order(B) is not None
    assert (gateway.removed(), gateway.state(B)) == ([A], QUIESCING)


async def test_draining_a_removed_replica_again_changes_nothing(time: Clocks) -> None:
    gateway = Gateway()
    await gateway.order(A, "drain?deadline=60")
    time.now += 61
    gateway.tick()
    status, said = await gateway.order(A, "drain?deadline=600")
    assert (status, said["state"], said["changed"]) == (200, "removed", False)
    assert gateway.removed() == [A]


# -- beside discovery ----------------------------------------------------------------------------------------


async def test_a_drain_holds_when_discovery_takes_its_own_back(time: Clocks) -> None:
    gateway = Gateway(discovered=True)
    gateway.discovery.names(A, B, terminating=(A,))
    await gateway.order(A, "drain")
    gateway.discovery.names(A, B)
    assert gateway.state(A) == QUIESCING


async def test_an_undrain_does_not_bring_back_what_discovery_says_is_running_out(time: Clocks) -> None:
    gateway = Gateway(discovered=True)
    await gateway.order(A, "drain")
    gateway.discovery.names(A, B, terminating=(A,))
    assert (await gateway.order(A, "undrain"))[1]["state"] == QUIESCING
    gateway.discovery.names(A, B)
    assert gateway.state(A) == HEALTHY


async def test_a_drained_replica_that_left_and_came_back_is_still_drained(time: Clocks) -> None:
    gateway = Gateway(discovered=True)
    await gateway.order(A, "drain")
    gateway.discovery.names(B)
    gateway.discovery.names(A, B)
    assert gateway.state(A) == QUIESCING


# -- refusals ------------------------------------------------------------------------------------------------


async def test_an_undrain_of_a_replica_that_is_not_drained_says_so_with_a_hint(time: Clocks) -> None:
    gateway = Gateway(discovered=True)
    status, said = await gateway.order(A, "undrain")
    assert status == 409
    assert said["error"] == (
        f"{A} is not drained, it is healthy; nothing was changed. kvsteer replicas shows every state"
    )
    gateway.discovery.names(A, B, terminating=(A,))
    status, said = await gateway.order(A, "undrain")
    assert status == 409
    assert "quiescing because of discovery" in said["error"]


async def test_an_order_for_an_unknown_replica_names_the_known_ones_removed_ones_included(
    time: Clocks,
) -> None:
    gateway = Gateway()
    await gateway.order(A, "drain?deadline=1")
    time.now += 2
    gateway.tick()
    for what in ("drain", "undrain"):
        status, said = await gateway.order("10.9.9.9:1", what)
        assert (status, said["error"]) == (404, f"no replica '10.9.9.9:1'; there are: {A}, {B}")


async def test_the_list_of_known_replicas_is_bounded(time: Clocks) -> None:
    gateway = Gateway(discovered=True)
    gateway.discovery.names(*(f"10.0.{i // 250}.{i % 250 + 1}:8000" for i in range(300)))
    _, said = await gateway.order("10.9.9.9:1", "drain")
    assert said["error"].endswith(", and 250 more")
    assert len(said["error"]) < 2000


async def test_a_replica_is_found_by_any_spelling_of_its_address(time: Clocks) -> None:
    gateway = Gateway()
    status, said = await gateway.order("[::ffff:10.0.0.1]:8000", "drain")
    assert (status, said["replica"], gateway.state(A)) == (200, A, QUIESCING)
