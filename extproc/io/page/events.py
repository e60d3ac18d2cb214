"""Server-sent events: what changed, to so many open pages, each as fast as it reads.

One message of a kind is made for all of them, and only while somebody looks. A page that reads slowly misses messages
and gets the newest of each kind; one that does not read at all is let go.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

#: Open pages at most.
PAGES: Final = 16
#: Seconds in which a page must take a message.
_DEADLINE: Final = 10.0
#: Seconds after which a page that was turned away, or cut off, comes again.
_AGAIN_MS: Final = 2000

#: What is told: by kind of message, in the order in which they go, JSON in one line.
Told = Mapping[str, bytes]


class Events:
    """Who listens, and what they are told.

    Args:
        greet: what a page is told when it comes.
        news: what all are told at each turn.
    """

    def __init__(self, greet: Callable[[], Awaitable[Told]], news: Callable[[], Awaitable[Told]]) -> None:
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
            messages = _messages(await self._news())
            for page in self._pages:
                page.give(messages)

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        for page in self._pages:
            page.end()

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
            page.give(_messages(await self._greet()))
            while (message := await page.next()) is not None:
                async with asyncio.timeout(_DEADLINE):
                    await response.write(message)
        except ConnectionError:
            pass  # it is gone
        except TimeoutError:
            # As good as gone. To end the answer would be to wait for it once more, and to keep what it never took.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._pages.discard(page)
        return response


class _Reader:
    """One page: the newest messages that it has not taken, one of a kind."""

    def __init__(self) -> None:
        self._messages: dict[str, bytes] = {}
        self._ended = False
        self._fresh = asyncio.Event()

    def give(self, messages: Mapping[str, bytes]) -> None:
        """Here are newer ones."""
        self._messages.update(messages)
        self._fresh.set()

    def end(self) -> None:
        """There will be no more."""
        self._ended = True
        self._fresh.set()

    async def next(self) -> bytes | None:
        """Wait for one; None is the end."""
        while not self._messages and not self._ended:
            self._fresh.clear()
            await self._fresh.wait()
        return None if self._ended else self._messages.pop(next(iter(self._messages)))


def _messages(told: Told) -> dict[str, bytes]:
    return {kind: b"event: %b\ndata: %b\n\n" % (kind.encode(), text) for kind, text in told.items()}
