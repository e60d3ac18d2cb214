"""A gateway stops sharing within a bound, whatever Redis does at that moment."""

import asyncio
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from extproc.config import RedisSettings
from extproc.core.pool import Pool
from extproc.core.prompt import Chain
from extproc.core.steering import Rules, Steering
from extproc.demo.processes import Child
from extproc.demo.stack import Stack
from extproc.io.sharing import Sharing
from tests.integration.conftest import until_async
from tests.integration.patience import bar

#: To end tasks, one last batch, the leases and four clients, each with its own bound; and a busy machine.
BOUND = 6.0


def sharing(url: str, pairs: int = 0) -> Sharing:
    pool = Pool("chat", now=time.monotonic())
    replica = pool.join("10.0.0.1:8000", time.monotonic())
    pool.presume(replica, 10**9)
    rng = random.Random(1)
    for _ in range(pairs // 100):
        chain = Chain([rng.getrandbits(60) for _ in range(100)], [64 * (i + 1) for i in range(100)])
        pool.place(replica, [chain], time.monotonic())
    return Sharing(RedisSettings(url=url), Steering([pool], Rules(), rng), "gw")


@contextmanager
def paused(child: Child) -> Iterator[None]:
    child.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        child.signal(signal.SIGCONT)


async def stops(made: Sharing) -> None:
    """It stops in time, and leaves no task behind but those that end calls."""
    tasks = list(made._tasks._tasks.values())
    assert len(tasks) == 5
    began = time.monotonic()
    await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(made.stop())), bar(BOUND))
    assert time.monotonic() - began < bar(BOUND)
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize("after", [0.0, 0.002, 0.02, 0.2, 1.0])
async def test_while_it_connects_to_a_redis_that_is_paused(server: Stack, after: float) -> None:
    with paused(server.children["redis"]):
        made = sharing(server.redis_url)
        await made.start()
        await asyncio.sleep(after)
        await stops(made)


@pytest.mark.parametrize("after", [0.0, 0.1, 0.6])
async def test_after_redis_was_paused_under_it(server: Stack, after: float) -> None:
    made = sharing(server.redis_url)
    await made.start()
    await until_async(lambda: _is(lambda: made.state == "ok"), 5.0, "it shares")
    with paused(server.children["redis"]):
        await asyncio.sleep(after)
        await stops(made)


async def test_while_it_writes_and_another_loads_a_snapshot(server: Stack) -> None:
    made = sharing(server.redis_url, pairs=300_000)
    made.leases.of("snapshot:chat").willing = lambda: True
    await made.start()
    await until_async(lambda: _is(lambda: made.snapshots.written), 8.0, "a snapshot is written")
    late = sharing(server.redis_url)
    await late.start()
    await until_async(lambda: _is(lambda: len(late.shared.pools["chat"].index)), 5.0, "it loads")
    writing = asyncio.create_task(made.snapshots.write(made.shared.pools["chat"]))
    await asyncio.sleep(0.01)
    with paused(server.children["redis"]):
        await stops(late)
        await stops(made)
    await asyncio.gather(writing, return_exceptions=True)


async def test_while_nobody_takes_its_connections() -> None:
    """A listener whose queue is full: connecting neither fails nor succeeds."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(("127.0.0.1", port))
            made = sharing(f"redis://127.0.0.1:{port}")
            await made.start()
            await asyncio.sleep(0.1)
            await stops(made)
        finally:
            for one in waiting:
                one.close()


async def _is(asked: object) -> bool:
    return bool(asked())  # type: ignore[operator]
