"""The cases of h2spec, each over a connection of its own to the fast transport."""

import asyncio
import struct

import pytest

from extproc.io.transports.fast import FastTransport
from extproc.io.transports.h2 import frames
from tests.integration.patience import patient
from tests.integration.test_transport_fast import serving
from tests.unit.h2_conformance import CASES, PREFACE_ENDS, Case, Frame, above
from tests.unit.h2_world import frame

_SYNC = b"so far.."


class Client:
    """Sends raw frames, and reads what comes until its own PING is answered or the server closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begun(cls, port: int) -> "Client":
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        await made.step(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 65_535}))
        await made.step(frames.SETTINGS_ACK)
        return made

    async def step(self, raw: bytes) -> list[Frame]:
        """All frames that these bytes bring."""
        self._writer.write(raw + frame(frames.PING, 0, 0, _SYNC))
        said: list[Frame] = []
        try:
            async with asyncio.timeout(patient(30)):
                while (came := await self._frame()) != (frames.PING, frames.ACK, 0, _SYNC):
                    said.append(came)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return said

    async def _frame(self) -> Frame:
        word, flags, stream = struct.unpack(">IBI", await self._reader.readexactly(9))
        return word & 0xFF, flags, stream, await self._reader.readexactly(word >> 8)

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)


async def check(case: Case, transport: FastTransport) -> None:
    steps, expected = case
    client = await Client.begun(transport.port)
    for step in steps[:-1]:
        await client.step(step)
    said = await client.step(steps[-1])
    await client.close()
    assert expected.fits(said), f"{expected} was to come, came: {said[-20:]}"


@pytest.mark.parametrize("part", ["generic", "http2", "hpack"])
async def test_what_h2spec_asks_of_a_server_is_done(part: str) -> None:
    async with serving() as transport:
        for name, case in CASES.items():
            if name.startswith(part):
                try:
                    await check(case, transport)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}") from error


async def test_one_stream_more_than_may_be_open_by_default_is_refused() -> None:
    async with serving() as transport:
        await check(above(transport.shared.limits.streams), transport)


async def test_another_beginning_is_closed() -> None:
    async with serving() as transport:
        client = Client(*await asyncio.open_connection("127.0.0.1", transport.port))
        assert frames.GOAWAY in [kind for kind, _, _, _ in await client.step(PREFACE_ENDS)]
        await client.close()
