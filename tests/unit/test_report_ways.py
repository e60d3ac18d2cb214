"""What the reporter says of whatever answers where it was told a gateway is."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extproc.config import RedisSettings
from extproc.io.report_ways import HttpWay, RedisWay, WayFailed

REPLICA = "10.0.0.2:8000"
#: Trusts nobody, and is not asked: no URL here begins with https.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """Whoever answers every request by `handler`; its URL."""
    runner = web.ServerRunner(web.Server(handler))  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def saying(status: int, text: str) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return answer


async def told(url: str) -> WayFailed:
    way = HttpWay(url, None, NO_TLS, 5.0)
    try:
        with pytest.raises(WayFailed) as caught:
            await way.send(REPLICA, b"{}")
    finally:
        await way.close()
    return caught.value


@pytest.mark.parametrize(
    ("status", "text", "reason", "detail"),
    [
        (200, "<html>welcome</html>", "no_gateway", "by default port 9095"),
        (200, '{"status": "ok"}', "no_gateway", "by default port 9095"),
        (404, "not found", "no_gateway", "admin.address"),
        (404, '{"error": "no such path"}', "no_gateway", "admin.address"),
        (405, "", "no_gateway", "with status 405"),
        (404, '{"result": "unknown_replica", "error": "x"}', "status_404", "no pool of the gateway has this replica"),
        (401, '{"result": "denied", "error": "x"}', "status_401", "--gateway-token-file"),
        (401, "who are you", "status_401", "a proxy before the gateway"),
        (502, "bad gateway", "status_502", "does the gateway run?"),
        (503, '{"result": "busy", "error": "too many reports at once"}', "status_503", "too many reports at once"),
    ],
)  # fmt: skip
async def test_what_answers_is_told_apart(status: int, text: str, reason: str, detail: str) -> None:
    async with server(saying(status, text)) as url:
        failure = await told(url)
    assert failure.reason == reason
    assert detail in failure.detail


async def test_a_gateways_answer_is_an_arrival() -> None:
    async with server(saying(200, '{"result": "taken"}')) as url:
        way = HttpWay(url, None, NO_TLS, 5.0)
        await way.send(REPLICA, b"{}")
        await way.close()


async def test_a_port_that_speaks_no_http_is_taken_for_the_wrong_one_of_the_gateway() -> None:
    async def frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # SETTINGS, as a gRPC server begins
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(frames, "127.0.0.1", 0)
    async with listener:
        failure = await told(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    assert failure.reason == "broken"
    assert "grpc.address" in failure.detail
    assert "admin.address" in failure.detail


async def test_https_to_a_port_without_tls_is_told_as_that() -> None:
    async with server(saying(200, "")) as url:
        failure = await told(url.replace("http:", "https:"))
    assert failure.reason == "tls"
    assert "no TLS" in failure.detail


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
async def test_what_is_no_redis_is_said_to_be_none(said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"redis://127.0.0.1:{port}/0"
        way = RedisWay(RedisSettings(url=url, deadline=10, connect_timeout=10), "chat")
        with pytest.raises(WayFailed) as failed:
            await way.send("10.0.0.1:8000", b"{}")
        await way.close()
    assert failed.value.reason == "refused"
    assert failed.value.detail == (
        "what answers there is no Redis; check host and port of --redis, and rediss:// for TLS"
    )
