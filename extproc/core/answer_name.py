"""The model's name in an answer made the one that the client asked by, while the answer passes by in pieces.

Only the value's bytes change, and nothing is held back: what comes goes on at once, wherever it was cut, so that an
answer which ends anywhere, by trailers too, is as whole as it came. Replaced is the first `model` that is a text, of
the outermost object or of a `response` or `message` right within it (OpenAI's Responses and Anthropic's Messages), in
a JSON body and in each server-sent event, over however many lines of data its JSON goes. A byte order mark before it
all is passed over.

A stream's events mostly begin alike up to that name: where one begins as another before it did, nothing is read.
"""

import json
import re
from collections.abc import Callable
from typing import Final

import orjson

_MODEL: Final = "model"
#: Objects right within the outermost whose model counts too.
_WITHIN: Final = frozenset({"response", "message"})
#: Longest name of a member that is looked at, bytes as written: all letters of `response` as \\u escapes.
_LONGEST_KEY: Final = 64
#: Looks at a document, of 0.3 us each, after which it goes on as it is.
_MOST_LOOKS: Final = 20_000
#: Longest beginning of lines that is remembered, bytes.
_LONGEST_BEGINNING: Final = 1024

_SPACE = re.compile(rb"[ \t\n\r]*+")
#: Before a document, of which a byte order mark may come in pieces too.
_BEFORE = re.compile(rb"[ \t\n\r\xef\xbb\xbf]*+")
_MARK = re.compile(rb"[\xef\xbb\xbf]*+")
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_IN_SCALAR = re.compile(rb"[^,}\]]*+")
#: Up to the next bracket, texts that are whole passed over; or to a text that is not.
_IN_VALUE = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_LINE_END = re.compile(rb"[\r\n]")
_DATA: Final = b"data:"
_BACKSLASH: Final = 0x5C
#: What JSON has before an object that is not its outermost.
_GOES_ON: Final = (b",", b":", b"[")
#: Of a line, so many last bytes are looked at.
_LONGEST_END: Final = 16
_FEED: Final = 0x0A
_RETURN: Final = 0x0D


