"""A client of a Redis Cluster leaves no connection open, also after calls that ran out of time."""

import asyncio
import gc

import pytest
from redis import exceptions

from extproc.config import RedisSettings
from extproc.io.redis_client import make_client


class Cluster:
    """A Redis Cluster of one node which answers what a client asks at first, and no GET."""

    def __init__(self) -> None:
        self.port = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while words := int((await reader.readline())[1:] or b"0"):
                asked = b" ".join([await self._word(reader) for _ in range(words)])
                self.asked.append(asked)
                writer.write(self._answer(asked))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client broke it off
        finally:
            self.open.discard(writer)
            writer.close()

    async def _word(self, reader: asyncio.StreamReader) -> bytes:
        length = int((await reader.readline())[1:])
        return (await reader.readexactly(length + 2))[:-2]

    def _answer(self, asked: bytes) -> bytes:
        if asked.startswith(b"GET"):
            return b""
        if asked == b"CLUSTER SLOTS":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nn1\r\n" % self.port
        return b"*0\r\n" if asked == b"COMMAND" else b"+OK\r\n"


async def test_after_calls_that_ran_out_of_time_closing_closes_every_connection() -> None:
    cluster = Cluster()
    server = await asyncio.start_server(cluster.serve, "127.0.0.1", 0)
    cluster.port = server.sockets[0].getsockname()[1]
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    settings = RedisSettings(url=url, protocol=2, deadline=0.3, connect_timeout=5.0)
    client = make_client(settings)
    with pytest.raises(exceptions.RedisError):
        await client.get("kvsteer:none")
    await client.aclose()
    async with asyncio.timeout(30):
        while cluster.open:
            await asyncio.sleep(0.005)
    del client
    gc.collect()  # what is unclosed warns now, and warnings are errors
    server.close()
    await server.wait_closed()
