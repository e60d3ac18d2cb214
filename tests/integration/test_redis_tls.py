"""TLS to Redis: the CA and the host are checked, and a certificate of our own is shown where it is asked for.

Servers out of wheels are built without TLS, so a TLS end stands before a real one, as many proxies do. Sharing with a
server's own TLS, where there is one, is in test_redis_ways.py.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import exceptions

from extproc.config import RedisSettings
from extproc.io.redis_client import make_client
from tests.integration.certificates import make_certificates
from tests.integration.redis_server import redis_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[int]:
    with redis_server(folder) as (port, _):
        yield port


@contextlib.asynccontextmanager
async def tls_end(folder: Path, plain: int, certificate: str) -> AsyncIterator[int]:
    """A listener that speaks TLS, asks for a certificate, and passes everything to the plain port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", plain)
        await asyncio.gather(copy(reader, behind_writer), copy(behind_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.05)  # connections that were refused say so to the loop


def settings(folder: Path, port: int, verify_host: bool = True, **files: str) -> RedisSettings:
    named = {key: str(folder / name) for key, name in files.items()}
    return RedisSettings(
        url=f"rediss://127.0.0.1:{port}/0",
        deadline=1.0,
        connect_timeout=2.0,
        verify_host=verify_host,
        **named,
    )


OURS = {"ca_file": "ca.pem", "cert_file": "client.pem", "key_file": "client.key"}


async def test_with_the_ca_and_a_certificate_calls_are_made(folder: Path, plain: int) -> None:
    async with tls_end(folder, plain, "server") as port:
        client = make_client(settings(folder, port, **OURS), "test")
        assert await client.ping()
        await client.aclose()


@pytest.mark.parametrize("files", [{}, OURS | {"ca_file": "other.pem"}, {"ca_file": "ca.pem"}])
async def test_an_unknown_ca_and_a_missing_certificate_are_refused(
    folder: Path, plain: int, files: dict[str, str]
) -> None:
    async with tls_end(folder, plain, "server") as port:
        client = make_client(settings(folder, port, **files), "test")
        with pytest.raises(exceptions.ConnectionError):
            await client.ping()
        assert client.guard.up is False
        await client.aclose()


async def test_a_certificate_for_another_host_is_refused_unless_hosts_are_not_checked(
    folder: Path, plain: int
) -> None:
    async with tls_end(folder, plain, "client") as port:
        client = make_client(settings(folder, port, **OURS), "test")
        with pytest.raises(exceptions.ConnectionError):
            await client.ping()
        await client.aclose()
        lax = make_client(settings(folder, port, verify_host=False, **OURS), "test")
        assert await lax.ping()
        await lax.aclose()
