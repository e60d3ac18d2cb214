"""Server-sent events: what changed, to so many open pages, each as fast as it reads.

One message is made for all of them, and only while somebody looks. A page that reads slowly misses messages and gets
the newest; one that does not read at all is let go.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

#: Open pages at most.
PAGES: Final = 16
#: Seconds in which a page must take a message.
_DEADLINE: Final = 10.0
#: Seconds after which a page that was turned away, or cut off, comes again.
_AGAIN_MS: Final = 2000


class Events:
    """Who listens, and what they are told.

    Args:
        greet: what a page is told when it comes.
        news: what all are told at each turn.
    """

    def __init__(
        self, greet: Callable[[], Awaitable[dict[str, Any]]], news: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        self._greet = greet
        self._news = news
        self._pages: set[_Reader] = set()
        self._closed = False

    def __len__(self) -> int:
        """Pages that are open."""
        return len(self._pages)

    async def turn(self) -> None:
        """Tell everybody; does nothing while nobody listens."""
        if self._pages:
            message = _message(await self._news())
            for page in self._pages:
                page.give(message)

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        for page in self._pages:
            page.give(None)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A page that listens until it goes."""
        if len(self._pages) >= PAGES or self._closed:
            return web.Response(
                status=503, text=f"{PAGES} pages are open already\n", headers={"retry-after": "5"}
            )
        page = _Reader()
        self._pages.add(page)
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream",
                "cache-control": "no-store",
                "x-accel-buffering": "no",
            }
        )
        try:
            await response.prepare(request)
            await response.write(b"retry: %d\n\n" % _AGAIN_MS)
            page.give(_message(await self._greet()))
            while (message := await page.next()) is not None:
                async with asyncio.timeout(_DEADLINE):
                    await response.write(message)
        except (ConnectionError, TimeoutError):
            pass  # it is gone, or as good as gone
        finally:
            self._pages.discard(page)
        return response


class _Reader:
    """One page: the newest message that it has not taken."""

    def __init__(self) -> None:
        self._message: bytes | None = None
        self._fresh = asyncio.Event()

    def give(self, message: bytes | None) -> None:
        """Here is a newer one; None is the end."""
        self._message = message
        self._fresh.set()

    async def next(self) -> bytes | None:
        """Wait for one."""
        await self._fresh.wait()
        self._fresh.clear()
        return self._message


def _message(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"
