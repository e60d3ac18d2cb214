"""Answers that Redis would not give: each is a failed call, and its connections are closed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from extproc.config import RedisSettings
from extproc.io.redis_check import cause
from extproc.io.redis_client import make_client
from extproc.io.redis_guard import Fuse, Guard, WrongShape
from extproc.io.redis_shape import check, is_number, script

_SCRIPT = script("return 1 -- of this test", is_number)


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (("GET", "k"), 7),
        (("HGET", "k", "f"), [b"a"]),
        (("HGETALL", "k"), [b"a", b"b"]),
        (("HGETALL", "k"), {b"a": 1}),
        (("TIME",), (1,)),
        (("TIME",), b"now"),
        (("MGET", "k", "l"), [b"a"]),
        (("HMGET", "k", "f", "g"), None),
        (("HMGET", "k", "f"), [7]),
        (("XADD", "k", "*", "b", b""), b"abc"),
        (("XREAD", "STREAMS", "k", "0"), [[b"k", [(b"no id", {})]]]),
        (("XREAD", "STREAMS", "k", "0"), {b"a": None}),
        (("XREAD", "STREAMS", "k", "0"), 3),
        (("EVAL", _SCRIPT, 0), b"1"),
        (("HSET", "k", "f", "v"), b"OK"),
    ],
)
def test_an_answer_of_another_form_is_told_without_a_word_of_it(args: tuple[Any, ...], answer: Any) -> None:
    with pytest.raises(WrongShape, match=rf"^{args[0]} was answered with [a-zA-Z]+$") as caught:
        check(args, answer)
    assert cause(caught.value).startswith("it answers otherwise than Redis does")


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (("GET", "k"), None),
        (("HGETALL", "k"), {b"a": b"b"}),
        (("TIME",), (1, 2)),
        (("HMGET", "k", "f", "g"), [b"a", None]),
        (("XREAD", "STREAMS", "k", "0"), []),
        (("XREAD", "STREAMS", "k", "0"), {}),
        (("XREAD", "STREAMS", "k", "0"), [[b"k", [(b"5-0", {b"b": b""}), (b"6-0", None)]]]),
        (("XREAD", "STREAMS", "k", "0"), {b"k": [[(b"5-0", {b"b": b""})]]}),
        (("EVAL", _SCRIPT, 0), 1),
        (("EVAL", "return another", 0), [b"anything"]),
        (("NEWCOMMAND",), object()),
        (("GET", "k"), ValueError("an error is checked by who asked")),
    ],
)
def test_what_redis_answers_passes(args: tuple[Any, ...], answer: Any) -> None:
    check(args, answer)


@pytest.mark.parametrize("error", [AttributeError("'list' object has no attribute 'get'"), WrongShape("x")])
async def test_what_a_client_can_not_take_in_is_a_failed_call_and_closes_its_connections(
    error: Exception,
) -> None:
    guard = Guard(1.0, Fuse(1, 60.0))
    guard.drop = AsyncMock()
    with pytest.raises(WrongShape):
        await guard.call(AsyncMock(side_effect=error))
    assert (guard.up, guard.errors, guard.last_error, guard.resting) == (False, 1, "WrongShape", True)
    guard.drop.assert_awaited_once()


class Server:
    """Answers each command, on a socket, with what it is told."""

    def __init__(self, answer: Callable[[list[bytes]], bytes]) -> None:
        self.answer = answer
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                count = int((await reader.readline() or b"*0")[1:])
                if not count:
                    break
                said = [
                    await reader.readexactly(int((await reader.readline())[1:]) + 2) for _ in range(count)
                ]
                writer.write(self.answer([part[:-2] for part in said]))
        writer.close()


@contextlib.asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Any]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    waits = {"deadline": 10.0, "connect_timeout": 10.0}  # far more than a busy machine needs
    url = f"redis://127.0.0.1:{port}/0"
    client = make_client(RedisSettings(url=url, protocol=3, breaker_failures=9, **waits))
    try:
        yield client
    finally:
        await client.aclose()
        listening.close()


def well(said: list[bytes]) -> bytes:
    """As a Redis that was told to speak RESP3."""
    return {
        b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n",
        b"CLIENT": b"+OK\r\n",
        b"HGETALL": b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    }[said[0]]


@pytest.mark.parametrize("hello", [b"+OK\r\n", b":7\r\n", b"_\r\n", b"*2\r\n$5\r\nproto\r\n:2\r\n"])
async def test_a_connection_whose_hello_did_not_reach_redis_is_not_kept(hello: bytes) -> None:
    server = Server(lambda said: hello if said[0] == b"HELLO" else well(said))
    async with client_of(server) as client:
        with pytest.raises(WrongShape):
            await client.hgetall("k")
        server.answer = well
        assert await client.hgetall("k") == {b"a": b"b"}


@pytest.mark.parametrize("many", [False, True])
async def test_after_an_answer_of_another_form_the_next_call_is_made_on_a_new_connection(many: bool) -> None:
    server = Server(lambda said: b"*1\r\n:7\r\n" if said[0] == b"HGETALL" else well(said))
    async with client_of(server) as client:

        async def ask() -> Any:
            if not many:
                return await client.hgetall("k")
            async with client.pipeline(transaction=False) as pipe:
                pipe.hgetall("k")
                return (await pipe.execute(raise_on_error=False))[0]

        with pytest.raises(WrongShape):
            await ask()
        server.answer = well
        assert await ask() == {b"a": b"b"}
        assert server.connections == 2
