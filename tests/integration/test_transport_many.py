"""Many open streams and large bodies at once, against a gateway's process (benchmarks/streams.py, made short)."""

import asyncio
import re
from pathlib import Path

import pytest

from benchmarks import streams
from extproc.demo.processes import free_port
from tests.integration.patience import patient


def test_open_streams_take_little_and_large_bodies_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    gateway = streams.gateway(tmp_path, port)

    async def both() -> None:
        await streams.open_streams(gateway, port, 2000, 50)
        await streams.huge_bodies(gateway, port, 4, 4 * 2**20, 50)

    try:
        asyncio.run(asyncio.wait_for(both(), patient(60)))
    finally:
        gateway.stop()
    said = capsys.readouterr().out
    each = float(re.findall(r"open streams: ([0-9.]+) KB each", said)[0])
    more = float(re.findall(r"at most (-?[0-9]+) MiB more", said)[0])
    assert each < 15, said
    assert more < 100, (
        said
    )  # 16 MiB of bodies, each for a moment once more as bytes, as a message and as text
