"""When a snapshot is loaded, tried again, and written, with Redis played by a double."""

from unittest.mock import AsyncMock, Mock

import pytest
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.reach import Position, Reach
from extproc.core.shared import Shared
from extproc.io.redis_check import AtKey
from extproc.io.snapshot_duty import SnapshotDuty
from extproc.io.state_snapshot import Head, Snapshots


class World:
    """One gateway's duty; the journal begins at 40 and was read to 60, unless it is said otherwise."""

    def __init__(self, read: bool = True, pairs: bool = True) -> None:
        self.now = 100.0
        pool = Pool("chat", now=0.0)
        replica = pool.join("10.0.0.1:8000", 0.0)
        pool.place(replica, [Chain([1], [1024])] if pairs else [], 0.0)
        self.reach = Reach(["chat"])
        if read:
            self.reach.read((40, 0))
        self.snapshots = Mock(
            head=AsyncMock(return_value=None),
            take=AsyncMock(return_value=(5, True)),
            oldest=AsyncMock(return_value=(40, 0)),
            write=AsyncMock(return_value=(60, 0)),
        )
        self.lease = Mock(held=False)
        shared = Shared([pool], ("me", 1))
        self.duty = SnapshotDuty(
            self.snapshots, shared, self.reach, {"chat": self.lease}, lambda: (60, 0), lambda: self.now
        )

    def there_is(self, gen: str, position: Position) -> None:
        self.snapshots.head.return_value = Head(gen, 1, position)

    @property
    def loads(self) -> int:
        return int(self.snapshots.take.call_count)


async def test_a_snapshot_is_loaded_once_and_then_nothing_is_asked_any_more() -> None:
    world = World()
    world.there_is("a", (50, 0))
    for _ in range(3):
        await world.duty.look()
    assert (world.loads, world.snapshots.head.call_count) == (1, 1)
    assert world.reach.whole


async def test_a_snapshot_loaded_before_the_journals_beginning_was_known_counts_then() -> None:
    world = World(read=False)
    world.there_is("a", (50, 0))
    await world.duty.look()
    world.reach.gap()
    world.reach.read((40, 0))
    await world.duty.look()
    assert world.reach.whole
    assert world.loads == 1, "it is here already"


async def test_with_a_hole_before_the_journal_each_newer_snapshot_is_loaded_until_it_is_closed() -> None:
    world = World()
    for gen, position, whole in (
        ("a", (30, 0), False),
        ("a", (30, 0), False),
        ("b", (39, 9), False),
        ("c", (41, 0), True),
    ):
        world.there_is(gen, position)
        await world.duty.look()
        assert world.reach.whole is whole
    assert world.loads == 3


async def test_a_snapshot_with_a_piece_missing_is_tried_again_at_growing_waits() -> None:
    world = World()
    world.there_is("a", (50, 0))
    world.snapshots.take.return_value = (5, False)
    tried = []
    for tenth in range(100):
        world.now = 100.0 + tenth / 10
        before = world.loads
        await world.duty.look()
        if world.loads > before:
            tried.append(round(world.now - 100.0, 1))
    assert tried == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert not world.reach.whole
    world.there_is("b", (55, 0))
    world.snapshots.take.return_value = (5, True)
    await world.duty.look()
    assert world.reach.whole


async def test_when_redis_fails_in_the_middle_it_is_tried_again() -> None:
    world = World()
    world.there_is("a", (50, 0))
    world.snapshots.take.side_effect = Unreachable
    await world.duty.look()
    world.snapshots.take.side_effect = None
    world.now += 0.6
    await world.duty.look()
    assert world.reach.whole


async def test_who_lacks_something_does_not_want_to_write_for_ten_seconds() -> None:
    world = World()
    world.there_is("a", (30, 0))
    world.lease.held = True
    await world.duty.look()
    assert not world.duty.is_willing("chat")
    world.snapshots.write.assert_not_called()
    world.now += 10.1
    assert world.duty.is_willing("chat")
    await world.duty.look()
    world.snapshots.write.assert_called_once()
    assert world.reach.whole, "its own beginning is the fleet's"


async def test_where_there_is_no_snapshot_the_holder_writes_the_first() -> None:
    world = World()
    await world.duty.look()
    assert world.duty.is_willing("chat")
    world.snapshots.write.assert_not_called()
    world.lease.held = True
    await world.duty.look()
    world.snapshots.write.assert_called_once()
    assert world.reach.whole


@pytest.mark.parametrize(("oldest", "written"), [((40, 0), 0), ((51, 0), 1), (None, 1)])
async def test_the_holder_writes_when_the_journal_does_not_reach_back_any_more(
    oldest: Position | None, written: int
) -> None:
    world = World()
    world.there_is("a", (50, 0))
    world.lease.held = True
    await world.duty.look()
    world.snapshots.oldest.return_value = oldest
    await world.duty.look()
    assert world.snapshots.write.call_count == written


async def test_a_snapshot_from_beyond_the_streams_end_makes_nothing_whole_and_is_replaced() -> None:
    world = World()
    world.lease.held = True
    world.there_is("a", (50, 0))
    await world.duty.look()
    world.there_is("bad", (2**64 - 1, 2**64 - 1))
    await world.duty.look()
    world.snapshots.write.assert_called_once()
    late = World()
    late.there_is("bad", (2**64 - 1, 0))
    await late.duty.look()
    assert not late.reach.whole
    late.there_is("good", (50, 0))
    await late.duty.look()
    assert late.reach.whole


