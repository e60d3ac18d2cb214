"""A pipeline that nobody waits for any more keeps its connection until it ends; one from a replica is left."""

import asyncio
import contextlib
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from redis.exceptions import ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from extproc.io.redis_client import GuardedPipeline
from extproc.io.redis_guard import Fuse, Guard


class Connections:
    """A pool of one connection that counts how often it is given back."""

    def __init__(self) -> None:
        self.given_back = 0
        retry = Mock(call_with_retry=lambda do, *_args, **_options: do())
        self.one = Mock(retry=retry, host="h", port=1, db=0)

    async def get_connection(self, *_: Any) -> Mock:
        return self.one

    async def release(self, connection: Mock) -> None:
        assert connection is self.one
        self.given_back += 1

    def get_encoder(self) -> Mock:
        return Mock()


def pipeline(connections: Connections, deadline: float = 5.0) -> GuardedPipeline:
    made: Any = GuardedPipeline(connections, {}, False, None)  # type: ignore[arg-type]
    made.guard = Guard(deadline, Fuse(3, 1.0))
    made.guard.reconnect = AsyncMock()
    made.execute_command("PING")
    return made  # type: ignore[no-any-return]


async def test_a_connection_is_not_given_back_while_a_call_still_reads_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections, ends = Connections(), asyncio.Event()

    async def deaf(*_: Any) -> list[Any]:
        while not ends.is_set():  # loses cancellations, as asyncio.wait_for may
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()
        return [b"PONG"]

    pipe = pipeline(connections, deadline=0.01)
    monkeypatch.setattr(pipe, "_execute_pipeline", deaf)
    with pytest.raises(RedisTimeout):
        async with pipe:
            await pipe.execute()
    assert connections.given_back == 0, "another call would read the answer of this one"
    ends.set()
    async with asyncio.timeout(30):
        while not connections.given_back:
            await asyncio.sleep(0.001)
    assert connections.given_back == 1


@pytest.mark.parametrize(
    ("answers", "reconnects"),
    [
        ([b"1", ReadOnlyError("You can't write against a read only replica.")], 1),
        ([b"1", ResponseError("x")], 0),
    ],
)
async def test_an_answer_that_says_replica_leads_to_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], reconnects: int
) -> None:
    connections = Connections()
    pipe: Any = pipeline(connections)
    monkeypatch.setattr(pipe, "_execute_pipeline", AsyncMock(return_value=answers))
    async with pipe:
        assert await pipe.execute(raise_on_error=False) == answers
    assert pipe.guard.reconnect.call_count == reconnects
    assert connections.given_back == 1
