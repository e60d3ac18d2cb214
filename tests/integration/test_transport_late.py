"""Answers that a session gives later than `receive`, over each transport and a foreign gRPC client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from extproc.io.transports import Answer, Push
from tests.integration.patience import patient
from tests.integration.transports import TRANSPORTS

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Slow:
    """A session that owes the answer to b"hold", and answers all else by an echo."""

    def __init__(self) -> None:
        self.held = False
        self.push: Push | None = None
        self.got: list[bytes] = []
        self.ended = asyncio.Event()

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        self.got.append(data)
        self.held = data == b"hold"
        return (b"wait", False, False) if self.held else (data, False, True)

    def rescue(self) -> Answer:
        return None

    def answer_by(self, push: Push) -> None:
        self.push = push

    def give(self, answer: Answer, close: bool = False) -> None:
        assert self.push is not None
        self.held = False
        self.push(answer, close)

    def end(self) -> None:
        assert not self.ended.is_set()
        self.ended.set()


class Served:
    def __init__(self, kind: str) -> None:
        self.sessions: list[Slow] = []
        self.transport = TRANSPORTS[kind]("127.0.0.1:0", self._session, max_message=2**20, max_streams=10)

    def _session(self) -> Slow:
        self.sessions.append(Slow())
        return self.sessions[-1]

    async def held(self) -> tuple[Any, Slow]:
        """A stream whose answer is owed."""
        call = self.channel.stream_stream(PROCESS)()
        await call.write(b"hold")
        assert await call.read() == b"wait"
        return call, self.sessions[-1]


@pytest.fixture(params=TRANSPORTS)
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    made = Served(request.param)
    await made.transport.start()
    made.channel = grpc.aio.insecure_channel(f"127.0.0.1:{made.transport.port}")
    yield made
    await made.channel.close()
    await made.transport.stop(1.0)


async def test_an_answer_may_come_later_and_the_stream_goes_on(served: Served) -> None:
    call, session = await served.held()
    session.give(b"answer")
    assert await call.read() == b"answer"
    await call.write(b"more")
    assert await call.read() == b"more"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert session.ended.is_set()


async def test_a_later_answer_may_be_several_messages_and_close_the_stream(served: Served) -> None:
    call, session = await served.held()
    session.give((b"a", b"b"), close=True)
    assert [await call.read(), await call.read()] == [b"a", b"b"]
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_message_that_comes_meanwhile_waits_for_the_answer(served: Served) -> None:
    call, session = await served.held()
    await call.write(b"early")
    other = served.channel.stream_stream(PROCESS)()  # a round trip of another stream: the message is there
    await other.write(b"x")
    assert await other.read() == b"x"
    assert session.got == [b"hold"]
    session.give(b"answer")
    assert [await call.read(), await call.read()] == [b"answer", b"early"]
    other.cancel()


async def test_the_answer_may_be_given_in_the_turn_in_which_the_way_is(served: Served) -> None:
    class Prompt(Slow):
        def answer_by(self, push: Push) -> None:
            super().answer_by(push)
            self.give(b"now")

    served.transport._sessions = Prompt
    call = served.channel.stream_stream(PROCESS)()
    await call.write(b"hold")
    assert [await call.read(), await call.read()] == [b"wait", b"now"]


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_stream_that_ends_while_an_answer_is_owed_is_noticed_at_once(
    served: Served, how: str
) -> None:
    call, session = await served.held()
    if how == "cancelled":
        call.cancel()
    else:
        await call.done_writing()
    async with asyncio.timeout(patient(2)):
        await session.ended.wait()
    session.give(b"too late")  # dropped


async def test_a_stop_waits_for_the_answer_that_is_owed(served: Served) -> None:
    call, session = await served.held()
    stopping = asyncio.ensure_future(served.transport.stop(5.0))
    await asyncio.sleep(0)
    session.give(b"answer")
    assert await call.read() == b"answer"
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    async with asyncio.timeout(patient(2)):
        await stopping


async def test_a_stop_ends_with_ok_what_is_not_answered_within_the_grace(served: Served) -> None:
    call, session = await served.held()
    await served.transport.stop(0.05)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert session.ended.is_set()
