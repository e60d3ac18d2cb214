"""Worker processes under one parent: started, told of and started again when they die, and stopped together.

Each worker is a `kvsteer serve` of its own with its standard input a pipe that the parent holds and never writes to.
When the parent dies, however it dies, the pipe ends, and the worker drains and stops: nobody is left behind.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence

import structlog

_log = structlog.get_logger("kvsteer.workers")

#: Seconds before a dead worker is started again: at first, and at most when it keeps dying.
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 10.0
#: A worker that lived so many seconds was well: its next death is a first one.
_WELL = 30.0
#: A worker that ends so early, by its own will, can't start: a port is taken, or the configuration is at fault.
_START = 10.0
#: Seconds a worker may take to stop beyond its own drain, until it is killed.
_PATIENCE = 10.0


class WorkerPool:
    """The workers of one parent.

    Args:
        command: worker's number -> its command line.
        environment: worker's number -> its environment.
        count: how many.
        stop_within: seconds a worker's own graceful stop may take.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Callable[[int], Mapping[str, str]],
        count: int,
        stop_within: float,
    ) -> None:
        self._command = command
        self._environment = environment
        self._count = count
        self._stop_within = stop_within + _PATIENCE
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        #: Exit status of a worker that could not start at all.
        self.status = 0

    def stop(self) -> None:
        """Ask every worker to drain and end; `run` returns when they have."""
        self._stopping.set()
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to every worker."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def run(self) -> int:
        """Keep the workers until `stop`; returns the exit status: 0, or of a worker that can't start."""
        await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        return self.status

    async def _keep(self, number: int) -> None:
        wait, ever_well = _FIRST_WAIT, False
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._once(number)
            lived = loop.time() - began
            if self._stopping.is_set():
                return
            if status in (1, 2) and lived < _START and not ever_well:
                self.status = self.status or status
                self.stop()  # the others serve for nothing: whoever started us must see that it failed
                return
            ever_well = True
            wait = _FIRST_WAIT if lived > _WELL else min(wait * 2, _LONGEST_WAIT)
            _log.error("worker died; it is started again", worker=number, status=status, seconds=wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)

    async def _once(self, number: int) -> int:
        """Run a worker to its end."""
        process = await asyncio.create_subprocess_exec(
            *self._command(number),
            env=self._environment(number),
            stdin=PIPE,
            stdout=DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on
        )
        self._processes[number] = process
        _log.info("worker started", worker=number, pid=process.pid)
        try:
            ended = asyncio.create_task(process.wait())
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            return await self._ended(process, ended)
        finally:
            del self._processes[number]

    async def _ended(self, process: Process, ended: "asyncio.Task[int]") -> int:
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()  # said once more: it may have been started as the others were told
            done, _ = await asyncio.wait({ended}, timeout=self._stop_within)
            if not done:
                _log.error("worker does not stop; it is killed", pid=process.pid)
                process.kill()
        return await ended


def end_with_parent(fd: int = 0) -> None:
    """In a worker: stop as on SIGTERM when the pipe at `fd` ends. Call it in the running loop."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(fd, 4096):
            loop.remove_reader(fd)
            _log.warning("the parent is gone; stopping")
            os.kill(os.getpid(), signal.SIGTERM)

    os.set_blocking(fd, False)
    loop.add_reader(fd, look)


def this_program() -> list[str]:
    """The command line that runs kvsteer as this process was."""
    return [sys.executable, "-m", "extproc"]
