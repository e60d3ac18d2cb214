"""A health watch is told of every change, whenever it comes."""

import asyncio

from extproc.io.transports.health import SERVICE, HealthBook
from extproc.pb import health_pb2 as pb

REQUEST = pb.HealthCheckRequest(service=SERVICE).SerializeToString()


def status(answer: bytes) -> int:
    return pb.HealthCheckResponse.FromString(answer).status


async def test_a_change_while_an_answer_is_being_sent_is_told() -> None:
    """The watcher is away with the first answer when the gateway becomes ready."""
    book = HealthBook()
    watch = book.watch(REQUEST)
    async with asyncio.timeout(30):
        assert status(await anext(watch)) == 2
        book.set_ready(True)
        assert status(await anext(watch)) == 1
    await watch.aclose()  # type: ignore[attr-defined]


async def test_changes_that_come_to_nothing_are_not_told_and_the_end_is() -> None:
    book = HealthBook()
    watch = book.watch(REQUEST)
    async with asyncio.timeout(30):
        assert status(await anext(watch)) == 2
        book.set_ready(True)
        book.set_ready(False)
        book.close()
        assert [answer async for answer in watch] == []
