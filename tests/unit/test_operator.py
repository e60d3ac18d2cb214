"""Orders of operators: what they ask of pools, with hand-written ones in Redis, and what deadlines do."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from aiohttp.test_utils import make_mocked_request

from extproc.core.lifecycle import HEALTHY, QUIESCING, WARMING
from extproc.core.membership import Endpoint, Membership
from extproc.core.pool import Pool
from extproc.io import clock
from extproc.io.operator import OperatorDesk
from extproc.io.orders import patience_of, read_order
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

    async def time(self) -> tuple[int, int]:
        """Of a clock that is so many seconds off."""
        now = clock.monotonic() + 1_800_000_000.0 + self.off
        return int(now), int(now % 1 * 1e6)

    async def hexists(self, key: str, field: bytes) -> bool:
        return field in self.keys.get(key, {})

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        return dict(self.keys.get(key, {}))

    async def hset(self, key: str, field: str | bytes, value: bytes) -> None:
        self.keys.setdefault(key, {})[field.encode() if isinstance(field, str) else field] = value

    async def hdel(self, key: str, field: str) -> None:
        self.keys.get(key, {}).pop(field.encode(), None)

    async def expire(self, _key: str, seconds: float) -> None:
        self.ttl = seconds

    def order(self, address: str) -> dict[str, Any] | None:
        raw = self.keys.get("kvsteer:operator:chat", {}).get(address.encode())
        return None if raw is None else orjson.loads(raw)


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


@pytest.mark.parametrize(
    "order", [b'{"deadline": "nan"}', b'{"deadline": true}', b'{"deadline": [1]}', b"{}", b"no JSON", b"[]"]
)
def test_a_deadline_that_is_no_time_is_none_and_drops_nobody(order: bytes) -> None:
    assert read_order(order, 10.0).due is None


def test_times_of_redis_are_brought_to_our_clock_and_back() -> None:
    raw = b'{"deadline":1800001060.0,"who":"ops","at":1800001000.0}'
    order = read_order(raw, 1_800_000_000.0)  # its clock showed that when ours was 0
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
