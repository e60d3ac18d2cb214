"""Background work under supervision: a task that fails is told of, counted and started again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

_log = structlog.get_logger("kvsteer.tasks")

#: Waits between restarts of a failing task: long enough not to spin, short enough to be back soon.
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
#: Seconds after which a task that was cancelled and goes on is cancelled again, and is left behind.
_AGAIN = 0.2
_LONGEST_END = 5.0


async def end_all(tasks: "Iterable[asyncio.Task[None]]") -> None:
    """Cancel tasks until they ended; one that does not end at all is told of, and holds nobody.

    Once may not be enough: `asyncio.wait_for`, which libraries use, loses a cancellation that comes while what it
    waits for ends (Python 3.11).
    """
    every = list(tasks)
    left, now = set(every), asyncio.get_running_loop().time
    until = now() + _LONGEST_END
    while left and now() < until:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
    for task in left:
        _log.error("background task does not end; it is left behind", task=task.get_name())
    await asyncio.gather(*(task for task in every if task not in left), return_exceptions=True)


class Supervisor:
    """Owns the background tasks of a process; none outlives it.

    Args:
        on_failure: called with a task's name each time it fails.
    """

    def __init__(self, on_failure: Callable[[str], None] = lambda _name: None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` for as long as the supervisor lives, again and again if it raises; names are unique."""
        if name in self._tasks:
            raise ValueError(f"the task {name!r} runs already")
        self._tasks[name] = asyncio.create_task(self._keep(name, work), name=name)

    def every(self, name: str, seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
        """Call `work` now and then every `seconds`."""

        async def repeat() -> None:
            while True:
                result = work()
                if result is not None:
                    await result
                await asyncio.sleep(seconds)

        self.start(name, repeat)

    async def close(self) -> None:
        """Cancel every task and wait until it is gone."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        await end_all(tasks)

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop, wait = asyncio.get_running_loop(), _FIRST_WAIT
        while True:
            began = loop.time()
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a supervisor's job is to outlive any fault of its tasks
                self._on_failure(name)
                _log.exception("background task failed", task=name, error=type(error).__name__)
            else:
                return
            wait = _FIRST_WAIT if loop.time() - began > _LONGEST_WAIT else min(wait * 2, _LONGEST_WAIT)
            await asyncio.sleep(wait)
