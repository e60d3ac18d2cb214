"""The getter over real sockets: connections kept, replaced and dropped, and odd but honest answers."""

import asyncio
from contextlib import suppress

import pytest
import uvloop
from yarl import URL

from extproc.io.http_get import GetFailed, Getter
from tests.integration.replicas import raw_server

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def getter(port: int, limit: int = 1000, path: str = "/metrics") -> Getter:
    return Getter(URL(f"http://127.0.0.1:{port}{path}"), None, limit, {"accept": "text/plain"})


class Script:
    """A server that answers each request of each connection with the next of its texts; None closes."""

    def __init__(self, *connections: list[bytes | None]) -> None:
        self._connections = list(connections)
        self.requests: list[bytes] = []
        self.opened = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        texts = self._connections[min(self.opened, len(self._connections) - 1)]
        self.opened += 1
        for text in texts:
            if text is None:
                return
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(text)
            await writer.drain()


async def test_a_request_is_plain_and_the_connection_is_kept():
    script = Script([OK, OK, OK])
    async with raw_server(script) as port:
        get = getter(port, path="/a b?x=1")
        for _ in range(2):
            answer = await get.get()
            assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"hi", "2")
        await get.get("Bearer abc")
        get.close()
    host = f"host: 127.0.0.1:{port}\r\n".encode()
    assert script.requests[0] == b"GET /a%20b?x=1 HTTP/1.1\r\n" + host + b"accept: text/plain\r\n\r\n"
    assert script.requests[2].endswith(b"\r\nauthorization: Bearer abc\r\n\r\n")
    assert script.opened == 1


async def test_a_kept_connection_that_the_server_closed_meanwhile_is_replaced():
    script = Script([OK, None], [OK, None], [OK])
    async with raw_server(script) as port:
        get = getter(port)
        for _ in range(3):
            assert (await get.get()).body == b"hi"
        get.close()
    assert script.opened == 3


async def test_a_fresh_connection_that_gives_nothing_is_not_tried_again():
    script = Script([None])
    async with raw_server(script) as port:
        with pytest.raises(GetFailed, match="broken"):
            await getter(port).get()
    assert script.opened == 1


async def test_an_answer_cut_off_on_a_kept_connection_is_not_asked_for_again():
    script = Script([OK, OK[:20]])
    async with raw_server(script) as port:
        get = getter(port)
        await get.get()
        with pytest.raises(GetFailed, match="broken"):
            await get.get()
    assert script.opened == 1


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",
    ],
)
async def test_connections_that_end_are_not_used_again(text):
    script = Script([text, text])
    async with raw_server(script) as port:
        get = getter(port)
        await get.get()
        await get.get()
        get.close()
    assert script.opened == 2


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200\r\nCONTENT-LENGTH: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 \r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;a=b\r\nh\r\n1 \r\ni\r\n0\r\nx: y\r\n\r\n",
            b"hi",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"hi"),
    ],
)
async def test_every_honest_way_to_frame_an_answer_is_read_and_the_connection_kept(text, body):
    script = Script([text, OK])
    async with raw_server(script) as port:
        get = getter(port)
        assert (await get.get()).body == body
        assert (await get.get()).body == b"hi"
        get.close()
    assert script.opened == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "broken"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "broken"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nhi", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nhi", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 30 + b"\r\n\r\nhi", "broken"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhi", "too_large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 11, "too_large"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\naaaaa\r\n6\r\naaaaaa\r\n0\r\n\r\n",
            "too_large",
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n", "too_large"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", "broken"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhiXX0\r\n\r\n", "broken"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 100_000, "broken"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 100 + b"\r\n",
            "broken",
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "broken"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "broken"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000, "broken"),
        (b"\x16\x03\x01\x00\x02\x02\x28", "broken"),
    ],
)
async def test_answers_that_are_none_have_their_word_and_the_connection_is_dropped(text, reason):
    script = Script([text], [OK])
    async with raw_server(script) as port:
        get = getter(port, limit=10)
        with pytest.raises(GetFailed) as failed:
            await get.get()
        assert failed.value.reason == reason
        assert (await get.get()).body == b"hi"
        get.close()
    assert script.opened == 2


async def test_endless_chunks_of_one_byte_are_given_up_after_a_bounded_number():
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    many, more = (b"1\r\na\r\n" * count + b"0\r\n\r\n" for count in (2**14 - 1, 2**14))
    async with raw_server(Script([head + many], [head + more])) as port:
        get = getter(port, limit=2**22)
        assert (await get.get()).body == b"a" * (2**14 - 1)
        get.close()
        with pytest.raises(GetFailed, match="broken"):
            await get.get()


async def test_a_get_that_is_cancelled_drops_the_connection_and_the_next_one_is_clean():
    arrived = asyncio.Event()
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await reader.readuntil(b"\r\n\r\n")
        if opened == 1:
            writer.write(OK[:-1])  # the rest would be the start of the next answer
            arrived.set()
            await reader.read()
        else:
            writer.write(OK)

    async with raw_server(talk) as port:
        get = getter(port)
        task = asyncio.create_task(get.get())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await get.get()).body == b"hi"
        get.close()


async def test_a_name_that_does_not_exist_and_a_closed_port_fail_to_connect():
    for host in ("replica.invalid", "127.0.0.1:1", "x" * 70 + ".invalid"):
        with pytest.raises(GetFailed, match="connect"):
            await Getter(URL(f"http://{host}/"), None, 10, {}).get()


def test_on_uvloop_as_gateways_run_it_is_the_same():
    async def twice() -> list[bytes]:
        script = Script([OK, OK, None], [OK])
        async with raw_server(script) as port:
            get = getter(port)
            bodies = [(await get.get()).body for _ in range(3)]
            get.close()
        assert script.opened == 2
        return bodies

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(twice()) == [b"hi"] * 3


async def test_bytes_that_nobody_asked_for_end_a_kept_connection():
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        writer.write(OK)
        with suppress(ConnectionError):
            await reader.read()  # ends when the connection does
        dropped.set()

    dropped = asyncio.Event()
    async with raw_server(talk) as port:
        get = getter(port)
        await get.get()
        await dropped.wait()
        get.close()


async def test_a_deadline_ends_a_get_that_hangs_and_the_next_one_is_clean():
    well = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError):  # it may be gone before it is heard
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK if well.is_set() else OK[:-1])
            await reader.read()

    async with raw_server(talk) as port:
        get = getter(port)
        with pytest.raises(GetFailed, match="timeout"):
            await get.get(deadline=asyncio.get_running_loop().time() + 0.1)
        well.set()
        assert (await get.get(deadline=asyncio.get_running_loop().time() + 60)).body == b"hi"
        get.close()
