"""Large bodies read in a process of their own, which the first of them starts.

A body is read in one piece, 6 ms a MiB, most of it in one call of a JSON parser that lets no other thread run. In the
gateway's own process everybody else would wait for that. So there is a process for it, one for each gateway and one
body at a time, that gives way to the gateway where processors are scarce.

Nothing waits forever. A body that is not read within `patience` goes by load alone, as do those for which no room is
left. When the process dies, the body it was reading goes so too, as it may be what killed it; those behind it wait
for the next process. One that dies again and again is left alone for a while, and bodies are read in the gateway. One
that hangs, which is told by a body that it does not read in time, is ended and replaced, however often.
"""

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Collection
from typing import Final

import structlog

from extproc.core.dialects import Limits
from extproc.core.reading import Found, Unread, not_read
from extproc.io.reading import form
from extproc.io.reading.line import Line

_log = structlog.get_logger("kvsteer.reading")

# What became of large bodies: a closed set that labels a metric.
BESIDE: Final = "beside"
HERE: Final = "here"
LATE: Final = "late"
CROWDED: Final = "crowded"
LOST: Final = "lost"
GONE: Final = "gone"
WAYS: Final = (BESIDE, HERE, LATE, CROWDED, LOST, GONE)

#: Deaths without a body read between them, after which it is left alone, and for how many seconds.
_DEATHS, _LEFT_ALONE = 3, 30.0
#: Seconds after a death until the next start: for each death so far.
_PAUSE: Final = 0.25
#: Seconds that a body may take once the process has begun with it: `patience` within these bounds. Beyond, it hangs.
#: The worst that fits the default limits takes 1 s, a process' start half a second, each on a processor of its own.
_STUCK: Final = (5.0, 20.0)
#: Seconds in which the process must end once its socket is closed.
_GOODBYE: Final = 2.0
#: A body that waited so many seconds goes before smaller ones.
_OLD: Final = 1.0
#: Memory that the process frees is given back to the system at once (mallopt(3): a threshold that is set stays).
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**20)}


class _Job:
    """A body that is to be read, and who waits for it."""

    __slots__ = ("arrived", "done", "timer", "unread")

    def __init__(self, unread: Unread, done: Callable[[Found], None], arrived: float) -> None:
        self.unread, self.arrived = unread, arrived
        self.done: Callable[[Found], None] | None = done
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> Callable[[Found], None] | None:
        """Nobody waits any more; whoever did."""
        done, self.done = self.done, None
        if self.timer is not None:
            self.timer.cancel()
        return done


