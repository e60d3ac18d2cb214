"""The exporter of spans and collectors that are well, slow, hung, lying or away: all over real sockets."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson
import pytest
from prometheus_client import CollectorRegistry

from extproc.io.tracing import Tracer
from extproc.settings.tracing import TracingSettings
from tests.integration.patience import patient
from tests.unit.test_tracing import exchange
from tests.unit.test_tracing import sent as finish

#: Given what was sent and a way to answer; returns when the connection shall be closed.
Play = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def collector(play: Play) -> AsyncIterator[str]:
    """A collector that does with each request what it is told; its URL."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                await play(await reader.readexactly(size), writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
    finally:
        server.close()
        for task in serving:
            task and task.cancel()
        await asyncio.gather(*(task for task in serving if task))


def answering(status: int, body: bytes = b"{}", **headers: str) -> Play:
    """Answers this."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} as told", f"content-length: {len(body)}", *lines, "", ""])

    async def play(_sent: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        writer.write_eof()
        await writer.drain()

    return play


async def hung(_sent: bytes, _writer: asyncio.StreamWriter) -> None:
    """Says nothing, ever."""
    await asyncio.Event().wait()


async def dripping(_sent: bytes, writer: asyncio.StreamWriter) -> None:
    """A byte of its headers now and then."""
    while True:
        writer.write(b"H")
        await asyncio.sleep(0.02)


async def endless(_sent: bytes, writer: asyncio.StreamWriter) -> None:
    """An answer of a gigabyte."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def gone(_sent: bytes, _writer: asyncio.StreamWriter) -> None:
    """Hangs up."""


def tracer(url: str, spans: int, **settings: float) -> Tracer:
    """One with so many spans to send."""
    chosen = TracingSettings(endpoint=url, **{"share": 1.0, **settings})  # type: ignore[arg-type]
    made = Tracer(chosen, "gw-0", CollectorRegistry(), random.Random(1))
    for number in range(spans):
        finish(made, exchange(request_id=f"r-{number}"))
    return made


async def sent(made: Tracer) -> bool:
    """Send one batch, within a bound that a hung exporter would not keep."""
    async with asyncio.timeout(patient(20)), made.session() as session:
        return await made.send(session)


async def test_what_waits_goes_out_in_batches_of_at_most_512_and_each_span_once() -> None:
    batches: list[list[str]] = []

    async def take(data: bytes, writer: asyncio.StreamWriter) -> None:
        (resource,) = orjson.loads(data)["resourceSpans"]
        (scope,) = resource["scopeSpans"]
        batches.append([span["spanId"] for span in scope["spans"]])
        await answering(200)(data, writer)

    async with collector(take) as url:
        made = tracer(url, 1300, timeout=20)
        await made.flush()
    assert [len(batch) for batch in batches] == [512, 512, 276]
    assert len({span for batch in batches for span in batch}) == 1300
    assert made.counts == {"sent": 1300, "dropped": 0, "failed": 0}


@pytest.mark.parametrize(
    "play",
    [
        hung,
        dripping,
        gone,
        answering(429, retry_after="600"),
        answering(503),
        answering(302, location="/else"),
    ],
    ids=["hung", "dripping", "gone", "429", "503", "redirect"],
)
async def test_a_collector_that_takes_nothing_costs_its_spans_and_no_more_than_the_timeout(
    play: Play,
) -> None:
    async with collector(play) as url:
        made = tracer(url, 600, timeout=0.3)
        assert not await sent(made)
    assert made.counts == {"sent": 0, "dropped": 0, "failed": 512}
    assert len(made) == 88


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    made = tracer(f"http://127.0.0.1:{port}/v1/traces", 3, timeout=5)
    assert not await sent(made)
    assert made.counts["failed"] == 3


async def test_an_endless_answer_is_not_read() -> None:
    async with collector(endless) as url:
        made = tracer(url, 3, timeout=20)
        assert await sent(made)
    assert made.counts["sent"] == 3


@pytest.mark.parametrize(
    ("told", "rejected"),
    [
        (b'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}', 2),
        (b'{"partialSuccess":{"rejectedSpans":99}}', 5),
        (b'{"partialSuccess":{"rejectedSpans":-4}}', 0),
        (b'{"partialSuccess":{}}', 0),
        (b'{"partialSuccess":{"rejectedSpans":"many"}}', 0),
        (b"[1]", 0),
        (b"", 0),
        (b"\xff", 0),
    ],
)
async def test_spans_that_a_collector_says_it_rejected_are_counted_as_failed(
    told: bytes, rejected: int
) -> None:
    async with collector(answering(200, told)) as url:
        made = tracer(url, 5, timeout=20)
        await sent(made)
    assert (made.counts["sent"], made.counts["failed"]) == (5 - rejected, rejected)


async def test_while_a_collector_hangs_what_waits_is_bounded_and_the_event_loop_goes_on() -> None:
    async with collector(hung) as url:
        made = tracer(url, 10, timeout=60, queue=100, every=0.05)
        task = asyncio.create_task(made.run())
        async with asyncio.timeout(patient(20)):
            while len(made):  # taken up, and now in the hands of a collector that says nothing
                await asyncio.sleep(0.01)
        for number in range(250):
            finish(made, exchange(request_id=f"s-{number}"))
        assert len(made) == 100
        assert made.counts["dropped"] == 150
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert made.counts == {"sent": 0, "dropped": 150, "failed": 10}


async def test_a_full_message_goes_at_once() -> None:
    async with collector(answering(200)) as url:
        made = tracer(url, 511, timeout=20, every=60)
        task = asyncio.create_task(made.run())
        await asyncio.sleep(0)
        finish(made, exchange())
        async with asyncio.timeout(patient(20)):
            while not made.counts["sent"]:
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert made.counts == {"sent": 512, "dropped": 0, "failed": 0}


async def test_a_stop_waits_for_a_hung_collector_no_longer_than_the_timeout_and_counts_what_is_left() -> None:
    async with collector(hung) as url, asyncio.timeout(patient(20)):
        made = tracer(url, 700, timeout=0.3)
        await made.flush()
    assert (len(made), made.counts["failed"]) == (0, 700)
