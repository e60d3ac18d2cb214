"""What a source of endpoints is, and the task that follows the sources of a pool.

    source --Found(complete set)--> Membership --Changes--> on_change
           --Failed(reason)------->            --status---> people

What an answer means (grace, merging, limits) is decided in core/membership.py, which does no I/O.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from extproc.core.membership import GRACE, LIMIT, TOO_MANY, Changes, Endpoint, Membership, SourceStatus

_T = TypeVar("_T")

_log = structlog.get_logger("kvsteer.discovery")

#: Waits after a failure, in seconds: long enough to be no burden, short enough to be back soon.
_FIRST_WAIT = 0.25
_LONGEST_WAIT = 10.0
#: Seconds between two looks at grace periods.
_TICK = 0.25
#: Most addresses named in one log line.
_NAMED = 16


@dataclass(frozen=True, slots=True)
class Failed:
    """A source could not answer.

    `reason` is a short word of docs/discovery.md, for metrics; `detail` a sentence for people that says how to
    mend it. Neither holds a credential.
    """

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Found:
    """A source's complete set.

    `doubtful`: it has just come back and may not be complete yet. `trouble`: what of the source fails nevertheless.
    """

    endpoints: tuple[Endpoint, ...]
    doubtful: bool = False
    trouble: Failed | None = None


class SourceFailed(Exception):
    """A look at a source failed. Raised within the sources, which yield it as `Failed`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    @property
    def said(self) -> Failed:
        """The same as a value."""
        return Failed(self.reason, self.detail)


class Source(Protocol):
    """Somewhere endpoints are found."""

    @property
    def name(self) -> str:
        """What it is called in logs and metrics; once in a pool."""

    def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """Yield the complete set at once, again at each change, and after each failure; go on for ever.

        An unchanged set may be yielded again: it says that the source still stands by it. One that ends has
        said all it ever will. Closing it releases what it holds.
        """


