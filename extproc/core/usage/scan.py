"""The members of a JSON object that hold usage, out of a text too large to be kept.

Only brackets, quotes and the commas of the outermost level are looked at; everything between them is passed over
by regular expressions. Nothing is given unless the text is one object whose brackets and quotes match to its end.
"""

import re
from typing import Final

import orjson

#: Members of the outermost object that are kept, when they fit.
WANTED: Final = frozenset(
    {b"usage", b"meta_info", b"details", b"timings", b"error", b"type", b"status", b"index"}
)
#: The member whose own members are kept too: events of the Responses API hold their usage there.
INSIDE: Final = b"response"
#: The member whose objects are counted: the alternatives of OpenAI's APIs.
_COUNTED = b"choices"

#: Longest name of a member that is looked at, bytes; "meta_info" in \u escapes has 54.
_LONGEST_NAME = 64
#: Deepest nesting followed. What engines answer has some ten levels.
_DEEPEST = 256

_OUTSIDE = re.compile(rb'["{}\[\],]')
#: The same below the levels of interest: whole strings and no commas, so that token ids and texts pass quickly.
_BELOW = re.compile(rb'[{}\[\]]|"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

_CLOSER = {ord("{"): ord("}"), ord("["): ord("]")}
_QUOTE, _COMMA, _OBJECT = b'",{'


class Scanner:
    """Fed a JSON text in pieces of any size; holds its limit of bytes and about 400 more at most."""

    __slots__ = (
        "_broken",
        "_carry",
        "_closers",
        "_done",
        "_found",
        "_kept",
        "_key",
        "_level",
        "_limit",
        "_lost",
        "_mark",
        "_name",
        "_objects",
        "_open",
        "_string",
    )

    def __init__(self, limit: int) -> None:
        """`limit`: most bytes of kept values at any time."""
        self._limit = limit
        self._carry = b""  # a backslash at the end of a piece: what it escapes is in the next
        self._closers = bytearray()  # what closes each open bracket
        self._level = 1  # how many brackets are open where names are looked at
        self._string = False  # within a string
        self._name = False  # the next string, or the one it is in, is a name
        self._key = b""
        self._open: bytearray | None = None  # the name or value being kept
        self._mark = 0  # where in the present piece that goes on
        self._found: dict[tuple[int, bytes], bytes] = {}
        self._kept = 0  # bytes of it
        self._objects = 0
        self._done = self._broken = self._lost = False

    @property
    def held(self) -> int:
        """Bytes held at this moment."""
        return self._kept + len(self._open or b"") + len(self._closers) + len(self._carry) + len(self._key)

    @property
    def choices(self) -> int:
        """How many objects the object's "choices" hold."""
        return self._objects

    def feed(self, data: bytes) -> None:
        """Take in the next piece."""
        data = self._without_half_escape(data)
        at, size, self._mark = 0, len(data), 0
        while at < size and not self._broken:
            if self._string:
                at = self._through_string(data, at)
            elif len(self._closers) > self._level:
                at = self._below(data, at)
            else:
                at = self._outside(data, at)
        self._keep(data[self._mark :] if self._open is not None else b"")

    def members(self) -> dict[str, object] | None:
        """What was kept, with `INSIDE` as a dict of its own; None unless all of one object was read and fitted."""
        if self._broken or self._lost or not self._done:
            return None
        inner: dict[str, object] = {}
        outer: dict[str, object] = {INSIDE.decode(): inner}
        for (level, name), value in self._found.items():
            try:
                (outer if level == 1 else inner)[name.decode()] = orjson.loads(value[1:])
            except orjson.JSONDecodeError:
                return None
        return outer

    def _without_half_escape(self, data: bytes) -> bytes:
        """The piece after what the last one left, less a last backslash that escapes something yet to come."""
        data = self._carry + data
        half = (len(data) - len(data.rstrip(b"\\"))) % 2
        self._carry = b"\\" * half
        return data[: len(data) - half]

    def _through_string(self, data: bytes, at: int) -> int:
        """On from within a string: past its end, or to the end of the piece."""
        found = _INSIDE_STRING.match(data, at)
        at = found.end() if found else at
        if at == len(data):
            return at
        self._string = False
        if self._name:
            self._named(data, at)
        return at + 1

    def _named(self, data: bytes, at: int) -> None:
        """A name ends at `at`: keep the value that follows if it is wanted."""
        self._keep(data[self._mark : at])
        self._key, self._open, self._name = self._plain(bytes(self._open or b"")), None, False
        if self._key in WANTED:
            self._open, self._mark = bytearray(), at + 1

    def _plain(self, name: bytes) -> bytes:
        if b"\\" not in name:
            return name
        try:
            return str(orjson.loads(b'"%b"' % name)).encode()
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return b""

    def _below(self, data: bytes, at: int) -> int:
        """On through a value that is no level of interest: past its end, or to the end of the piece."""
        closers = self._closers
        for found in _BELOW.finditer(data, at):
            mark = data[found.start()]
            if mark == _QUOTE:
                self._string = found.start(1) == found.end(1)  # it goes on in the next piece
            elif mark in _CLOSER:
                self._push(mark)
                if self._broken:
                    break
            elif closers.pop() != mark:
                self._broken = True
                break
            elif len(closers) == self._level:
                return found.end()
        return len(data)

    def _outside(self, data: bytes, at: int) -> int:
        """On from a level of interest: past its next mark, or to the end of the piece."""
        found = _OUTSIDE.search(data, at)
        end = found.start() if found else len(data)
        if not self._closers and (data[at:end].strip() or self._done or (found and data[end] != _OBJECT)):
            self._broken = self._broken or not self._done or bool(data[at:].strip())
            return len(data)
        if found:
            self._marked(data, end)
        return end + 1

    def _marked(self, data: bytes, at: int) -> None:
        mark = data[at]
        if mark == _QUOTE:
            self._string = True
            if self._name:
                self._open, self._mark = bytearray(), at + 1
        elif mark in _CLOSER:
            self._opened(mark)
        else:
            self._value_ended(data, at)
            self._name = mark == _COMMA
            if mark != _COMMA:
                self._closed(mark)

    def _opened(self, mark: int) -> None:
        depth = len(self._closers)
        self._push(mark)
        if mark == _OBJECT and depth == 1 and self._key == INSIDE:
            self._level = 2
            self._found = {key: value for key, value in self._found.items() if key[0] == 1}
            self._kept = sum(map(len, self._found.values()))
        self._name = len(self._closers) == self._level

    def _push(self, mark: int) -> None:
        if mark == _OBJECT and len(self._closers) == 2 and self._level == 1 and self._key == _COUNTED:
            self._objects += 1
        self._closers.append(_CLOSER[mark])
        self._broken = len(self._closers) > _DEEPEST

    def _closed(self, mark: int) -> None:
        self._broken = self._closers.pop() != mark
        self._key, self._level = b"", 1
        self._done = not self._closers

    def _value_ended(self, data: bytes, at: int) -> None:
        if self._open is None:
            return
        self._keep(data[self._mark : at])
        if self._open is not None:
            place, value = (self._level, self._key), bytes(self._open).strip()
            self._broken = not value.startswith(b":")
            self._kept += len(value) - len(self._found.get(place, b""))
            self._found[place] = value
        self._open = None

    def _keep(self, piece: bytes) -> None:
        """Put `piece` to the name or value that is being kept, unless it grows too large."""
        if self._open is None:
            return
        if self._name:
            fits = len(self._open) + len(piece) <= _LONGEST_NAME
        else:
            fits = self._kept + len(self._open) + len(piece) <= self._limit
            self._lost = self._lost or not fits
        if fits:
            self._open += piece
        else:
            self._open = None
