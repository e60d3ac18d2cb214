"""The process that reads large bodies: what it finds, and what becomes of bodies when it dies or stands still."""

import asyncio
import gzip
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import brotli
import grpc.aio
import pytest
import zstandard
from structlog.testing import capture_logs

from extproc.core.dialects import Limits
from extproc.core.pool import Pool
from extproc.core.reading import NOT_READ, Found, Unread, read
from extproc.core.replies import wait_for
from extproc.core.scattered import Pieces
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.io import clock
from extproc.io.reading import reader as reading
from extproc.io.reading.reader import BESIDE, CROWDED, GONE, HERE, LATE, LOST, Reader
from extproc.io.sessions import ExchangeSession
from tests.integration.test_transport import PROCESS, Recorder
from tests.integration.transports import TRANSPORTS
from tests.unit.messages import Mode, answer, chat, request_body, request_headers, set_headers
from tests.unit.test_exchange import DESTINATION

PATH = "/v1/chat/completions"
#: Far above what anything here takes on a slow machine.
WITHIN = 60.0
LARGE = 100_000
CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": lambda data: brotli.compress(data, quality=5),
    "zstd": zstandard.compress,
}


def body(size: int = 3 * 2**20, model: str = "m") -> bytes:
    return json.dumps(chat("every word counts " * (size // 18), model)).encode()


def unread(data: bytes, coding: str = "", *, keeps: bool = False) -> Unread:
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    return Unread(PATH, coding, Pieces(parts), cut=False, keeps=keeps)


class Asked:
    """Bodies given to a reader, and what came back in which order."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.found: list[tuple[int, Found]] = []
        self.came = asyncio.Event()

    def take(self, one: Unread) -> bool:
        def done(found: Found) -> None:
            self.found.append((one.size, found))
            self.came.set()

        return self.reader.take(one, done)

    async def until(self, count: int) -> list[tuple[int, Found]]:
        async with asyncio.timeout(WITHIN):
            while len(self.found) < count:
                self.came.clear()
                await self.came.wait()
        return self.found


def made(patience: float = WITHIN, room: int = 2**28, limits: Limits | None = None) -> Reader:
    return Reader(limits or Limits(), 64 * 2**20, patience=patience, room=room, renamed={"known"})


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    reader = made()
    yield Asked(reader)
    await reader.close()


async def true(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():
            await asyncio.sleep(0.005)


async def started(asked: Asked) -> int:
    """The id of a process that has read something."""
    count = len(asked.found)
    assert asked.take(unread(body(1000)))
    await asked.until(count + 1)
    assert asked.reader.process is not None
    return asked.reader.process


@pytest.mark.parametrize("coding", ["", "gzip"])
async def test_it_finds_what_reading_at_once_finds(asked: Asked, coding: str) -> None:
    data = gzip.compress(body()) if coding else body()
    assert asked.take(one := unread(data, coding))
    ((_, found),) = await asked.until(1)
    assert found == read(PATH, coding, data, 64 * 2**20, Limits())
    assert found[0].size > 3_000_000
    assert not one.body.views(), "the body is not kept"
    assert asked.reader.counts[BESIDE] == 1


async def test_a_body_that_may_be_changed_is_kept(asked: Asked) -> None:
    assert asked.take(one := unread(body(), keeps=True))
    ((_, (prompt, _)),) = await asked.until(1)
    assert one.body.whole() == body()
    assert prompt.spots is not None
    ((start, end),) = prompt.spots["model"]
    assert json.loads(body()[start:end]) == prompt.model


@pytest.mark.parametrize(("model", "comes"), [("known", True), ("alias", True), ("m", False)])
async def test_a_compressed_body_comes_back_opened_where_its_models_name_will_be_changed(
    model: str, comes: bool
) -> None:
    asked = Asked(made(limits=Limits(aliases={"alias": "real"})))
    data = body(model=model)
    try:
        for keeps in (True, False):
            one = unread(gzip.compress(data), "gzip", keeps=keeps)
            assert asked.take(one)
            await asked.until(1 if keeps else 2)
            assert one.is_open == (keeps and comes)
            assert (one.body.whole() == data) == (keeps and comes)
    finally:
        await asked.reader.close()


async def test_garbage_a_bomb_and_a_thousand_prompts_come_back_as_what_they_are(asked: Asked) -> None:
    bomb = gzip.compress(bytes(65 * 2**20), 1)
    many = json.dumps({"model": "m", "prompt": ["one", "two"] * 500}).encode()
    for one in (unread(b"[" * LARGE), unread(bomb, "gzip"), unread(b"x", "nonsense")):
        assert asked.take(one)
    assert asked.take(Unread("/v1/completions", "", Pieces([many]), cut=False, keeps=False))
    got = dict(await asked.until(4))
    assert got[LARGE][1] == "too_deep"
    assert got[len(bomb)][1] == "too_large"
    assert got[1][1] == "bad_encoding"
    assert got[len(many)] == read("/v1/completions", "", many, 2**20, Limits())


async def test_small_bodies_go_before_large_ones_that_came_a_moment_before(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_OLD", WITHIN)
    for size in (2**22, 2**21, 2**20):  # all of them before the process is there
        assert asked.take(unread(body(size)))
    order = [size for size, _ in await asked.until(3)]
    assert order == sorted(order)


async def test_who_has_waited_for_long_goes_first(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_OLD", 0.0)
    for size in (2**22, 2**21, 2**20):
        assert asked.take(unread(body(size)))
    order = [size for size, _ in await asked.until(3)]
    assert order == sorted(order, reverse=True)


async def test_when_it_is_killed_its_body_goes_by_load_alone_and_the_next_are_read_by_another(
    asked: Asked,
) -> None:
    first = await started(asked)
    os.kill(first, signal.SIGSTOP)
    assert asked.take(unread(body()))
    assert asked.take(unread(body(LARGE)))  # waits behind it
    os.kill(first, signal.SIGKILL)
    lost, after = (await asked.until(3))[1:]
    assert lost[1][1] == NOT_READ
    assert after[1] == read(PATH, "", body(LARGE), 2**20, Limits())
    assert asked.reader.process not in (None, first)
    assert (asked.reader.counts[LOST], asked.reader.counts[BESIDE]) == (1, 2)


async def test_a_body_that_takes_too_long_goes_by_load_alone_and_what_is_found_later_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_STUCK", (WITHIN, WITHIN))
    reader = made(patience=0.2)
    asked = Asked(reader)
    try:
        assert asked.take(unread(body(1000)))
        await asked.until(1)  # read or late, as fast as this machine starts a process
        await true(lambda: reader.process is not None)
        pid = reader.process
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        assert asked.take(unread(body(LARGE)))
        assert (await asked.until(2))[1][1][1] == NOT_READ
        assert reader.counts[LATE] >= 1
        os.kill(pid, signal.SIGCONT)
        assert reader.process == pid
        assert len(asked.found) == 2
    finally:
        await reader.close()


async def test_a_process_that_hangs_is_replaced_at_its_first_missed_deadline_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_PAUSE", 0.01)
    reader = made()  # whose patience is long, so that what waits behind is read however slow this machine is
    asked, past = Asked(reader), set[int | None]()
    try:
        with capture_logs() as said:
            for count in range(1, 5):  # more often than it may die
                reader._longest = WITHIN
                pid = await started(asked)
                assert pid not in past
                past.add(pid)
                os.kill(pid, signal.SIGSTOP)
                reader._longest = 0.2
                assert asked.take(unread(body(LARGE)))
                assert (await asked.until(2 * count))[-1][1][1] == NOT_READ
        words = [(each["event"], each["ends"]) for each in said if "ends" in each]
        assert words[:4] == [
            ("the reader of large bodies hangs; it was ended and is started again", count)
            for count in range(1, len(words[:4]) + 1)
        ]
        assert len(words) >= 3
        reader._longest = WITHIN
        assert asked.take(unread(body(LARGE)))
        assert (await asked.until(9))[-1][1][1] == "", "it is not left alone"
        assert reader.counts[LOST] == 4
    finally:
        await reader.close()


def test_a_hang_is_told_by_patience_within_bounds() -> None:
    assert [made(patience=patience)._longest for patience in (0.05, 5.0, 12.0, 300.0)] == [
        5.0,
        5.0,
        12.0,
        20.0,
    ]


async def test_bodies_beyond_the_room_go_by_load_alone() -> None:
    reader = made(room=2 * LARGE)
    asked = Asked(reader)
    try:
        pid = await started(asked)
        os.kill(pid, signal.SIGSTOP)
        for _ in range(4):
            assert asked.take(unread(body(LARGE)))  # one is with the process, one waits
        found = (await asked.until(3))[1:]
        assert [why for _, (_, why) in found] == [NOT_READ, NOT_READ]
        assert reader.counts[CROWDED] == 2
        assert reader.waiting <= 2 * LARGE
        os.kill(pid, signal.SIGCONT)
        await asked.until(5)
    finally:
        await reader.close()


async def test_a_body_that_nobody_waits_for_any_more_is_dropped(asked: Asked) -> None:
    pid = await started(asked)
    os.kill(pid, signal.SIGSTOP)
    gone = [unread(body(LARGE)), unread(body(LARGE))]
    for one in gone:
        assert asked.take(one)
    for one in gone:
        asked.reader.drop(one)
    assert asked.reader.waiting == 0
    os.kill(pid, signal.SIGCONT)
    assert asked.take(unread(body(1000)))
    assert len(await asked.until(2)) == 2, "one before, one after; none of the two"
    assert asked.reader.counts[GONE] == 2


async def test_closing_ends_the_process_and_nothing_waits_on() -> None:
    asked = Asked(made())
    pid = await started(asked)
    os.kill(pid, signal.SIGSTOP)  # not even one that stands still holds the gateway
    assert asked.take(unread(body(LARGE)))
    assert asked.take(unread(body(LARGE)))
    await asked.reader.close()
    assert [why for _, (_, why) in asked.found[1:]] == [NOT_READ, NOT_READ]
    assert not asked.take(unread(body(LARGE))), "it takes nothing more"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_process_that_can_not_live_is_left_alone_and_the_gateway_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setattr(reading, "_PAUSE", 0.01)
    asked = Asked(made())
    try:
        assert asked.take(unread(body(LARGE)))
        ((_, (_, why)),) = await asked.until(1)
        assert why == NOT_READ
        await true(lambda: not asked.take(unread(body(1000))))
        assert asked.reader.counts[HERE] == 1
    finally:
        await asked.reader.close()


# -- behind transports -------------------------------------------------------------------------------------


class Gateway:
    """A transport whose sessions have large bodies read beside."""

    def __init__(self, kind: str) -> None:
        pool = Pool("p", traits=Traits(stale_after=1e9), now=0.0)
        pool.join("10.0.0.1:8000", 0.0)
        self.mind = Steering([pool], Rules(beside=LARGE), random.Random(1))
        self.mind.patience = wait_for(6)
        self.reader = made()
        self.watcher = Recorder()
        self.transport = TRANSPORTS[kind](
            "127.0.0.1:0",
            lambda: ExchangeSession(self.mind, self.watcher, clock.monotonic, self.reader),
            max_message=2**25,
            max_streams=100,
            large=LARGE,
        )

    async def __aenter__(self) -> "Gateway":
        await self.transport.start()
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{self.transport.port}", options=[("grpc.max_receive_message_length", 2**26)]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.transport.stop(1.0)
        await self.reader.close()

    async def begun(self, data: bytes) -> Any:
        call = self.channel.stream_stream(PROCESS)()
        await call.write(request_headers())
        answer(await call.read())
        await call.write(request_body(data))
        return call


@pytest.fixture(params=TRANSPORTS)
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    async with Gateway(request.param) as made:
        yield made


async def steered(call: Any) -> str:
    async with asyncio.timeout(WITHIN):
        return set_headers(answer(await call.read()))[DESTINATION]


async def test_small_requests_are_answered_while_large_bodies_wait_to_be_read(gateway: Gateway) -> None:
    first = await gateway.begun(body())
    assert answer(await first.read()).override_message_timeout.seconds == 6
    assert await steered(first) == "10.0.0.1:8000"
    pid = gateway.reader.process
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    large = [await gateway.begun(body(5 * 2**20)) for _ in range(3)]
    for call in large:
        assert answer(await call.read()).override_message_timeout.seconds == 6
    for _ in range(10):
        assert await steered(await gateway.begun(body(1000))) == "10.0.0.1:8000"
    large.pop().cancel()  # a client leaves
    os.kill(pid, signal.SIGCONT)
    for call in large:
        assert await steered(call) == "10.0.0.1:8000"
    await true(lambda: gateway.watcher.ended_count == 1)
    assert gateway.watcher.settled_outcomes == ["steered"] * 13


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("mode", [Mode.BUFFERED, Mode.FULL_DUPLEX_STREAMED])
async def test_a_small_body_that_expands_far_is_read_by_the_process_alone(
    gateway: Gateway, coding: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.core.encoding.decode", lambda *_: pytest.fail("decoded in the event loop"))
    small = CODERS[coding](json.dumps(chat("a" * (30 * 2**20))).encode())
    assert len(small) < LARGE
    call = gateway.channel.stream_stream(PROCESS)()
    await call.write(request_headers(mode=mode, content_encoding=coding))
    if mode == Mode.BUFFERED:
        answer(await call.read())
    await call.write(request_body(small))
    if mode == Mode.BUFFERED:
        assert answer(await call.read()).override_message_timeout.seconds == 6
    assert await steered(call) == "10.0.0.1:8000"
    assert gateway.reader.counts[BESIDE] == 1


async def test_in_full_duplex_a_large_body_comes_back_whole_after_it_was_read(gateway: Gateway) -> None:
    data, got, at = body(), b"", 50_000
    call = gateway.channel.stream_stream(PROCESS)()
    await call.write(request_headers(mode=Mode.FULL_DUPLEX_STREAMED))
    for place in range(0, len(data), at):
        await call.write(request_body(data[place : place + at], end=place + at >= len(data)))
    assert await steered(call) == "10.0.0.1:8000"
    while len(got) < len(data):
        got += answer(await call.read()).request_body.response.body_mutation.streamed_response.body
    assert got == data


async def test_a_stop_waits_for_bodies_that_are_being_read(gateway: Gateway) -> None:
    call = await gateway.begun(body())
    assert answer(await call.read()).override_message_timeout.seconds == 6
    stopping = asyncio.create_task(gateway.transport.stop(WITHIN))
    assert await steered(call) == "10.0.0.1:8000"
    assert await call.read() is grpc.aio.EOF
    await stopping