async def test_a_pool_without_traffic_is_written_empty_by_who_lacks_nothing_or_lacked_it_for_long() -> None:
    world = World(pairs=False)
    world.lease.held = True
    await world.duty.look()
    assert not world.snapshots.write.call_count, "another may have something to write"
    world.now += 10.1
    await world.duty.look()
    world.snapshots.write.assert_called_once()
    assert world.reach.whole


async def test_an_empty_view_that_is_not_whole_never_replaces_a_snapshot() -> None:
    world = World(pairs=False)
    world.lease.held = True
    world.there_is("a", (30, 0))
    world.now += 10.1
    await world.duty.look()
    world.snapshots.write.assert_not_called()


async def test_each_pool_has_a_writer_of_its_own() -> None:
    """A pool that whoever writes another does not have gets its snapshots too."""
    mine, theirs = Pool("mine", now=0.0), Pool("both", now=0.0)
    for pool in (mine, theirs):
        pool.place(pool.join("10.0.0.1:8000", 0.0), [Chain([1], [1024])], 0.0)
    reach = Reach(["mine", "both"])
    reach.read((40, 0))
    snapshots = Mock(
        head=AsyncMock(return_value=None),
        oldest=AsyncMock(return_value=(40, 0)),
        write=AsyncMock(return_value=(60, 0)),
    )
    leases = {"mine": Mock(held=True), "both": Mock(held=False)}
    duty = SnapshotDuty(
        snapshots, Shared([mine, theirs], ("me", 1)), reach, leases, lambda: (60, 0), lambda: 1.0
    )
    await duty.look()
    snapshots.write.assert_called_once_with(mine)
    assert (reach.is_whole("mine"), reach.is_whole("both")) == (True, False)


async def test_a_replica_that_joins_late_has_the_snapshot_loaded_again_and_the_next_one_too() -> None:
    world = World()
    world.there_is("a", (50, 0))
    await world.duty.look()
    world.duty.arrived("chat")  # the journal is read up to 60
    await world.duty.look()
    assert world.loads == 2
    assert not world.reach.whole
    world.there_is("b", (61, 0))
    await world.duty.look()
    assert world.loads == 3
    assert world.reach.whole


async def test_redis_that_refuses_snapshots_again_and_again_is_told_with_the_key() -> None:
    world = World()
    wrong = ResponseError("WRONGTYPE Operation against a key of another kind")
    world.snapshots.head.side_effect = AtKey("kvsteer:snapshot:chat", wrong)
    whys = []
    for _ in range(3):
        await world.duty.look()
        whys.append(world.duty.trouble.why)
    assert whys == [
        "",
        "",
        "snapshots: the key kvsteer:snapshot:chat is of another type than kvsteer's; rename or delete it",
    ]
    world.snapshots.head.side_effect = None
    await world.duty.look()
    assert world.duty.trouble.why == ""


async def test_the_key_that_redis_refuses_is_named_and_no_other() -> None:
    wrong = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    lease, pool = Mock(held=True, run=AsyncMock(side_effect=wrong)), Pool("chat", now=0.0)
    settings = RedisSettings(url="redis://127.0.0.1:1/0")
    snapshots = Snapshots(
        settings, Shared([pool], ("me", 1)), {"chat": lease}, "me", lambda: (0, 0), lambda: 0.0
    )
    calls: dict[str, Mock] = {"eval": AsyncMock(side_effect=wrong), "hmget": AsyncMock(side_effect=wrong)}
    snapshots._redis = Mock(set=AsyncMock(), aclose=AsyncMock(), **calls)
    for call, key in (
        (snapshots.oldest, "kvsteer:journal"),
        (lambda: snapshots.head("chat"), "kvsteer:snapshot:chat"),
    ):
        with pytest.raises(AtKey) as caught:
            await call()
        assert caught.value.key == key
    snapshots._redis.hmget = AsyncMock(return_value=[None] * 4)
    with pytest.raises(AtKey) as caught:
        await snapshots._swap("chat", "abc", 0, {})
    assert caught.value.key == "kvsteer:lease:snapshot:chat:token"


async def test_redis_that_is_gone_is_no_trouble_of_snapshots_for_the_registry_tells_it() -> None:
    world = World()
    world.snapshots.head.side_effect = Unreachable()
    for _ in range(5):
        await world.duty.look()
    assert world.duty.trouble.why == ""


async def test_one_pools_snapshot_that_fails_holds_up_no_other_pools() -> None:
    world = World()
    reach = Reach(["bad", "good"])
    reach.read((40, 0))

    async def head(pool: str) -> Head:
        if pool == "bad":
            raise ResponseError("WRONGTYPE")
        return Head("a", 1, (50, 0))

    world.snapshots.head = head
    pools = [Pool("bad", now=0.0), Pool("good", now=0.0)]
    leases = {"bad": world.lease, "good": world.lease}
    duty = SnapshotDuty(
        world.snapshots, Shared(pools, ("me", 1)), reach, leases, lambda: (60, 0), lambda: world.now
    )
    await duty.look()
    assert (reach.is_whole("bad"), reach.is_whole("good")) == (False, True)
