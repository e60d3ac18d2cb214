"""What stands between the gateway and a Redis that is slow, paused or gone: a deadline for every call, and a fuse.

    closed  --N failures in a row-->  open: calls fail at once  --the rest is over-->  one call tries
      ^                                 ^                                                |      |
      +---------- it succeeded ---------|------------------------------------------------+      |
                                        +------- it failed: a longer rest, with jitter ---------+

A paused Redis so costs one deadline now and then, and piles up nothing.

Each call is a task of its own, and who waits for it is let go at the deadline, or when it is cancelled, whatever the
task does: redis-py sends by `asyncio.wait_for`, which loses a cancellation that comes while what it waits for ends
(Python 3.11). A call that lost one is cancelled again and again in the background until it ends.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis import exceptions
from redis.exceptions import RedisError

T = TypeVar("T")

#: Seconds that a cancelled call has to put its connection in order, and between two cancellations of one that lives.
_TIDY, _AGAIN = 0.1, 0.2
#: Longest time to close a client's connections, seconds.
_CLOSE = 1.0
#: Tasks that end calls which nobody waits for any more; asyncio itself keeps no reference to a task.
_enders: "set[asyncio.Task[None]]" = set()

#: First rest after the fuse opened, seconds; it doubles up to the longest.
_FIRST_REST = 0.1


class RedisResting(exceptions.ConnectionError):
    """The fuse is open: Redis failed a moment ago and was not asked.

    Args:
        error: how the last call that was made failed; None when that is not known.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__("redis failed a moment ago; it is left alone until the rest is over")
        self.error = error


class WrongShape(exceptions.InvalidResponse):
    """The answer has another form than Redis gives to what was asked. The call failed; connections are closed."""


class Fuse:
    """Opens after failures in a row, and lets one call at a time try again.

    Args:
        failures: so many in a row open it.
        longest_rest: seconds; each rest is drawn from the upper half of its length, so that many gateways do not
            come back to a Redis at one moment.
        rng: a number in [0, 1).
    """

    def __init__(self, failures: int, longest_rest: float, rng: Callable[[], float] = random.random) -> None:
        self._most = failures
        self._longest = longest_rest
        self._rng = rng
        self._failures = 0
        self._rest = min(_FIRST_REST, longest_rest)
        self._until: float | None = None
        self._trying = False

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once, but for one that tries."""
        return self._until is not None

    def admits(self, now: float) -> bool:
        """Whether a call may be made at `now` (seconds, monotonic); one that may is told of by `ended`."""
        if self._until is None:
            return True
        if self._trying or now < self._until:
            return False
        self._trying = True
        return True

    def ended(self, ok: bool | None, now: float) -> None:
        """A call that was admitted is over: it succeeded, failed, or was given up by its caller (None)."""
        tried, self._trying = self._trying, False
        if ok is None:
            return
        if ok:
            self._failures, self._until = 0, None
            self._rest = min(_FIRST_REST, self._longest)
            return
        self._failures += 1
        if tried or (self._until is None and self._failures >= self._most):
            self._until = now + self._rest * (0.5 + self._rng() / 2)
            self._rest = min(self._rest * 2, self._longest)


class Guard:
    """Makes calls within a deadline, and counts how they end.

    Args:
        deadline: seconds a call may take, all in all.
        fuse: asked before each call.

    Attributes:
        up: whether the last call that was made reached Redis; None before the first.
        errors: calls that failed, or were not made because the fuse was open.
        last_error: name of the last failure's kind; "" before the first. Never its text, which may quote keys.
    """

    def __init__(self, deadline: float, fuse: Fuse) -> None:
        self.deadline = deadline
        self._fuse = fuse
        self.up: bool | None = None
        self.errors = 0
        self.last_error = ""
        self._last: BaseException | None = None
        #: Called when the server turns out to be a replica: the name may lead to another by now.
        self.reconnect: Callable[[], Awaitable[None]] | None = None
        #: Closes every connection, after an answer that Redis would not give.
        self.drop: Callable[[], Awaitable[None]] | None = None

    @property
    def resting(self) -> bool:
        """Whether calls fail at once."""
        return self._fuse.is_open

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work()` gives.

        Raises:
            RedisResting: at once; the fuse is open.
            RedisError: as the client, whose TimeoutError stands for the deadline too, and WrongShape for whatever
                the client makes of an answer that Redis would not give.
        """
        now = asyncio.get_running_loop().time
        if not self._fuse.admits(now()):
            self.errors += 1
            raise RedisResting(self._last)
        reached: bool | None = None
        try:
            answer = await within(self.deadline, work())
            reached = True
        except (RedisError, OSError) as error:  # OSError has asyncio's TimeoutError
            reached = _reached(error)
            self._failed(error)
            if isinstance(error, exceptions.ReadOnlyError) and self.reconnect is not None:
                await self.reconnect()
            if isinstance(error, OSError):
                raise _as_redis_error(error) from None
            if isinstance(error, WrongShape):
                await self._drop()
            raise
        except Exception as error:  # redis-py takes an answer's form for granted
            reached = False
            wrong = WrongShape(f"an answer was not understood ({type(error).__name__})")
            self._failed(wrong)
            await self._drop()
            raise wrong from None
        finally:
            self._fuse.ended(reached, now())
            self.up = self.up if reached is None else reached
        return answer

    def _failed(self, error: BaseException) -> None:
        self.errors += 1
        self.last_error = type(error).__name__
        self._last = error

    async def _drop(self) -> None:
        if self.drop is not None:
            await closing(self.drop())


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What `work` gives, or TimeoutError `seconds` (and a moment) from now; it is cancelled, and may end later.

    Raises:
        TimeoutError: it took too long, or ended as cancelled by itself.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_look_at)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=_TIDY)
    finally:  # also when who waits is cancelled
        if not task.done():
            ender = asyncio.get_running_loop().create_task(_end(task))
            _enders.add(ender)
            ender.add_done_callback(_enders.discard)
    if not done or task.cancelled():
        raise TimeoutError
    return task.result()


async def closing(work: Awaitable[None]) -> None:
    """Close connections within `_CLOSE`; what can't be closed in good order by then is left to the system."""
    with contextlib.suppress(RedisError, OSError):  # OSError has asyncio's TimeoutError
        await within(_CLOSE, work)


async def _end(task: "asyncio.Future[Any]") -> None:
    """Cancel a call until it ends."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN)


def _look_at(task: "asyncio.Future[Any]") -> None:
    """What a call that nobody waits for ended with is no news."""
    if not task.cancelled():
        task.exception()


def _reached(error: Exception) -> bool | None:
    """Whether an answer came, though no good one; None when it says nothing of Redis."""
    if isinstance(error, exceptions.MaxConnectionsError):
        return None
    return not isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError | WrongShape)


def _as_redis_error(error: OSError) -> RedisError:
    if isinstance(error, asyncio.TimeoutError):
        return exceptions.TimeoutError("redis did not answer within the deadline")
    return exceptions.ConnectionError(f"redis can't be reached ({type(error).__name__})")