class _Document:
    """One JSON document that passes by, in pieces.

    `_next` reads what is expected next, from a place in the piece on, and returns where it got to; None once all
    else goes on as it is.

    Attributes:
        named: where the name that was replaced in the last piece ended; below 0 for none that began and ended there.
    """

    __slots__ = ("_cut", "_deep", "_escaped", "_key", "_level", "_looks", "_name", "_next", "_out", "named")

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._next: Callable[[bytes, int], int] | None = self._start
        self._level = self._deep = self._looks = 0
        self._escaped = False
        self._key = bytearray()
        self._out: list[bytes] = []
        self._cut = 0  # from where on the piece in hand has not gone on yet
        self.named = -1

    @property
    def over(self) -> bool:
        """Whether all that is still to come goes on as it is."""
        return self._next is None

    @property
    def in_text(self) -> bool:
        """Whether a text began that has not ended."""
        return self._next in (self._in_key, self._in_text, self._drop)

    def feed(self, data: bytes) -> bytes:
        """The next piece as it goes on: the very same where nothing of it changes."""
        at, self._cut, self.named = 0, 0, -1
        self._out = []
        while at < len(data) and self._next is not None:
            self._looks += 1
            if self._looks > _MOST_LOOKS and self._next != self._drop:
                self._next = None
                break
            at = self._next(data, at)
        if self._next == self._drop:
            self._cut = len(data)
        return b"".join((*self._out, data[self._cut :])) if self._out or self._cut else data

    def _start(self, data: bytes, at: int) -> int:
        at = _BEFORE.match(data, at).end()  # type: ignore[union-attr]
        if at < len(data):
            self._level, self._next = 1, self._member if data[at : at + 1] == b"{" else None
        return at + 1

    def _member(self, data: bytes, at: int) -> int:
        """A member's name, or the object's end."""
        at = _past_space(data, at)
        letter = data[at : at + 1]
        if letter == b'"':
            self._key.clear()
            self._escaped = False
            self._next = self._in_key
        elif letter == b"}":
            self._up()
        elif letter not in (b"", b","):
            self._next = None
        return at + 1

    def _in_key(self, data: bytes, at: int) -> int:
        end = self._string_end(data, at)
        if len(self._key) <= _LONGEST_KEY:
            self._key += data[at : min(end, at + _LONGEST_KEY + 1)]
        if end < len(data):
            self._next = self._colon
        return end + 1

    def _colon(self, data: bytes, at: int) -> int:
        at = _past_space(data, at)
        if at < len(data):
            self._next = self._value if data[at : at + 1] == b":" else None
        return at + 1

    def _value(self, data: bytes, at: int) -> int:
        at = _past_space(data, at)
        letter = data[at : at + 1]
        if not letter:
            return at
        name = self._text() if letter in (b'"', b"{") else ""
        if letter == b'"':
            self._escaped = False
            self._next = self._in_text
            if name == _MODEL:
                self._out += [data[self._cut : at], self._name]
                self._next = self._drop
        elif letter == b"{" and self._level == 1 and name in _WITHIN:
            self._level, self._next = 2, self._member
        elif letter in (b"{", b"["):
            self._deep, self._next = 1, self._in_value
        else:
            self._next = self._in_scalar
        return at + 1

    def _drop(self, data: bytes, at: int) -> int:
        """The name itself: it does not go on, and with its end all is done."""
        end = self._string_end(data, at)
        if end < len(data):
            self._next, self._cut = None, end + 1
            self.named = end + 1 if self._out else -1
        return end + 1

    def _in_text(self, data: bytes, at: int) -> int:
        end = self._string_end(data, at)
        if end < len(data):
            self._next = self._in_value if self._deep else self._member
        return end + 1

    def _in_scalar(self, data: bytes, at: int) -> int:
        end = _IN_SCALAR.match(data, at).end()  # type: ignore[union-attr]
        if end < len(data):
            self._next = self._member
        return end

    def _in_value(self, data: bytes, at: int) -> int:
        """Within an array or object of no interest."""
        at = _IN_VALUE.match(data, at).end()  # type: ignore[union-attr]
        letter = data[at : at + 1]
        if letter == b'"':  # its end is in another piece
            self._escaped = False
            self._next = self._in_text
        elif letter:
            self._deep += 1 if letter in (b"[", b"{") else -1
            if not self._deep:
                self._next = self._member
        return at + 1

    def _up(self) -> None:
        """An object of interest ended."""
        self._level -= 1
        self._next = self._member if self._level else None

    def _string_end(self, data: bytes, at: int) -> int:
        """Where the quote stands that ends the text; the piece's end where that comes later."""
        if self._escaped:
            self._escaped = False
            at += 1
        end = _IN_STRING.match(data, at).end()  # type: ignore[union-attr]
        if data[end : end + 1] != b'"':
            self._escaped = end < len(data)  # a backslash stands last
            return len(data)
        return end

    def _text(self) -> str:
        """The name of the member in hand; "" for one that is too long to matter."""
        if len(self._key) > _LONGEST_KEY:
            return ""
        try:
            text = json.loads(b'"%s"' % bytes(self._key)) if _BACKSLASH in self._key else self._key.decode()
        except ValueError:
            return ""
        return str(text)


def _past_space(data: bytes, at: int) -> int:
    return _SPACE.match(data, at).end()  # type: ignore[union-attr]


