"""Repeated GETs of one URL over one kept connection: no more of HTTP/1.1 than that, and every part bounded.

Scraping is the one thing a gateway does hundreds of times a second beside deciding. Fetching and reading 60 KB
from each of 100 replicas every 500 ms took 14 % of a core with aiohttp's client, whose sessions, pools, redirects
and cookies are of no use here, and 10 % this way in the same run; 4 % of either is the reading.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from yarl import URL

#: Longest head of an answer, and longest line of a chunked body, in bytes.
MAX_HEAD = 2**16
#: Most interim (1xx) answers before the real one, and most trailer lines behind a chunked body.
_MAX_EXTRAS = 32

#: Most chunks of one body: 0.1 s of work. 4 MiB in chunks of 1 KiB has 4,096.
_MAX_CHUNKS = 2**14

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")


class GetFailed(Exception):
    """A GET gave no answer. Raised by `Getter.get`; the connection is closed by then.

    `reason` is `connect` (refused, unreachable, no such name), `tls`, `too_large`, or `broken` (cut off, or not
    HTTP as it should be).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Unused(Exception):
    """A kept connection that ended before the first byte of an answer: its server had closed it meanwhile."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its headers in lower case. The body is read for status 200 only, else it is empty."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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
        self._request = "\r\n".join(lines + [f"{name}: {value}" for name, value in headers.items()]) + "\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def get(self, authorization: str | None = None) -> Answer:
        """Fetch once. A kept connection that turns out to be closed is replaced once, as a GET may be repeated.

        Raises:
            GetFailed: there is no answer, or one that can't be read.
        """
        try:
            return await self._once_or_twice(authorization)
        except (_Unused, OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            self.close()
            raise GetFailed("broken") from None
        except BaseException:  # told to stop in the middle, or failed for a reason that has its word
            self.close()
            raise

    def close(self) -> None:
        """Drop the connection, at once."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _once_or_twice(self, authorization: str | None) -> Answer:
        try:
            return await self._try(authorization)
        except _Unused:
            self.close()
            return await self._try(authorization)

    async def _try(self, authorization: str | None) -> Answer:
        fresh = self._reader is None or self._reader.at_eof()
        if fresh:
            self.close()
            await self._connect()
        assert self._reader is not None
        assert self._writer is not None
        extra = f"authorization: {authorization}\r\n\r\n" if authorization else "\r\n"
        self._writer.write((self._request + extra).encode("latin-1"))
        return await self._answer(self._reader, fresh)

    async def _connect(self) -> None:
        name = self._host if self._tls else None
        try:
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, limit=MAX_HEAD, ssl=self._tls, server_hostname=name
            )
        except ssl.SSLError:
            raise GetFailed("tls") from None
        except (OSError, UnicodeError):
            raise GetFailed("connect") from None

    async def _answer(self, reader: asyncio.StreamReader, fresh: bool) -> Answer:
        for _ in range(_MAX_EXTRAS):
            head = await self._head(reader, fresh)
            status, headers, keep = _parse_head(head)
            if status >= 200:
                break
        else:
            raise GetFailed("broken")
        if status != 200:
            self.close()  # what such an answer says is not worth reading
            return Answer(status, headers, b"")
        body, framed = await _read_body(reader, headers, self._limit)
        if not (keep and framed):
            self.close()
        return Answer(status, headers, body)

    async def _head(self, reader: asyncio.StreamReader, fresh: bool) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if fresh or error.partial:
                raise
            raise _Unused from None
        except ConnectionError:
            if fresh:
                raise
            raise _Unused from None


def _parse_head(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Status, headers in lower case, and whether the connection may be used again."""
    start, *lines = head[:-4].split(b"\r\n")
    match = _STATUS.fullmatch(start)
    if match is None:
        raise GetFailed("broken")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        name, value = name.lower(), value.strip()
        two_lengths = name == "content-length" and headers.get(name, value) != value
        if not colon or not name or name != name.strip() or two_lengths:
            raise GetFailed("broken")
        headers[name] = value
    connection = headers.get("connection", "").lower()
    keep = "keep-alive" in connection if match[1] == b"0" else "close" not in connection
    return int(match[2]), headers, keep


async def _read_body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], limit: int
) -> tuple[bytes, bool]:
    """The body, and whether it had an end of its own (else it ended with the connection)."""
    coding, length = headers.get("transfer-encoding", "").lower(), headers.get("content-length")
    if coding and coding != "identity":
        if coding != "chunked":
            raise GetFailed("broken")
        return await _read_chunks(reader, limit), True
    if length is None:
        return await _read_rest(reader, limit), False
    if not _LENGTH.fullmatch(length):
        raise GetFailed("broken")
    if int(length) > limit:
        raise GetFailed("too_large")
    return await reader.readexactly(int(length)), True


async def _read_chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    for _ in range(_MAX_CHUNKS):
        match = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if match is None:
            raise GetFailed("broken")
        size = int(match[1], 16)
        if size == 0:
            break
        left -= size
        if left < 0:
            raise GetFailed("too_large")
        part = await reader.readexactly(size + 2)
        if not part.endswith(b"\r\n"):
            raise GetFailed("broken")
        parts.append(part[:-2])
    else:
        raise GetFailed("broken")
    await _skip_trailers(reader)
    return b"".join(parts)


async def _skip_trailers(reader: asyncio.StreamReader) -> None:
    for _ in range(_MAX_EXTRAS):
        if await reader.readuntil(b"\r\n") == b"\r\n":
            return
    raise GetFailed("broken")


async def _read_rest(reader: asyncio.StreamReader, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while part := await reader.read(MAX_HEAD):
        left -= len(part)
        if left < 0:
            raise GetFailed("too_large")
        parts.append(part)
    return b"".join(parts)
