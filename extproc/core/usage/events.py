"""Server-sent events out of bytes in pieces of any size, in bounded memory.

The format is that of the HTML standard, 9.2.6: lines end with CR, LF or CRLF; an empty one ends an event; `data`
lines of one event are joined with LF; a space after the colon is not part of the value. Other fields and comments
don't matter here.
"""

from typing import NamedTuple

from extproc.core.usage.scan import Scanner

_BOM = b"\xef\xbb\xbf"
_CR, _LF = b"\r\n"


class Event(NamedTuple):
    """The data of one event: whole, or what was scanned out of an event too large to be kept."""

    data: bytes
    scanned: Scanner | None = None


class Events:
    """Fed a body in pieces; holds at most its limit of bytes, or a scanner's.

    An event whose data is larger than the limit, or one line of which is, is scanned as it passes.
    """

    __slots__ = ("_after_cr", "_limit", "_long", "_partial", "_scanner", "_started", "_text")

    def __init__(self, limit: int) -> None:
        """`limit`: most bytes of a line and of the data before it in its event, together."""
        self._limit = limit
        self._text: bytes | bytearray = b""  # data of the event so far
        self._partial = bytearray()  # a line that has not ended
        self._scanner: Scanner | None = None  # in place of the data, where that is too much
        self._long: bool | None = None  # in a line not kept: True when it is data
        self._after_cr = self._started = False

    @property
    def held(self) -> int:
        """Bytes held at this moment."""
        return len(self._text) + len(self._partial) + (self._scanner.held if self._scanner else 0)

    def feed(self, data: bytes) -> list[Event]:
        """The events that end in `data`."""
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and self._is_between(data):
            return [Event(data[6:-2])]  # one event, as nearly every engine sends them
        if self._after_cr and data:
            data = data[1:] if data[0] == _LF else data
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data[-1] == _CR
        lines = data.splitlines()
        rest = b"" if data[-1] in (_CR, _LF) else lines.pop()
        events = [event for line in lines if (event := self._line(line)) is not None]
        if rest:
            self._unfinished(rest)
        return events

    def _is_between(self, data: bytes) -> bool:
        """Whether nothing is held and `data`, which has LF as its last two bytes at most, is one event of a line."""
        if not self._started or self._text or self._partial or self._after_cr:
            return False
        if self._long is not None or self._scanner is not None or len(data) > self._limit:
            return False
        return data[-1] == _LF and b"\r" not in data

    def close(self) -> Event | None:
        """The last event when no empty line ended it: whether it is whole is for its reader to see."""
        if self._partial or self._long is not None:
            self._line(b"")
        return self._dispatch()

    def _line(self, line: bytes) -> Event | None:
        """A line, or the rest of one, that has ended."""
        if self._long is not None:
            self._scan(line)
            self._long = None
            return None
        if self._partial:
            line = bytes(self._partial) + line
            self._partial.clear()
        if not self._started:
            self._started, line = True, line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        value = _data(line)
        if value is not None:
            self._take(value, len(self._text) + len(line) > self._limit)
        return None

    def _take(self, value: bytes, too_large: bool) -> None:
        """One data line."""
        if too_large or self._scanner is not None:
            self._begin_scanned_line()
            self._scan(value)
        elif self._text:
            if isinstance(self._text, bytes):
                self._text = bytearray(self._text)
            self._text += b"\n" + value
        else:
            self._text = value  # most events have one line

    def _unfinished(self, piece: bytes) -> None:
        """The last bytes of a piece: a line that goes on."""
        if self._long is not None:
            self._scan(piece)
            return
        self._partial += piece
        if len(self._text) + len(self._partial) > self._limit:
            line = bytes(self._partial)
            value = _data(line if self._started else line.removeprefix(_BOM))
            self._started, self._long = True, value is not None
            self._partial = bytearray()
            if value is not None:
                self._begin_scanned_line()
                self._scan(value)

    def _begin_scanned_line(self) -> None:
        if self._scanner is None:
            self._scanner = Scanner(self._limit)
            self._scanner.feed(bytes(self._text))
            self._text = b""
        self._scanner.feed(b"\n")

    def _scan(self, piece: bytes) -> None:
        if self._scanner is not None and self._long is not False:
            self._scanner.feed(piece)

    def _dispatch(self) -> Event | None:
        text, scanner = self._text, self._scanner
        self._text, self._scanner = b"", None
        return Event(bytes(text), scanner) if text or scanner is not None else None


def _data(line: bytes) -> bytes | None:
    """The value of a data line; None for any other."""
    if line.startswith(b"data:"):
        return line[6:] if line[5:6] == b" " else line[5:]
    return None
