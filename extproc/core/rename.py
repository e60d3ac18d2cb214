"""Another value for a member of a body of JSON, such as its model, spliced into its bytes: all else stays.

Nothing is parsed and written anew, so numbers, order, spacing, escapes and members given twice stay. Of the member
itself given twice every one is replaced, whichever a reader takes (of more than `MOST` the last, which engines take).
Only the outermost object's members count. Where they stand in a large body is found out beside the event loop, by
whoever reads it (core/reading.py); here it is spliced alone.

Three ways to find where values end, since each is fast where another is slow. A large body is mostly a few long
strings: their ends are looked for with `bytes.find`, at memory's speed. Where there are too many of them, and in
small bodies, msgspec skips the values, at about a third of a nanosecond a byte. It tells one value a name, so a body
that gives a name twice is read by a regular expression, at some nanoseconds a byte.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
import orjson

_SPACE: Final = rb"[ \t\n\r]*+"
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBER = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_SCALAR = re.compile(rb"(?:" + _STRING + rb"|[^,}\]\" \t\n\r]++)", re.DOTALL)
_AFTER = re.compile(_SPACE + rb"([,}])")
#: From one bracket to the next, strings passed over.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+([\[\]{}])", re.DOTALL)
_STRUCTURE = re.compile(rb'["\[\]{}]')

#: Bodies of so many bytes are read by leaps, if that takes no more than one look in so many bytes: a look takes
#: about 0.4 us, in which msgspec skips 1 KiB.
_LARGE: Final = 256 * 2**10
_BYTES_A_LOOK: Final = 4096
#: Bytes looked at one by one before a leap.
_NEAR: Final = 4096
#: Longest run of backslashes that is counted.
_RUN: Final = 64
#: Bytes of a value that are compared at each end, where it is longer than twice that.
_COMPARED: Final = 2048
#: Most places of one member that are told: whoever gives one more often sends nothing an engine should rely on.
MOST: Final = 64
_BACKSLASH, _QUOTE = 0x5C, 0x22
_OPEN, _STRUCTURAL = b"[{", (b'"', b"[", b"]", b"{", b"}")


_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _OtherWayError(Exception):
    """It takes too many looks, or a name comes twice."""


#: A body in pieces, to be joined once.
Parts = tuple[bytes | memoryview, ...]
#: Where values begin and end, by the names of their members, in order.
Spots = dict[str, list[tuple[int, int]]]
#: From where to where a body is replaced, and with what.
Edit = tuple[int, int, bytes]


def renamed(body: bytes, name: str) -> bytes:
    """The body with `name` as its model; the same bytes where it names none. As `spliced`, joined."""
    return b"".join(spliced(body, name) or (body,))


def spliced(body: bytes, name: str, spots: Spots | None = None) -> Parts | None:
    """The body with `name` as its model, in pieces that are views of it; None where it names none.

    Args:
        body: a JSON object that a parser has accepted; what comes of anything else is undefined.
        name: put in as JSON.
        spots: what `places` says of the body, where it was asked before.
    """
    found = (places(body, ("model",)) if spots is None else spots)["model"]
    return edited(body, with_value(found, orjson.dumps(name))) if found else None


def with_value(found: Iterable[tuple[int, int]], value: bytes) -> list[Edit]:
    """`value` at each of the places."""
    return [(start, end, value) for start, end in found]


def edited(body: bytes, edits: Iterable[Edit]) -> Parts:
    """The body in pieces that are views of it, with these edits, of which no two overlap."""
    view, at = memoryview(body), 0
    parts: list[bytes | memoryview] = []
    for start, end, value in sorted(edits, key=lambda edit: edit[0]):
        parts += [view[at:start], value]
        at = end
    return (*parts, view[at:])


def places(body: bytes, members: Collection[str]) -> Spots:
    """Where the values of the outermost object's members of these names stand: of each name the last `MOST`.

    `body`: a JSON object that a parser has accepted; what comes of anything else is undefined.
    """
    ways = (_by_leaps, _by_lengths) if len(body) >= _LARGE else (_by_lengths,)
    for way in ways:
        try:
            return way(body, members)
        except _OtherWayError:
            continue
    return _members(body, members, lambda _key, at: _end(body, at))


def _by_leaps(body: bytes, members: Collection[str]) -> Spots:
    leaps = _Leaps(body)
    return _members(body, members, lambda _key, at: leaps.end(at))


def _by_lengths(body: bytes, members: Collection[str]) -> Spots:
    """By each value's length, as msgspec skips it. What stands there must be that value, or a name came twice."""
    try:
        values = {key: memoryview(raw) for key, raw in _RAW.decode(body).items()}
    except (
        msgspec.DecodeError
    ) as error:  # it takes a little less than orjson, such as numbers out of all bounds
        raise _OtherWayError from error

    def end_of(key: bytes, at: int) -> int:
        value = values.pop(_text(key), None)
        if value is None:
            raise _OtherWayError
        end = at + value.nbytes
        if not _is_there(body, at, end, value):
            raise _OtherWayError
        return end

    found = _members(body, members, end_of)
    if values:
        raise _OtherWayError
    return found