class AnswerName:
    """Fed the pieces of one answer.

    Args:
        name: by which the client asked.
        events: whether the answer is server-sent events; else it is JSON.
    """

    __slots__ = (
        "_after_return",
        "_beginning",
        "_document",
        "_events",
        "_is_first",
        "_is_further",
        "_last",
        "_line",
        "_name",
        "_nothing_came",
        "_over",
        "_replaced",
    )

    def __init__(self, name: str, *, events: bool) -> None:
        self._name = orjson.dumps(name)
        self._document: _Document | None = None if events else _Document(self._name)
        self._events = events
        self._over = False  # whether the rest of the event in hand goes on as it is
        self._is_first = False  # whether a document begins in the line in hand
        self._is_further = False  # whether that line is data after other data, and not begun yet
        self._last = b""  # of the event's data so far, but for space
        self._nothing_came, self._after_return = True, False
        self._line = bytearray()  # how the line in hand begins, until that tells what it is
        self._beginning = self._replaced = b""

    def feed(self, data: bytes) -> bytes:
        """The next piece as it goes on: the very same where nothing of it changes."""
        if not self._events:
            assert self._document is not None
            return self._document.feed(data)
        out: list[bytes] = []
        at, cut = self._past_mark(data) if self._nothing_came else 0, 0
        while at < len(data):
            if not self._line and self._beginning and self._begins_alike(data, at):
                out += [data[cut:at], self._replaced]
                at = cut = at + len(self._beginning)
                self._line += _DATA
                self._document, self._over = None, True
            end, after = _line_of(data, at)
            inside = self._past_head(data, at, end)
            if inside < end and self._line == _DATA:
                changed = self._of_data(data, at, inside, end)
                if changed is not None:
                    out += [data[cut:inside], changed]
                    cut = end
            if after > end:
                self._end_line(data[end])
            at = after
        return b"".join((*out, data[cut:])) if cut else data

    def _past_mark(self, data: bytes) -> int:
        """Where in a piece anything but the byte order mark begins that may stand before all events."""
        at = _MARK.match(data).end()  # type: ignore[union-attr]
        self._nothing_came = at == len(data)
        return at

    def _begins_alike(self, data: bytes, at: int) -> bool:
        """Whether a document begins here as one did before."""
        return self._last not in _GOES_ON and data.startswith(self._beginning, at)

    def _end_line(self, letter: int) -> None:
        """A line is over, by this letter; with an empty one, the event."""
        if self._line:
            if self._document is not None and self._document.in_text:
                self._document, self._over = None, True  # no text of JSON goes on in another line
        elif letter != _FEED or not self._after_return:  # else it is the second half of the line end before
            self._document, self._over, self._last = None, False, b""
        self._is_first = self._is_further = False
        self._after_return = letter == _RETURN
        self._line.clear()

    def _past_head(self, data: bytes, at: int, end: int) -> int:
        """Where in the line what follows its `data:` begins; another line's end for what is no data."""
        if len(self._line) == len(_DATA):
            return at
        inside = min(at + len(_DATA) - len(self._line), end)
        self._line += data[at:inside]
        if self._line == _DATA:
            self._is_further = self._over or self._document is not None
            if not self._is_further:
                self._begin()
        return inside

    def _begin(self) -> None:
        self._document, self._over, self._is_first = _Document(self._name), False, True

    def _of_data(self, data: bytes, at: int, inside: int, end: int) -> bytes | None:
        """This part of a line of data as it goes on; None where it is as it came."""
        if self._is_further and (found := data[inside:end].lstrip()[:1]):
            self._is_further = False
            if found == b"{" and self._last not in _GOES_ON:
                self._begin()  # some servers leave out the empty line between events
        changed = self._of_document(data, at, inside, end) if self._document is not None else None
        last = data[end - 1 : end]
        if last.isspace():
            last = data[max(inside, end - _LONGEST_END) : end].rstrip()[-1:] or self._last
        self._last = last
        return changed

    def _of_document(self, data: bytes, at: int, inside: int, end: int) -> bytes | None:
        """This part of a line of data as it goes on; None where it is as it came."""
        document, piece = self._document, data[inside:end]
        assert document is not None
        changed = document.feed(piece)
        if document.named >= 0 and self._is_first and inside == at + len(_DATA):
            self._learn(data[at : inside + document.named])
        if document.over:
            self._document, self._over = None, True
        return None if changed is piece else changed

    def _learn(self, beginning: bytes) -> None:
        """How a line begins, up to the end of the name in it."""
        if len(beginning) <= _LONGEST_BEGINNING:
            self._beginning = beginning
            self._replaced = _DATA + _Document(self._name).feed(beginning[len(_DATA) :])


def _line_of(data: bytes, at: int) -> tuple[int, int]:
    """Where a line ends in a piece, and where the next begins: at the same place where its end is yet to come."""
    found = _LINE_END.search(data, at)
    return (len(data), len(data)) if found is None else (found.start(), found.end())
