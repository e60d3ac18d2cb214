"""How the journal is kept within its bounds, and begun anew where nothing can follow its last id."""

from unittest.mock import AsyncMock

import pytest
from redis.exceptions import ResponseError

from extproc.config import RedisSettings
from extproc.io.journal_counts import JournalCounts
from extproc.io.journal_stream import Stream, StreamClock

FULL = ResponseError("The stream has exhausted the last possible ID, unable to add more items")
T = 1_700_000_000_000


class World:
    """A stream at time 100.0 of ours, T of Redis'."""

    def __init__(self) -> None:
        self.now = 100.0
        self.counts, self.time = JournalCounts("me", 1), StreamClock()
        self.stream = Stream(
            RedisSettings(url="redis://127.0.0.1:1"), self.counts, self.time, lambda: self.now
        )
        self.redis = self.stream._redis = AsyncMock()
        self.gives(T)

    def gives(self, milliseconds: int) -> None:
        self.redis.xadd.return_value = f"{milliseconds}-0".encode()

    async def add(self, at: float) -> dict[str, object]:
        """How the batch that is added at a time cuts the stream."""
        self.now = at
        await self.stream.add(b"x")
        return dict(self.redis.xadd.call_args.kwargs)


async def test_after_the_last_possible_id_the_stream_is_begun_anew_with_the_same_batch() -> None:
    world = World()
    world.redis.xadd.side_effect = FULL
    world.redis.eval.return_value = [f"{T}-0".encode(), 1]
    await world.stream.add(b"news")
    assert world.redis.eval.call_args.args[3] == b"news"
    assert world.time.time(100.0) == T


async def test_other_errors_are_the_callers() -> None:
    world = World()
    world.redis.xadd.side_effect = ResponseError("WRONGTYPE")
    with pytest.raises(ResponseError):
        await world.stream.add(b"news")
    world.redis.eval.assert_not_called()


@pytest.mark.parametrize(("ahead", "renewed"), [(86_400_000, 0), (86_401_000, 1)])
async def test_ids_that_stand_still_far_ahead_of_redis_time_end_with_a_new_stream(
    ahead: int, renewed: int
) -> None:
    world = World()
    world.gives(T + ahead)
    world.redis.time.return_value = (T // 1000, 0)
    world.redis.eval.return_value = [f"{T}-0".encode(), 1]
    await world.add(100.0)
    await world.add(100.9)
    world.redis.time.assert_not_called()
    await world.add(101.1)
    assert world.redis.eval.call_count == renewed
    assert world.time.time(101.1) == T + (0 if renewed else ahead + 1100)


async def test_the_number_kept_is_what_fits_into_64_mib_at_the_size_that_batches_have() -> None:
    world = World()
    assert await world.add(100.0) == {"maxlen": 50_000, "approximate": True}
    world.counts.received(0, 100.0)
    for at in range(1, 251):  # 50 batches of 64 KiB a second
        world.counts.received(2**16, 100.0 + at / 50)
    world.gives(T + 5100)
    # 64 MiB / 64 KiB = 1024 entries, more than the 250 of five seconds.
    assert await world.add(105.1) == {"maxlen": 1024, "approximate": True}


async def test_a_full_redis_whose_ids_stand_still_is_cut_by_number() -> None:
    world = World()
    await world.add(100.0)
    world.counts.stream_batches = 20.0
    world.now = 110.0
    await world.stream.make_room()  # none was given for ten seconds; five seconds before now is T + 5,000
    assert world.redis.xtrim.call_args.kwargs == {"minid": T + 5000, "approximate": False}
    world.redis.time.return_value = (T // 1000, 0)
    await world.add(111.0)
    await world.stream.make_room()
    assert world.redis.xtrim.call_args.kwargs == {"maxlen": 100, "approximate": False}


def test_an_id_that_fell_is_another_streams_and_its_time_counts() -> None:
    clock = StreamClock()
    clock.saw((T + 10**9, 0), 100.0)
    clock.saw((T, 0), 101.0)
    assert clock.time(101.0) == T
    assert clock.age((T, 0), 101.5) == 0.5
