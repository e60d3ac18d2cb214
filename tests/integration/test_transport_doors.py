"""The fast transport's listening sockets: who may come in, whose path a socket is, goodbyes that nobody misses."""

import asyncio
import os
import shutil
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from extproc.io.transports import doors, fast
from extproc.io.transports.h2 import frames
from extproc.io.transports.tls import Certificates, TlsFiles
from tests.integration.certificates import make_certificates
from tests.integration.conftest import until_async
from tests.integration.patience import patient
from tests.integration.test_transport_fast import PROCESS, Raw, echoes, no_client_is_left, serving
from tests.unit.h2_world import data, headers, message, request

__all__ = ["no_client_is_left"]  # a fixture for every test here


@pytest.fixture
async def sockets() -> AsyncIterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def silent(port: int, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


# -- how many ----------------------------------------------------------------------------------------------


async def test_connections_that_have_not_agreed_on_tls_count_too(made: Path, sockets: list[Any]) -> None:
    tls = TlsFiles(str(made / "server.pem"), str(made / "server.key"))
    async with serving(tls=tls, connections=3, handshake=1.5) as transport:
        counts = transport.shared.refusals.counts
        sockets += silent(transport.port, 10)
        await until_async(lambda: asyncio.sleep(0.01, counts["connections"] == 7), 5, "seven are refused")
        assert transport.connected == 3
        await until_async(lambda: asyncio.sleep(0.01, counts["handshake"] == 3), 5, "three took too long")
        assert transport.connected == 0


async def test_a_stop_does_not_wait_for_handshakes(made: Path, sockets: list[Any]) -> None:
    tls = TlsFiles(str(made / "server.pem"), str(made / "server.key"))
    async with serving(tls=tls, handshake=60.0) as transport:
        sockets += silent(transport.port, 2)
        await until_async(lambda: asyncio.sleep(0.01, transport.connected == 2), 5, "they are in")
        async with asyncio.timeout(patient(5)):
            await transport.stop(1.0)
        await until_async(lambda: asyncio.sleep(0, transport.connected == 0), 5, "they are gone")


async def test_without_a_file_for_one_more_it_says_so_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, sockets: list[Any]
) -> None:
    monkeypatch.setattr(doors, "_PAUSE", 0.05)
    said: list[str] = []
    async with serving() as transport:
        monkeypatch.setattr(transport._door, "_told", said.append)
        assert transport._door is not None
        (listener,) = transport._door._listeners
        full = _Full(listener)
        transport._door._accept(full)  # type: ignore[arg-type]
        assert transport.shared.refusals.counts["descriptors"] == 1
        assert "ulimit -n" in said[0]
        sockets += silent(transport.port, 1)
        full.full = False
        await until_async(lambda: asyncio.sleep(0.01, transport.connected == 1), 5, "it is taken later")


class _Full:
    """A listener for which the process has no file left, until `full` is False."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.full = True

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> Any:
        if self.full:
            raise OSError(24, "Too many open files")
        return self._listener.accept()


async def test_the_log_hears_of_missing_files_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(fast._log, "error", said.append, raising=False)
    async with serving() as transport:
        for _ in range(3):
            transport._no_room("no files")
    assert said == ["no files"]


# -- whose path --------------------------------------------------------------------------------------------


async def test_a_path_on_which_somebody_listens_is_left_to_them(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    async with serving(address):
        with pytest.raises(OSError, match="another process listens on it"):
            async with serving(address):
                pass
        await echoes(grpc.aio.insecure_channel(address))


async def test_a_path_that_a_killed_process_left_is_taken(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{tmp_path}/s")
    left.listen()
    left.close()
    async with serving(f"unix:{tmp_path}/s"):
        _, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        writer.close()
    assert not (tmp_path / "s").exists(), "a stop leaves no path behind"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(OSError, match="no socket"):
        async with serving(f"unix:{tmp_path}/s"):
            pass
    assert (tmp_path / "s").read_text() == "mine"


async def test_a_stop_leaves_a_path_that_is_another_s_by_now(tmp_path: Path) -> None:
    async with serving(f"unix:{tmp_path}/s"):
        os.unlink(tmp_path / "s")
        (tmp_path / "s").write_text("another's")
    assert (tmp_path / "s").exists()


async def test_a_port_in_use_is_said() -> None:
    async with serving() as transport:
        with pytest.raises(OSError, match="is another process using it"):
            async with serving(f"127.0.0.1:{transport.port}"):
                pass


# -- goodbyes ----------------------------------------------------------------------------------------------


async def test_a_stop_serves_streams_that_were_on_their_way_until_the_peer_has_read_of_it() -> None:
    async with serving() as transport:
        raw = await Raw.greeting(transport.port)
        await raw.read_until(frames.SETTINGS)
        await until_async(lambda: asyncio.sleep(0, transport.connected == 1), 5, "it is there")
        raw.say(headers(1, request(PROCESS.encode())) + data(1, message(b"one"), end=True))
        await raw.read_until(frames.DATA)
        stopping = asyncio.create_task(transport.stop(5.0))
        last = await raw.read_until(frames.GOAWAY)
        assert struct.unpack_from(">I", last)[0] == 2**31 - 1
        asked = await raw.read_until(frames.PING)
        raw.say(headers(3, request(PROCESS.encode())) + data(3, message(b"two"), end=True))
        assert await raw.read_until(frames.DATA) == message(b"two")
        raw.say(struct.pack(">IBI", 8 << 8 | frames.PING, 1, 0) + asked)
        last = await raw.read_until(frames.GOAWAY)
        assert struct.unpack_from(">I", last)[0] == 3
        async with asyncio.timeout(patient(1)):
            await stopping


async def test_a_stop_waits_a_second_at_most_for_a_peer_that_does_not_say_that_it_read() -> None:
    async with serving() as transport:
        raw = await Raw.greeting(transport.port)
        await raw.read_until(frames.SETTINGS)
        await until_async(lambda: asyncio.sleep(0, transport.connected == 1), 5, "it is there")
        async with asyncio.timeout(patient(4)):
            await transport.stop(30.0)


# -- certificates ------------------------------------------------------------------------------------------


def test_certificates_that_can_t_be_used_are_told_of_once(made: Path, tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        shutil.copy(made / name, tmp_path / name)
    said: list[str] = []
    kept = Certificates(TlsFiles(str(tmp_path / "server.pem"), str(tmp_path / "server.key")), said.append)
    (tmp_path / "server.pem").write_text("damaged")
    for _ in range(3):
        kept.look()
    assert len(said) == 1
    assert "the ones before stay in use" in said[0]
    shutil.copy(made / "server.pem", tmp_path / "server.pem")
    kept.look()
    (tmp_path / "server.pem").write_text("damaged again")
    kept.look()
    assert len(said) == 2, "after good ones, the next fault is told again"


async def test_the_gateway_s_log_hears_of_certificates(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(fast._log, "error", said.append, raising=False)
    async with serving(tls=TlsFiles(str(made / "server.pem"), str(made / "server.key"))) as transport:
        assert transport._certificates is not None
        transport._certificates._told("a fault")
    assert said == ["a fault"]