class Discovery:
    """Follows the sources of a pool and tells what changes.

    Args:
        pool: named in logs.
        sources: where to look.
        on_change: called for each change, in order, on the event loop.
        clock: seconds, monotonic.
        grace: seconds an empty answer must stand before it is believed.
        limit: most endpoints of the pool.
        on_failure: called with a source's name and a short word each time it could not answer.

    Raises:
        ValueError: two sources have one name.
    """

    def __init__(
        self,
        pool: str,
        sources: Sequence[Source],
        on_change: Callable[[Changes], None],
        clock: Callable[[], float],
        *,
        grace: float = GRACE,
        limit: int = LIMIT,
        on_failure: Callable[[str, str], None] = lambda _source, _reason: None,
    ) -> None:
        names = [source.name for source in sources]
        if len(set(names)) < len(names):
            raise ValueError(f"pool {pool}: two discovery sources have the same name among {names}")
        self.membership = Membership(names, grace=grace, limit=limit)
        self._pool = pool
        self._limit = limit
        self._sources = list(sources)
        self._on_change = on_change
        self._on_failure = on_failure
        self._clock = clock
        self._silent = set(names)
        self._heard = asyncio.Event()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Follow the sources until cancelled; then everything they held is released."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source), name=f"discovery {self._pool} {source.name}")
            group.create_task(self._ticks(), name=f"discovery {self._pool}")

    async def first(self, seconds: float) -> bool:
        """Wait until every source has answered or failed once, at most so long; whether all have answered."""
        try:
            async with asyncio.timeout(seconds):
                while self._silent:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return all(status.age is not None for status in self.status())

    def status(self) -> list[SourceStatus]:
        """How each source does now."""
        return self.membership.status(self._clock())

    def drop(self, address: str) -> None:
        """Leave an endpoint out whatever its sources say; `on_change` is told."""
        self._tell(self.membership.drop(address, self._clock()))

    def restore(self, address: str) -> None:
        """Take a dropped endpoint in again; `on_change` is told."""
        self._tell(self.membership.restore(address))

    async def _follow(self, source: Source) -> None:
        failures = 0
        while True:
            try:
                async with aclosing(source.watch()) as answers:
                    async for answer in answers:
                        failures = 0
                        self._take(source.name, answer)
                return  # noqa: TRY300 - what ends, ends for good
            except SourceFailed as error:
                self._take(source.name, error.said)
            except Exception as error:  # a fault of ours must not end the following
                _log.exception("discovery failed by a fault of the gateway", source=source.name)
                self._take(source.name, Failed("internal", type(error).__name__))
            failures += 1
            await asyncio.sleep(backoff(failures))

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self._tell(self.membership.tick(self._clock()))

    def _take(self, source: str, answer: Found | Failed) -> None:
        now = self._clock()
        if isinstance(answer, Failed):
            self.membership.failed(source, answer.reason, now)
            self._on_failure(source, answer.reason)
            self._say(source, answer)
        else:
            doubtful, error = answer.doubtful, answer.trouble.reason if answer.trouble else ""
            changes = self.membership.took(source, answer.endpoints, now, doubtful=doubtful, error=error)
            self._tell(changes)
            self._look(source, answer.trouble)
        self._silent.discard(source)
        self._heard.set()

    def _look(self, source: str, trouble: Failed | None) -> None:
        """Note how the source does after an answer: it may have been refused for its size."""
        (status,) = (status for status in self.status() if status.source == source)
        if status.error == TOO_MANY:
            detail = f"more than {self._limit} endpoints; raise the limit, or narrow what is looked for"
            self._on_failure(source, TOO_MANY)
            self._say(source, Failed(TOO_MANY, detail))
        elif trouble is not None:
            self._say(source, trouble)
        elif self._told.pop(source, None):
            _log.info("discovery source answers again", pool=self._pool, source=source)

    def _say(self, source: str, failed: Failed) -> None:
        """Tell of a failure when it begins or gets another reason."""
        if self._told.get(source) != failed.reason:
            self._told[source] = failed.reason
            _log.warning(
                "discovery source fails; the last known replicas stay",
                pool=self._pool,
                source=source,
                reason=failed.reason,
                detail=failed.detail,
                known=len(self.membership.endpoints),
            )

    def _tell(self, changes: Changes) -> None:
        if not changes:
            return
        _log.info(
            "replicas changed",
            pool=self._pool,
            joined=_named(endpoint.address for endpoint in changes.joined),
            left=_named(changes.left),
            terminating=_named(endpoint.address for endpoint in changes.terminating),
            now=len(self.membership.endpoints),
        )
        try:
            self._on_change(changes)
        except Exception:  # what is done with a change must not end the following
            _log.exception("taking in a change of replicas failed", pool=self._pool)


async def poll(
    look: Callable[[], Awaitable[Found]], pause: Callable[[], float]
) -> AsyncGenerator[Found | Failed, None]:
    """Look, tell, wait, for ever. `pause` gives the seconds to the next look after a good one."""
    failures = 0
    while True:
        try:
            found = await look()
        except SourceFailed as error:
            failures += 1
            yield error.said
            await asyncio.sleep(backoff(failures))
        else:
            failures = 0
            yield found
            await asyncio.sleep(pause())


async def together(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Await all at once; the first failure ends the others and is raised by itself.

    Raises:
        SourceFailed: one of them did.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in work]
    except BaseExceptionGroup as errors:
        failed = errors.subgroup(SourceFailed)
        if failed is None:
            raise
        raise _leaf(failed) from None
    return [task.result() for task in tasks]


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row (1 and up): doubling, bounded, spread by a quarter."""
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(failures - 1, 16))
    return longest * random.uniform(0.75, 1.0)  # noqa: S311 - spreads load, guards nothing


def _named(addresses: Iterable[str]) -> list[str]:
    named = list(addresses)
    return named if len(named) <= _NAMED else [*named[:_NAMED], f"and {len(named) - _NAMED} more"]
