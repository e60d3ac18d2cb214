"""Following sources: what is told, what is survived, and that cancelling releases everything."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from structlog.testing import capture_logs

from extproc.core.membership import Changes, Endpoint
from extproc.io.discovery import Discovery, Failed, Found, SourceFailed, StaticSource, base
from extproc.io.discovery.base import backoff, poll, together

A, B = Endpoint(address="10.0.0.1:80"), Endpoint(address="[fd00::2]:80")


class Scripted:
    """A source that says what the test puts in."""

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.script: asyncio.Queue[Found | Failed | Exception] = asyncio.Queue()
        self.opened = self.closed = 0

    def says(self, *endpoints: Endpoint) -> None:
        self.script.put_nowait(Found(endpoints))

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        self.opened += 1
        try:
            while True:
                said = await self.script.get()
                if isinstance(said, Exception):
                    raise said
                yield said
        finally:
            self.closed += 1


class Following:
    """A discovery for the length of a block, with a record of what it told."""

    def __init__(self, *sources: Scripted | StaticSource, **options: object) -> None:
        self.changes: list[Changes] = []
        self.failures: list[tuple[str, str]] = []
        self.now = 0.0
        self.discovery = Discovery(
            "p",
            sources,
            self.changes.append,
            lambda: self.now,
            on_failure=lambda source, reason: self.failures.append((source, reason)),
            **options,  # type: ignore[arg-type]
        )

    async def __aenter__(self) -> "Following":
        self.task = asyncio.create_task(self.discovery.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not happened():
                await asyncio.sleep(0.005)

    @property
    def addresses(self) -> set[str]:
        return set(self.discovery.membership.endpoints)


async def test_sources_are_merged_and_each_change_is_told_in_order() -> None:
    source = Scripted()
    async with Following(StaticSource([A]), source) as following:
        source.says(B)
        source.says()
        await following.until(lambda: len(following.changes) == 2)
        assert following.addresses == {A.address, B.address}
        assert [c.joined for c in following.changes] == [(A,), (B,)]
        assert all(c.first for c in following.changes)


async def test_an_empty_answer_is_believed_by_the_clock_without_a_further_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_TICK", 0.01)
    source = Scripted()
    async with Following(source, grace=30.0) as following:
        source.says(A)
        source.says()
        await following.until(lambda: following.discovery.status()[0].doubted is not None)
        following.now = 29.9
        await asyncio.sleep(0.05)
        assert following.addresses == {A.address}
        following.now = 30.0
        await following.until(lambda: following.changes[-1].left == (A.address,))


async def test_a_failure_keeps_the_set_and_is_told_once_until_it_changes() -> None:
    source = Scripted()
    with capture_logs() as logs:
        async with Following(source) as following:
            source.says(A)
            for reason in ("timeout", "timeout", "refused"):
                source.script.put_nowait(Failed(reason, "mend it"))
            source.says(A)
            await following.until(source.script.empty)
            await following.until(lambda: len(following.failures) == 3)
            assert following.addresses == {A.address}
    told = [(log["event"], log.get("reason")) for log in logs if log["event"] != "replicas changed"]
    assert told == [
        ("discovery source fails; the last known replicas stay", "timeout"),
        ("discovery source fails; the last known replicas stay", "refused"),
        ("discovery source answers again", None),
    ]


async def test_too_large_an_answer_is_told_as_a_failure() -> None:
    source = Scripted()
    with capture_logs() as logs:
        async with Following(source, limit=1) as following:
            source.says(A, B)
            await following.until(lambda: bool(following.failures))
    assert following.failures == [("scripted", "too_many")]
    assert "more than 1 endpoints; raise the limit" in logs[-1]["detail"]


async def test_a_source_that_breaks_is_closed_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_FIRST_WAIT", 0.02)
    source = Scripted()
    with capture_logs() as logs:
        async with Following(source) as following:
            source.script.put_nowait(SourceFailed("broken", "mend it"))
            source.script.put_nowait(RuntimeError("a fault with a secret"))
            source.says(A)
            await following.until(lambda: following.addresses == {A.address})
            assert following.failures == [("scripted", "broken"), ("scripted", "internal")]
            assert (source.opened, source.closed) == (3, 2)
    assert source.closed == 3
    assert not any("secret" in str(log.get("detail")) for log in logs)


async def test_whoever_takes_in_changes_may_fail_and_is_told_the_next_one() -> None:
    source, seen = Scripted(), []

    def take(changes: Changes) -> None:
        seen.append(changes)
        raise RuntimeError

    discovery = Discovery("p", [source], take, lambda: 0.0)
    with capture_logs():
        task = asyncio.create_task(discovery.run())
        source.says(A)
        source.says(A, B)
        async with asyncio.timeout(30):
            while len(seen) < 2:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_start_waits_for_every_source_but_not_for_ever() -> None:
    slow = Scripted("slow")
    async with Following(StaticSource([A]), slow) as following:
        assert not await following.discovery.first(0.05)
        slow.says(B)
        assert await following.discovery.first(30.0)
    failing = Scripted("failing")
    async with Following(StaticSource([A]), failing) as following:
        failing.script.put_nowait(Failed("timeout", ""))
        assert not await following.discovery.first(30.0)
        assert following.addresses == {A.address}


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="the same name"):
        Discovery("p", [StaticSource([]), StaticSource([])], lambda _c: None, lambda: 0.0)


async def test_polling_waits_longer_after_each_failure_and_not_after_an_answer() -> None:
    answers = iter([SourceFailed("timeout", "x"), Found((A,)), Found((B,))])

    async def look() -> Found:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = asyncio.get_running_loop()
    began, said = loop.time(), []
    async for answer in poll(look, lambda: 0.0):
        said.append(answer)
        if len(said) == 3:
            break
    assert said == [Failed("timeout", "x"), Found((A,)), Found((B,))]
    assert loop.time() - began >= 0.18  # three quarters of the first wait, 0.25 s


def test_the_waits_after_failures_double_and_are_bounded() -> None:
    for failures, longest in ((1, 0.25), (2, 0.5), (4, 2.0), (7, 10.0), (10_000, 10.0)):
        assert 0.75 * longest <= backoff(failures) <= longest


async def test_the_first_failure_of_several_ends_the_others() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise SourceFailed("timeout", "x")

    with pytest.raises(SourceFailed, match="timeout"):
        await together([waits(), fails()])
    assert ended == [True]
    assert await together([asyncio.sleep(0, 1), asyncio.sleep(0, 2)]) == [1, 2]