def _is_there(body: bytes, at: int, end: int, value: memoryview) -> bool:
    """Whether a value stands there. Of a long one only the ends are compared: who crafts another spoils their own."""
    if end - at <= 2 * _COMPARED:
        return body[at:end] == value
    return (
        body[at : at + _COMPARED] == value[:_COMPARED] and body[end - _COMPARED : end] == value[-_COMPARED:]
    )


def _members(body: bytes, names: Collection[str], end_of: Callable[[bytes, int], int]) -> Spots:
    """Where the values of members of these names are; `end_of` tells where a value, which begins there, ends."""
    found: dict[str, deque[tuple[int, int]]] = {name: deque(maxlen=MOST) for name in names}
    plain = {f'"{name}"'.encode(): name for name in names}
    at = body.index(b"{") + 1
    while (member := _MEMBER.match(body, at)) is not None:  # none in an empty object
        key, start = member[1], member.end()
        end = end_of(key, start)
        name = _text(key) if b"\\" in key else plain.get(key)
        if name in found:
            found[name].append((start, end))
        after = _AFTER.match(body, end)
        if after is None or after[1] == b"}":
            break
        at = after.end()
    return {name: list(spots) for name, spots in found.items()}


def _text(key: bytes) -> str:
    """A name, with what it escapes. The standard library takes halves of surrogate pairs too."""
    text: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
    return text


def _end(body: bytes, at: int) -> int:
    """Where the value that begins at `at` ends."""
    if body[at] not in _OPEN:
        return _scalar_end(body, at)
    depth = 0
    for bracket in _BRACKET.finditer(body, at):
        depth += 1 if bracket[1] in _OPEN else -1
        if not depth:
            return bracket.end()
    return len(body)


def _scalar_end(body: bytes, at: int) -> int:
    scalar = _SCALAR.match(body, at)
    return scalar.end() if scalar is not None else len(body)


class _Leaps:
    """Finds ends of values by leaps from quote to bracket; raises `_OtherWayError` for too many."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._looks = len(body) // _BYTES_A_LOOK

    def end(self, at: int) -> int:
        """Where the value that begins at `at` ends."""
        body, depth = self._body, 0
        if body[at] == _QUOTE:
            return self._string_end(at)
        if body[at] not in _OPEN:
            return _scalar_end(body, at)
        while True:
            if body[at] == _QUOTE:
                at = self._string_end(at)
            else:
                depth += 1 if body[at] in _OPEN else -1
                at += 1
                if not depth:
                    return at
            at = self._next(at)

    def _next(self, at: int) -> int:
        """The next quote or bracket."""
        self._look()
        near = _STRUCTURE.search(self._body, at, at + _NEAR)
        if near is not None:
            return near.start()
        found = [self._body.find(char, at) for char in _STRUCTURAL]
        return min((place for place in found if place >= 0), default=len(self._body) - 1)

    def _string_end(self, at: int) -> int:
        """Where the string whose quote stands at `at` ends: at the next quote with an even number of backslashes."""
        body = self._body
        while True:
            self._look()
            start, at = at + 1, body.find(b'"', at + 1)
            if body[at - 1] != _BACKSLASH or at == start:
                return at + 1
            run = body[max(start, at - _RUN) : at]
            slashes = len(run) - len(run.rstrip(b"\\"))
            if slashes == _RUN:
                raise _OtherWayError
            if slashes % 2 == 0:
                return at + 1

    def _look(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            raise _OtherWayError
