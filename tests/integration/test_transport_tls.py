"""TLS of both transports: certificates of files and of the gateway's own making, changed without a restart."""

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from extproc.io.transports import Answer, Push
from extproc.io.transports.tls import SelfSigned, TlsFiles
from extproc.pb import health_pb2
from tests.integration.certificates import make_certificates
from tests.integration.patience import patient, until_async
from tests.integration.transports import TRANSPORTS

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


class Echo:
    """A session that answers each message with itself."""

    held = False

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        return data, False, True

    def rescue(self) -> Answer:
        return None

    def answer_by(self, push: Push) -> None:
        raise AssertionError("nothing is owed")

    def end(self) -> None:
        """Nothing is kept."""


@pytest.fixture(params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def serving(kind: str, tls: Any) -> AsyncIterator[Any]:
    transport = TRANSPORTS[kind]("127.0.0.1:0", Echo, max_message=2**20, max_streams=100, tls=tls)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop(1.0)


def secure(port: int, roots: bytes, pair: tuple[bytes, bytes] | None = None, name: str = "") -> Any:
    credentials = grpc.ssl_channel_credentials(roots, *(pair or (None, None)))
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


def client_of(made: Path) -> tuple[bytes, bytes]:
    return (made / "client.key").read_bytes(), (made / "client.pem").read_bytes()


async def echoes(channel: Any) -> None:
    call = channel.stream_stream(PROCESS)(timeout=patient(15))
    await call.write(b"hello")
    assert await call.read() == b"hello"
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await channel.close()


async def refused(channel: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    await channel.close()


async def shown(port: int) -> bytes:
    """The server's certificate, as a new connection sees it, in PEM."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    await asyncio.sleep(0)
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


def swap(source: Path, target: Path) -> None:
    """The target becomes a copy of the source, in one go."""
    shutil.copy(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


@pytest.mark.parametrize("mutual", [False, True])
async def test_files_are_served_and_clients_prove_themselves_where_they_must(
    kind: str, made: Path, mutual: bool
) -> None:
    tls = TlsFiles(str(made / "server.pem"), str(made / "server.key"), str(made / "ca.pem") if mutual else "")
    ca = (made / "ca.pem").read_bytes()
    async with serving(kind, tls) as transport:
        await echoes(secure(transport.port, ca, client_of(made) if mutual else None))
        if mutual:
            await refused(secure(transport.port, ca))
            stranger = (made / "other.key").read_bytes(), (made / "other.pem").read_bytes()
            await refused(secure(transport.port, ca, stranger))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_only_looks_whether_tls_answers_sees_it(
    kind: str, made: Path, version: ssl.TLSVersion
) -> None:
    """Envoy's TCP health checks over TLS, which agree on no protocol."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    async with serving(kind, TlsFiles(str(made / "server.pem"), str(made / "server.key"))) as transport:
        reader, writer = await asyncio.open_connection("127.0.0.1", transport.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
        if kind == "fast":
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert await asyncio.wait_for(reader.read(), patient(10)) == b"", (
                "greeted, although HTTP/2 was not agreed on"
            )
        writer.transport.abort()
        await asyncio.sleep(0)


def copied(made: Path, folder: Path) -> tuple[Path, Path]:
    """The server's certificate and key, where they may be exchanged."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    shutil.copy(made / "server.pem", cert)
    shutil.copy(made / "server.key", key)
    return cert, key


async def test_certificates_that_change_are_used_without_a_restart(
    kind: str, made: Path, tmp_path: Path
) -> None:
    cert, key = copied(made, tmp_path)
    async with serving(kind, TlsFiles(str(cert), str(key))) as transport:
        running = secure(transport.port, (made / "ca.pem").read_bytes())
        call = running.stream_stream(PROCESS)()
        await call.write(b"before")
        assert await call.read() == b"before"
        first = await shown(transport.port)
        with capture_logs() as logs:
            swap(made / "other.key", key)  # the two don't fit: the ones before stay

            async def told() -> bool:
                assert await shown(transport.port) == first
                return bool(logs)

            await until_async(told, 10, "that they don't fit is told")
        swap(made / "other.pem", cert)

        async def changed() -> bool:
            return await shown(transport.port) == (made / "other.pem").read_bytes()

        await until_async(changed, 10, "new connections see the new certificate")
        await call.write(b"after")
        assert await call.read() == b"after", "a running connection was cut"
        await running.close()
    assert ["the ones before stay in use" in line["event"] for line in logs] == [True]


async def test_a_fifo_in_place_of_a_certificate_keeps_nobody_waiting(
    kind: str, made: Path, tmp_path: Path
) -> None:
    cert, key = copied(made, tmp_path)
    async with serving(kind, TlsFiles(str(cert), str(key))) as transport:
        first = await shown(transport.port)
        with capture_logs() as logs:
            os.mkfifo(tmp_path / "fifo")
            (tmp_path / "fifo").replace(cert)

            async def told() -> bool:
                assert await shown(transport.port) == first
                return bool(logs)

            await until_async(told, 10, "that it is no regular file is told")
        swap(made / "other.key", key)
        swap(made / "other.pem", cert)

        async def changed() -> bool:
            return await shown(transport.port) == (made / "other.pem").read_bytes()

        await until_async(changed, 10, "a good file that was put back is used")
    assert "is no regular file" in logs[0]["event"]


async def test_a_certificate_of_the_gateways_own_making_is_served_by_the_names_it_was_given(
    kind: str, made: Path
) -> None:
    with capture_logs() as logs:
        async with serving(kind, SelfSigned(["kvsteer.serving.svc", "127.0.0.1"])) as transport:
            certificate = await shown(transport.port)
            await echoes(secure(transport.port, certificate))
            await echoes(secure(transport.port, certificate, name="kvsteer.serving.svc"))
            await refused(secure(transport.port, certificate, name="another.serving.svc"))
    assert "PRIVATE" not in str(logs)
    async with serving(kind, SelfSigned(["127.0.0.1"], str(made / "ca.pem"))) as transport:
        again = await transport_certificate_with_client(transport.port, made)
        assert again != certificate, "it is made anew at each start"
        await refused(secure(transport.port, again))
        await echoes(secure(transport.port, again, client_of(made)))


async def transport_certificate_with_client(port: int, made: Path) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(made / "client.pem", made / "client.key")
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    await asyncio.sleep(0)
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


@pytest.mark.parametrize("lost", ["cert", "key", "ca"])
async def test_files_that_are_missing_or_none_are_refused_at_the_start(
    kind: str, made: Path, tmp_path: Path, lost: str
) -> None:
    for content in (None, b"", b"-----BEGIN CERTIFICATE-----\nno\n"):
        paths = {"cert": made / "server.pem", "key": made / "server.key", "ca": made / "ca.pem"}
        paths[lost] = tmp_path / "bad.pem"
        if content is not None:
            paths[lost].write_bytes(content)
        if lost == "ca" and content == b"":
            continue
        transport = TRANSPORTS[kind](
            "127.0.0.1:0", Echo, max_message=2**20, max_streams=100,
            tls=TlsFiles(str(paths["cert"]), str(paths["key"]), str(paths["ca"])),
        )  # fmt: skip
        with pytest.raises(OSError):
            await transport.start()
        paths[lost].unlink(missing_ok=True)


async def test_readiness_turns_over_tls_as_it_does_without(kind: str) -> None:
    async with serving(kind, SelfSigned(["127.0.0.1"])) as transport:
        channel = secure(transport.port, await shown(transport.port))

        async def check(service: str) -> int:
            asked = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            answer = await channel.unary_unary("/grpc.health.v1.Health/Check")(asked, timeout=patient(15))
            return health_pb2.HealthCheckResponse.FromString(answer).status

        names = ["", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "liveness"]
        assert [await check(name) for name in names] == [2, 2, 2, 1]
        transport.set_ready(True)
        assert [await check(name) for name in names] == [1, 1, 1, 1]
        transport.set_ready(False)
        assert [await check(name) for name in names] == [2, 2, 2, 1]
        await channel.close()
