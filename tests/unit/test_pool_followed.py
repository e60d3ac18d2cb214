"""A pool whose replicas are discovered."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from extproc.core.membership import Endpoint
from extproc.io.discovery import Failed, Found
from extproc.io.following import PoolFollower
from extproc.io.tasks import Supervisor
from tests.unit.counted_pool import Counted


class Answers:
    """A source that gives these answers, one when it is asked for."""

    name = "answers"

    def __init__(self) -> None:
        self.given: asyncio.Queue[Found | Failed] = asyncio.Queue()

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        while True:
            yield await self.given.get()


async def test_an_answer_of_hundreds_is_taken_in_at_once_and_tells_once_who_left() -> None:
    pool, answers, members, left = Counted("p"), Answers(), [], []

    def on_members(now: dict[str, str]) -> None:
        assert {replica.address for replica in pool.replicas} == now.keys()
        members.append(len(now))

    def on_left(addresses: Sequence[str]) -> None:
        assert not any(pool.get(address) for address in addresses)
        left.append(len(addresses))

    follower = PoolFollower(pool, [answers], grace=0.0, limit=1_000, on_members=on_members, on_left=on_left)
    found = tuple(Endpoint(address=f"10.0.{n >> 8}.{n & 255}:80") for n in range(600))
    answers.given.put_nowait(Found(found))
    answers.given.put_nowait(Found(found[:1]))
    tasks = Supervisor()
    try:
        async with asyncio.timeout(60):
            await follower.start(tasks)
            while not left:
                await asyncio.sleep(0)
    finally:
        await tasks.close()
    assert (members, left, pool.arranged) == ([600, 1], [599], 2)
