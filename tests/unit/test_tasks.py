"""Background tasks end when they are told to, also where a cancellation was lost on the way."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from extproc.io import tasks
from extproc.io.tasks import Supervisor, end_all


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on is cancelled again soon."""
    monkeypatch.setattr(tasks, "_AGAIN", 0.01)


class Stubborn:
    """Work that loses its first cancellation, as `asyncio.wait_for` does at times."""

    def __init__(self) -> None:
        self.lost = 0
        self.began = asyncio.Event()

    async def run(self) -> None:
        while True:
            self.began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.lost += 1
                if self.lost > 1:
                    raise


async def test_a_task_that_lost_its_cancellation_ends_all_the_same() -> None:
    work = Stubborn()
    task = asyncio.create_task(work.run())
    await work.began.wait()
    async with asyncio.timeout(30):
        await end_all([task])
    assert (task.cancelled(), work.lost) == (True, 2)


async def test_a_supervisor_closes_over_such_a_task() -> None:
    work, supervisor = Stubborn(), Supervisor()
    supervisor.start("stubborn", work.run)
    await work.began.wait()
    async with asyncio.timeout(30):
        await supervisor.close()
    assert work.lost == 2


async def test_no_tasks_and_tasks_that_are_over_end_at_once() -> None:
    async def fails() -> None:
        raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await end_all([])
    await end_all([task])
    assert task.done()


async def test_a_task_that_never_ends_is_left_behind_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.io.tasks._LONGEST_END", 0.05)
    monkeypatch.setattr("extproc.io.tasks._AGAIN", 0.01)
    released = asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    task = asyncio.create_task(deaf(), name="deaf")
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await end_all([task])
    assert [line["task"] for line in logs] == ["deaf"]
    assert not task.done()
    released.set()
    await task
