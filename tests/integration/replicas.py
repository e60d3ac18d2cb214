"""Doubles of replicas that answer scrapes over real HTTP, and a record of what a collector says of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from extproc.core.sample import Sample
from tests.integration.patience import patient

VLLM = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 1\n'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Scraping:
    """The settings of a collector, as a pool's `metrics` has them."""

    interval: float = 0.1
    timeout: float = 1.0
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: str = ""


class Record:
    """Keeps what the collector tells, and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.samples: list[tuple[str, Sample]] = []
        self.failures: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def on_sample(self, address: str, sample: Sample) -> None:
        self.samples.append((address, sample))
        self._news.set()

    def on_failure(self, address: str, reason: str) -> None:
        self.failures.append((address, reason))
        self._news.set()

    def of(self, address: str) -> list[Sample]:
        return [sample for name, sample in self.samples if name == address]

    def reasons(self, address: str) -> list[str]:
        return [reason for name, reason in self.failures if name == address]

    async def until(self, happened: Callable[[], bool], within: float = 10.0) -> None:
        """Wait for news until `happened`; a TimeoutError says that it did not."""
        async with asyncio.timeout(patient(within)):
            while not happened():
                self._news.clear()
                await self._news.wait()


def answer(body: bytes = VLLM, status: int = 200, **headers: str) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(
            body=body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return handler


@asynccontextmanager
async def server(
    handler: Handler, host: str = "127.0.0.1", port: int = 0, **options: object
) -> AsyncIterator[int]:
    """An HTTP server that gives every path to a handler; yields its port."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port, **options)  # type: ignore[arg-type]
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A TCP server for answers no decent HTTP server gives; yields its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except OSError:
            pass  # the client left, which is what these tests are about
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
