"""An answer of HTTP/1.1 to a GET, read from bytes as they come: no connection here, and every part bounded.

Reading is a generator, so that it goes on where the bytes ended: it yields when it needs more, is sent them (nothing
at all when the connection ended), and returns the answer.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

#: Longest head of an answer, and longest line of a chunked body, in bytes.
MAX_HEAD = 2**16
#: Most interim (1xx) answers before the real one, and most trailer lines behind a chunked body.
_MAX_EXTRAS = 32

#: Most chunks of one body: 0.1 s of work. 4 MiB in chunks of 1 KiB has 4,096.
_MAX_CHUNKS = 2**14

#: How every head begins.
_START = b"HTTP/1."
#: The status that ends HTTP on a connection, which nobody asked for (RFC 9110, 15.2.2).
_SWITCHED = 101
#: A line's end that is none here.
_BARE = re.compile(rb"(?<!\r)\n")
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?\r\n(?:[^\s:][^\r\n:]*(?<=\S):[^\r\n]*\r\n)*"
)
#: The fields that say anything here; of a head all others are passed over.
_FIELD = re.compile(
    rb"^(content-length|content-encoding|transfer-encoding|connection):[ \t]*+([^\r\n]*+)\r\n", re.I | re.M
)
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")

#: What reads: it yields for more bytes, is sent them (b"" at the end of the connection), and returns what it read.
T = TypeVar("T")
Reading = Generator[None, bytes, T]


class GetFailed(Exception):
    """A GET gave no answer. Raised by `Getter.get`; the connection is closed by then.

    `reason` is `connect` (refused, unreachable, no such name), `tls`, `timeout`, `too_large`, or `broken` (cut off,
    or not HTTP as it should be).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Answer:
    """An answer. The body is read for status 200 only, else it is empty.

    Attributes:
        headers: content-length, content-encoding, transfer-encoding and connection, where they are there.
        keeps: whether the connection may be used again.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    keeps: bool


def read_answer(limit: int) -> Reading[Answer]:
    """Read one answer with a body of at most `limit` bytes.

    Raises:
        GetFailed: it is too large, or not HTTP as it should be.
        EOFError: the connection ended in the middle.
    """
    held = _Held()
    for _ in range(_MAX_EXTRAS):
        head = yield from held.until(b"\r\n\r\n", _START)
        status, headers, keeps = _parse_head(head)
        if status == _SWITCHED:
            raise GetFailed("broken")
        if status >= 200:
            break
    else:
        raise GetFailed("broken")
    if status != 200:  # what such an answer says is not worth reading
        return Answer(status, headers, b"", keeps=False)
    body, framed = yield from _read_body(held, headers, limit)
    return Answer(status, headers, body, keeps and framed and held.is_empty)


def _parse_head(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Status, headers in lower case, and whether the connection may be used again."""
    match = _HEAD.fullmatch(head, 0, len(head) - 2)
    if match is None:
        raise GetFailed("broken")
    headers: dict[str, str] = {}
    for name, value in _FIELD.findall(head):
        field, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        if field == "content-length" and headers.get(field, text) != text:
            raise GetFailed("broken")
        headers[field] = text
    connection = headers.get("connection", "").lower()
    keeps = "keep-alive" in connection if match[1] == b"0" else "close" not in connection
    return int(match[2]), headers, keeps


def _read_body(held: "_Held", headers: Mapping[str, str], limit: int) -> Reading[tuple[bytes, bool]]:
    """The body, and whether it had an end of its own (else it ended with the connection)."""
    coding, length = headers.get("transfer-encoding", "").lower(), headers.get("content-length")
    if coding and coding != "identity":
        if coding != "chunked":
            raise GetFailed("broken")
        return (yield from _read_chunks(held, limit)), True
    if length is None:
        return (yield from held.rest(limit)), False
    if not _LENGTH.fullmatch(length):
        raise GetFailed("broken")
    if int(length) > limit:
        raise GetFailed("too_large")
    return (yield from held.exactly(int(length))), True


def _read_chunks(held: "_Held", limit: int) -> Reading[bytes]:
    parts: list[bytes] = []
    left = limit
    for _ in range(_MAX_CHUNKS):
        match = _CHUNK.fullmatch((yield from held.until(b"\r\n")))
        if match is None:
            raise GetFailed("broken")
        size = int(match[1], 16)
        if size == 0:
            break
        left -= size
        if left < 0:
            raise GetFailed("too_large")
        part = yield from held.exactly(size + 2)
        if not part.endswith(b"\r\n"):
            raise GetFailed("broken")
        parts.append(part[:-2])
    else:
        raise GetFailed("broken")
    yield from _skip_trailers(held)
    return b"".join(parts)


def _skip_trailers(held: "_Held") -> Reading[None]:
    for _ in range(_MAX_EXTRAS):
        if (yield from held.until(b"\r\n")) == b"\r\n":
            return
    raise GetFailed("broken")


class _Held:
    """Bytes that came and are not read yet: as a rule a whole answer in one piece, which is not copied twice."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # bytes of it that were read

    @property
    def is_empty(self) -> bool:
        """Whether everything was read."""
        return self._at == len(self._data)

    def until(self, mark: bytes, start: bytes = b"") -> Reading[bytes]:
        """What comes up to and with a mark, within MAX_HEAD, in lines that end with CR LF.

        What can't come to that is not waited for: another line end, or another start.
        """
        if self.is_empty:
            self._data, self._at = (yield from _more()), 0
        begin = self._at
        found = self._data.find(mark, begin, begin + MAX_HEAD)
        if found < 0:
            return (yield from self._search(mark, start))
        self._at = found + len(mark)
        return self._data[begin : self._at]

    def _search(self, mark: bytes, start: bytes) -> Reading[bytes]:
        """The same, where it takes more than came so far."""
        data, looked = bytearray(self._data[self._at :]), 0
        while (found := data.find(mark, looked, MAX_HEAD)) < 0:
            is_other = not data.startswith(start[: len(data)]) or _BARE.search(data, max(looked - 1, 0))
            if is_other or len(data) >= MAX_HEAD:
                raise GetFailed("broken")
            looked = max(0, len(data) - len(mark) + 1)
            data += yield from _more()
        end = found + len(mark)
        self._data, self._at = bytes(data[end:]), 0
        return bytes(data[:end])

    def exactly(self, size: int) -> Reading[bytes]:
        """The next `size` bytes."""
        begin = self._at
        have = len(self._data) - begin
        if have < size:
            parts = [self._data[begin:]]
            while have < size:
                parts.append((yield from _more()))
                have += len(parts[-1])
            self._data, begin = b"".join(parts), 0
        self._at = begin + size
        return self._data[begin : self._at]

    def rest(self, limit: int) -> Reading[bytes]:
        """Everything until the connection ends, at most `limit` bytes."""
        parts = [self._data[self._at :]]
        left = limit - len(parts[0])
        while left >= 0:
            data = yield
            if not data:
                return b"".join(parts)
            left -= len(data)
            parts.append(data)
        raise GetFailed("too_large")


def _more() -> Reading[bytes]:
    """What comes next; at least one byte."""
    data = yield
    if not data:
        raise EOFError
    return data
