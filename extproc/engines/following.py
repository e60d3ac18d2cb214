"""What was read of a replica's last body, so that of the next one only what is wanted is looked at.

Two answers of an engine have the same lines at nearly the same places, half a second apart: values differ, a few
by a digit in length. So each wanted line is looked for where it stood last time, as far behind the one before it.
Where it is off by fewer bytes than the shortest wanted line has, no line came between them; by more, what is between
them is searched. A line that is not there has the whole body read as if it were the first.

What could stay unseen: a new line for which others between the same two became shorter by as much at the same moment,
and one that had no value and was none so far. So all is read anew every `_ANEW` bodies.
"""

import re
from typing import TYPE_CHECKING

from extproc.core.sample import Sample
from extproc.engines.exposition import MAX_LINE, Reader, Reading, split_line

if TYPE_CHECKING:
    from extproc.engines import Engine

#: Bodies after which one is read as if it were the first: half a minute at two a second.
_ANEW = 64
#: Most bytes of wanted lines that are kept of one replica; vLLM's have 3.5 KB, and 1.5 KB more for each rank.
_MOST_KEPT = 2**16
#: Most bytes by which a line may stand elsewhere than the one before it says.
_MOST_SHIFT = 512
#: Values that are read here; of any other the whole body is read, which knows what to make of it.
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_LONGEST_NUMBER = 40


class Last:
    """One replica's last body. Keep one for each replica, and a new one where another engine may have its place."""

    __slots__ = ("_lines", "_sample")

    def __init__(self) -> None:
        self._lines: dict[Reader, _Lines] = {}
        self._sample: Sample | None = None

    def parse(self, engine: "Engine", body: bytes, at: float) -> Sample:
        """What `engine.parse` makes of a body; where no wanted line changed it is the last sample, told at `at`."""
        sample, changed = self._sample, not self._lines
        text = _between_feeds(body)
        for lines in self._lines.values():
            changed = lines.follow(text) or changed
        if changed or sample is None:
            self._sample = None  # until it is made: a reader may fail
            self._sample = sample = engine.parse(body, at, self)
            return sample
        return sample.again(at)

    def read(self, reader: Reader, body: bytes) -> Reading:
        """The wanted series of a body; valid until the next one."""
        lines = self._lines.get(reader)
        if lines is None:
            lines = self._lines[reader] = _Lines(reader)
        return lines.read(body)


class _Lines:
    """The lines that one reader wants, as they stood in the last body.

    Attributes (by line, in the order of the body):
        lines: each from the line feed before it to the one behind it.
        heads: bytes of it before its value.
        gaps: bytes between the end of the one before it (or the beginning) and it.
        names: its sample name, and which series of that name it is.
    """

    __slots__ = (
        "_drift",
        "_left",
        "_reader",
        "_reading",
        "_ready",
        "_tail",
        "gaps",
        "heads",
        "lines",
        "names",
    )

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._drift = reader.shortest + 2  # a line has a line feed, a blank and a value besides
        self._reading: Reading | None = None
        self._ready = False  # whether that is of the body at hand
        self._left = 0  # bodies until one is read anew
        self._forget()

    def _forget(self) -> None:
        self._tail = 0
        self.lines: list[bytes] = []
        self.heads: list[int] = []
        self.gaps: list[int] = []
        self.names: list[tuple[str, int]] = []

    def follow(self, text: bytes) -> bool:
        """Look for the lines in the next body, with a line feed at either end; whether it tells anything else."""
        self._left -= 1
        changed = None
        if self._reading is not None and self.lines and self._left > 0:
            changed = self._walk(text, self._reading)
            if changed is None:
                self._left = 0
        self._ready = changed is not None
        return changed is not False

    def read(self, body: bytes) -> Reading:
        """The series of a body: what was found by `follow`, else all of it is read."""
        if not self._ready or self._reading is None:
            self._ready, self._reading = True, self._reader.read(body)
            if self._left <= 0:  # a body that can't be followed isn't learned each time
                self._left = _ANEW
                self._learn(body)
        return self._reading

    def _walk(self, text: bytes, reading: Reading) -> bool | None:
        """Whether a value changed; None where a line is not where it should be, or has no plain number."""
        end, changed = 0, False
        for index, line in enumerate(self.lines):
            at = end + self.gaps[index]
            if text.startswith(line, at):
                end = at + len(line) - 1
                continue
            head = line[: self.heads[index]]
            if not text.startswith(head, at):
                at = self._shifted(text, head, end, at)
                if at < 0:
                    return None
                self.gaps[index] = at - end
            length = self._changed(index, text, at, reading)
            if not length:
                return None
            changed, end = True, at + length - 1
        tail, self._tail = self._tail, len(text) - end
        return changed if self._is_empty(text, end, len(text), self._tail - tail) else None

    def _shifted(self, text: bytes, head: bytes, end: int, due: int) -> int:
        """Where a line begins that is not where it is due, behind the `end` of the one before it; -1 for nowhere."""
        at = text.find(head, max(end, due - _MOST_SHIFT), due + _MOST_SHIFT + len(head))
        return at if at >= 0 and self._is_empty(text, end, at, at - due) else -1

    def _is_empty(self, text: bytes, begin: int, end: int, shift: int) -> bool:
        """Whether no wanted line stands between two, where the second is `shift` bytes from where it was due."""
        return abs(shift) <= self._drift or self._reader.wants_none(text, begin, end)

    def _changed(self, index: int, text: bytes, at: int, reading: Reading) -> int:
        """Take in a line's value, which may be a new one; bytes of the line, 0 where that is no plain number."""
        begin = at + self.heads[index]
        end = text.find(b"\n", begin, begin + _LONGEST_NUMBER)
        value = text[begin:end] if end > 0 else b""
        if not _NUMBER.fullmatch(value):
            return 0
        name, place = self.names[index]
        reading.change(name, place, float(value))
        self.lines[index] = text[at : end + 1]
        return end + 1 - at

    def _learn(self, body: bytes) -> None:
        """Note where the lines stand; nothing where one of them has more than a plain number behind its labels."""
        self._forget()
        text = _between_feeds(body)
        end = kept = 0
        counts: dict[str, int] = {}
        for name, at, rest in self._reader.places(text):
            head = split_line(rest)
            kept += len(rest)
            if head is None or len(rest) >= MAX_LINE or kept > _MOST_KEPT:
                self._forget()
                return
            begin = len(name) + 1 + head
            line = text[at : at + 1 + len(name) + len(rest) + 1]
            place = counts[name] = counts.get(name, -1) + 1
            self.lines.append(line)
            self.heads.append(begin)
            self.gaps.append(at - end)
            self.names.append((name, place))
            end = at + len(line) - 1
        self._tail = len(text) - end


def _between_feeds(body: bytes) -> bytes:
    """A body in which a line feed stands before and behind every line that may be wanted."""
    whole = body.startswith(b"#") and body.endswith(b"\n")  # as large ones are: these aren't copied
    return body if whole else b"".join((b"\n", body, b"\n"))
