"""Repeated GETs of one URL over one kept connection: no more of HTTP/1.1 than that.

Scraping is the one thing a gateway does hundreds of times a second beside deciding. Fetching and reading 60 KB
from each of 100 replicas every 500 ms took 14 % of a core with aiohttp's client, whose sessions, pools, redirects
and cookies are of no use here, and 10 % over a bare connection in the same run.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from yarl import URL

from extproc.io.http_answer import Answer, GetFailed, Reading, read_answer

__all__ = ["Answer", "GetFailed", "Getter"]


class _Unused(Exception):
    """A kept connection that ended before the first byte of an answer: its server had closed it meanwhile."""


class Getter:
    """GETs one URL, again and again, one at a time.

    Args:
        url: http or https, with a host.
        tls: how an https server is verified.
        limit: largest body, in bytes.
        headers: header lines sent with each request, without the host's.
    """

    def __init__(self, url: URL, tls: ssl.SSLContext | None, limit: int, headers: Mapping[str, str]) -> None:
        self._host, self._port = url.host or "", url.port or 80
        self._tls = tls if url.scheme == "https" else None
        self._limit = limit
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [f"GET {url.raw_path_qs} HTTP/1.1", f"host: {host}:{self._port}"]
        self._start = "\r\n".join(lines + [f"{name}: {value}" for name, value in headers.items()]) + "\r\n"
        self._authorization: str | None = None
        self._request = f"{self._start}\r\n".encode("latin-1")
        self._connection: _Connection | None = None

    async def get(self, authorization: str | None = None, deadline: float | None = None) -> Answer:
        """Fetch once. A kept connection that turns out to be closed is replaced once, as a GET may be repeated.

        `deadline` is in seconds of the loop's clock.

        Raises:
            GetFailed: there is no answer, or one that can't be read.
        """
        if authorization != self._authorization:
            self._authorization = authorization
            line = f"authorization: {authorization}\r\n" if authorization else ""
            self._request = f"{self._start}{line}\r\n".encode("latin-1")
        kept, answer = self._connection, None
        try:
            if kept is not None and not kept.is_over:
                with suppress(_Unused):
                    answer = await kept.ask(self._request, self._limit, deadline)
            if answer is None:
                made = await self._connect(deadline)
                answer = await made.ask(self._request, self._limit, deadline)
        except (_Unused, OSError, EOFError):
            self.close()
            raise GetFailed("broken") from None
        except BaseException:  # told to stop in the middle, or failed for a reason that has its word
            self.close()
            raise
        if not answer.keeps:
            self.close()
        return answer

    def close(self) -> None:
        """Drop the connection, at once."""
        if self._connection is not None:
            self._connection.drop()
        self._connection = None

    async def _connect(self, deadline: float | None) -> "_Connection":
        self.close()
        name = self._host if self._tls else None
        connect = asyncio.get_running_loop().create_connection
        try:
            async with asyncio.timeout_at(deadline) as limit:
                _, made = await connect(
                    _Connection, self._host, self._port, ssl=self._tls, server_hostname=name
                )
        except ssl.SSLError:
            raise GetFailed("tls") from None
        except (OSError, UnicodeError):
            raise GetFailed("timeout" if limit.expired() else "connect") from None
        self._connection = made
        return made


class _Connection(asyncio.Protocol):
    """One connection, on which one answer at a time is waited for.

    Attributes:
        is_over: whether it ended, by either side.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._transport: asyncio.Transport | None = None
        self._reading: Reading[Answer] | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._came = False  # whether any of the answer did

    async def ask(self, request: bytes, limit: int, deadline: float | None) -> Answer:
        """Send a request and wait for its answer, of at most `limit` bytes.

        Raises:
            _Unused: the connection ended before the answer began.
            GetFailed, EOFError, OSError: it can't be read, is cut off, or the connection broke.
        """
        if self.is_over or self._transport is None:
            raise _Unused
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._reading, self._came = read_answer(limit), False
        next(self._reading)
        self._transport.write(request)
        if deadline is None:
            return await self._answer
        late = loop.call_at(deadline, self._late)  # asyncio.timeout takes four times as long
        try:
            return await self._answer
        finally:
            late.cancel()

    def drop(self) -> None:
        """End it at once."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; nobody asked for others."""
        if self._reading is None:
            self.drop()
            return
        self._came = True
        self._read(data)

    def eof_received(self) -> None:
        """The server closed its side: as an answer without a length ends."""
        self.is_over = True
        if self._reading is not None:
            if self._came:
                self._read(b"")
            else:
                self._end(_Unused())

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.is_over = True
        if self._reading is not None:
            self._end((error or EOFError()) if self._came else _Unused())

    def _late(self) -> None:
        self._end(GetFailed("timeout"))

    def _read(self, data: bytes) -> None:
        assert self._reading is not None
        try:
            self._reading.send(data)
        except StopIteration as done:
            self._end(done.value)
        except (GetFailed, EOFError) as error:
            self._end(error)

    def _end(self, result: Answer | Exception) -> None:
        self._reading = None
        if self._answer is None or self._answer.done():  # given up
            return
        if isinstance(result, Exception):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)