class Reader:
    """A gateway's reader of large bodies (`sessions.BodyReader`).

    Args:
        limits: what reading may cost.
        expanded: most bytes that a body may decompress to.
        patience: seconds after which a body goes by load alone.
        room: most bytes of bodies that wait.
        renamed: models that replicas know by other names, in whose compressed bodies the name is changed.

    Attributes:
        counts: bodies by what became of them, by WAYS.
        process: the process's id; None while there is none.
    """

    def __init__(
        self, limits: Limits, expanded: int, *, patience: float, room: int, renamed: Collection[str] = ()
    ) -> None:
        self._rules = form.rules(expanded, limits, renamed)
        self._patience, self._room = patience, room
        least, most = _STUCK
        self._longest = min(max(patience, least), most)
        self._waiting: dict[Unread, _Job] = {}
        self._size = 0
        self._job: _Job | None = None
        self._line: Line | None = None
        self._process: Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._deaths = self._lost_processes = 0  # in a row, and of all
        self._hangs = False
        self._alone_until = 0.0
        self._closed = False
        self.counts = dict.fromkeys(WAYS, 0)

    @property
    def waiting(self) -> int:
        """Bytes of bodies that wait."""
        return self._size

    @property
    def process(self) -> int | None:
        """The process's id; None while there is none."""
        return self._process.pid if self._process is not None else None

    # -- who asks ------------------------------------------------------------------------------------------

    def take(self, unread: Unread, done: Callable[[Found], None]) -> bool:
        """As `sessions.BodyReader`."""
        loop = asyncio.get_running_loop()
        if self._closed or loop.time() < self._alone_until:
            self.counts[HERE] += 1
            return False
        job = _Job(unread, done, loop.time())
        self._waiting[unread] = job
        self._size += unread.size
        if self._size > self._room and len(self._waiting) > 1:
            job.timer = loop.call_later(0, self._give_up, job, CROWDED)
            return True
        job.timer = loop.call_later(self._patience, self._give_up, job, LATE)
        if self._life is None:
            self._life = loop.create_task(self._live())
        self._next()
        return True

    def drop(self, unread: Unread) -> None:
        """As `sessions.BodyReader`."""
        if self._job is not None and self._job.unread is unread:
            if self._job.end() is not None:
                self.counts[GONE] += 1
        elif (job := self._taken(unread)) is not None and job.end() is not None:
            self.counts[GONE] += 1

    async def close(self) -> None:
        """Give up what waits, and end the process."""
        self._closed = True
        for job in list(self._waiting.values()):
            self._give_up(job, LOST)
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life

    def _taken(self, unread: Unread) -> _Job | None:
        """A body that waits no more."""
        job = self._waiting.pop(unread, None)
        if job is not None:
            self._size -= unread.size
        return job

    def _give_up(self, job: _Job, way: str) -> None:
        """It goes by load alone."""
        self._taken(job.unread)
        self._tell(job, not_read(job.unread.size), way)

    def _tell(self, job: _Job, found: Found, way: str) -> None:
        done = job.end()
        if done is not None:
            self.counts[way] += 1
            done(found)

    # -- one body after the other --------------------------------------------------------------------------

    def _next(self) -> None:
        """Begin with the next body: the smallest, unless the first has waited for long."""
        if self._line is None or self._job is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        first = next(iter(self._waiting.values()))
        if loop.time() - first.arrived < _OLD:
            first = min(self._waiting.values(), key=_likely)
        self._taken(first.unread)
        self._job = first
        self._stuck = loop.call_later(self._longest, self._hang)
        self._line.send(first.unread)

    def _done(self, found: Found, body: memoryview) -> None:
        job = self._job
        if job is not None and job.done is not None and body:
            job.unread.opened(body)
        self._rest()
        self._deaths = 0
        if job is not None:
            self._tell(job, found, BESIDE)
        self._next()

    def _rest(self) -> None:
        self._job = None
        if self._stuck is not None:
            self._stuck.cancel()

    # -- the process ---------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Start it, and again when it dies."""
        try:
            while not self._closed:
                self._hangs = False
                await self._once()
                self._count()
                if self._deaths >= _DEATHS:
                    self._leave_alone()
                    return
                await asyncio.sleep(_PAUSE * max(self._deaths, 1))
        finally:
            self._life = None

    def _count(self) -> None:
        """A process ended. One that hung did so by what it was given or for want of a processor: it could live."""
        self._lost_processes += 1
        if self._hangs:
            _log.error(
                "the reader of large bodies hangs; it was ended and is started again",
                seconds=self._longest,
                ends=self._lost_processes,
            )
            return
        self._deaths += 1
        _log.error(
            "the reader of large bodies died; it is started again",
            in_a_row=self._deaths,
            ends=self._lost_processes,
        )

    async def _once(self) -> None:
        """One process, from its start to its end."""
        ours, its = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-m", "extproc.io.reading.process"]
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=its.fileno(),
                stdout=DEVNULL,
                env={**os.environ, **_ALLOCATOR},
            )
        except OSError as error:
            _log.error("the reader of large bodies can't be started", error=str(error))
            ours.close()
            return
        except asyncio.CancelledError:
            ours.close()  # the process, should there be one, ends with it
            raise
        finally:
            its.close()
        self._line = Line(ours, self._rules, self._done, self._kill)
        try:
            self._next()
            await process.wait()
        finally:
            self._hang_up()
            await _ended(process)
            self._process = None

    def _hang_up(self) -> None:
        """The process is gone, or shall go: so is what it was reading."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
        job = self._job
        self._rest()
        if job is not None:
            self._tell(job, not_read(job.unread.size), LOST)

    def _hang(self) -> None:
        """It did not read a body in time."""
        self._hangs = True
        self._kill()

    def _kill(self) -> None:
        """It hangs, or is not there any more."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _leave_alone(self) -> None:
        """It can't live: bodies are read here for a while, and those that wait go by load alone."""
        self._deaths = 0
        self._alone_until = asyncio.get_running_loop().time() + _LEFT_ALONE
        _log.error("large bodies are read by the gateway itself, which holds up others", seconds=_LEFT_ALONE)
        for job in list(self._waiting.values()):
            self._give_up(job, LOST)


def _likely(job: _Job) -> tuple[bool, int]:
    """Sorts first what likely takes least: how much of a compressed body there is, its size does not tell."""
    return not job.unread.is_open, job.unread.size


async def _ended(process: Process) -> None:
    """Wait for the end of a process whose socket was closed; it is killed when that takes long."""
    try:
        async with asyncio.timeout(_GOODBYE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
