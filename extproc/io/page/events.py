"""Server-sent events: what changed, to so many open pages, each as fast as it reads.

One message of a kind is made for all of them, and only while somebody looks. A page that reads slowly misses messages
and gets the newest of each kind; one that does not read at all is let go, and when there is no place left, one that
reads worst or was there longest gives way to one that comes.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import hdrs, web

from extproc.io import clock
from extproc.io.page.reader import Reader

#: Open pages at most.
PAGES: Final = 16
#: Seconds in which a page must take a message, or anything of what waits for it.
_DEADLINE: Final = 10.0
#: Seconds without taking anything after which a page gives way to one that comes.
_STALLED: Final = 2.0
#: Seconds for which a page that reads has its place; then it may have to give way.
_STAY: Final = 60.0
#: Seconds after which a page that was turned away, or cut off, comes again.
_AGAIN_MS: Final = 2000
#: Bytes that the system keeps of what a page did not take (Linux doubles it): by itself it would grow to megabytes,
#: the news of half an hour, in which a page that does not read would seem to.
_SENDING: Final = 65536
#: The last word to one that gives way: it is not to come again at once.
_WAY: Final = b"event: way\ndata: {}\n\n"
_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}

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
        self._pages: dict[Reader, None] = {}  # the oldest first
        self._closed = False

    def __len__(self) -> int:
        """Pages that are open."""
        return len(self._pages)

    async def turn(self) -> None:
        """Tell everybody; does nothing while nobody listens."""
        if self._pages:
            messages = _messages(await self._news())
            for page in list(self._pages):
                if page.stalled(clock.monotonic()) > _DEADLINE:
                    self._let_go(page)
                page.give(messages)

    def close(self) -> None:
        """End all of them."""
        self._closed = True
        for page in self._pages:
            page.end()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A page that listens until it goes."""
        asks = request.method == hdrs.METH_HEAD
        if self._closed or not self._has_room(makes_it=not asks):
            why = f"{PAGES} pages are open already; close one, or try again in a minute\n"
            return web.Response(status=503, text=why, headers={"retry-after": "5"})
        if asks:
            return web.Response(headers=_HEADERS)
        page = Reader(request.transport, clock.monotonic())
        self._pages[page] = None
        response = web.StreamResponse(headers=_HEADERS)
        response.force_close()  # else the connection of one that gave way would stay
        _keep_little(request.transport)
        try:
            await self._tell(request, response, page)
        except ConnectionError:
            pass  # it is gone
        except TimeoutError:
            # As good as gone. To end the answer would be to wait for it once more, and to keep what it never took.
            page.abort()
        finally:
            self._pages.pop(page, None)
        return response

    async def _tell(self, request: web.Request, response: web.StreamResponse, page: Reader) -> None:
        await response.prepare(request)
        await response.write(b"retry: %d\n\n" % _AGAIN_MS)
        page.give(_messages(await self._greet()))
        while (message := await page.next()) is not None:
            page.sent(len(message))
            async with asyncio.timeout(_DEADLINE):
                await response.write(message)

    def _has_room(self, *, makes_it: bool) -> bool:
        """Whether one more may come, after somebody gave way where `makes_it` and there was no room."""
        if len(self._pages) < PAGES:
            return True
        now = clock.monotonic()
        worst = max(self._pages, key=lambda page: page.stalled(now))
        oldest = next(iter(self._pages))
        if worst.stalled(now) > _STALLED:
            leaves = worst
        elif now - oldest.came >= _STAY:
            leaves = oldest
        else:
            return False
        if makes_it:
            self._let_go(leaves)
        return True

    def _let_go(self, page: Reader) -> None:
        self._pages.pop(page, None)
        if page.waiting():
            page.abort()
        page.end(_WAY)


def _keep_little(transport: asyncio.Transport | None) -> None:
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENDING)


def _messages(told: Told) -> dict[str, bytes]:
    return {kind: b"event: %b\ndata: %b\n\n" % (kind.encode(), text) for kind, text in told.items()}
