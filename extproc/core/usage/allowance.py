"""How much of a gateway's time responses may take to be read: a bucket of seconds that fills as time passes.

Nothing else of a gateway goes on while it reads a piece of a response, and a few kilobytes of gzip may hold megabytes
of what is slowest to read. So what a piece will take is reckoned from its bytes before it is read, and a piece for
which nothing is left is not: its response counts as `partial`, and passes on as it came.
"""

from typing import Final

#: Seconds of reading that may come at once: others wait no longer for it, however many responses come together.
BURST: Final = 0.025
#: Seconds of reading a second: half of the gateway's.
SHARE: Final = 0.5

#: Seconds for a byte, and beside it for each member, item and string of JSON, and for each line of events: the
#: slowest that was found on a virtual core of 2026, 3 MiB of `{},` and of `data: {}`, rounded up. A core half as fast
#: takes twice as long.
_BYTE: Final = 7e-9
_JSON: Final = {b'"': 1.2e-7, b"{": 4e-7, b"[": 4e-7, b",": 4e-7}
_LINE: Final = 1.6e-6
#: Lines in a piece of tens of KiB below which it may be of an event too large to be kept, which is scanned as JSON.
_FEW: Final = 8
#: Bytes of a piece that are read whatever is left: what streams send at a time, and a millisecond of the slowest.
SMALL: Final = 4 * 1024


def of_json(data: bytes | bytearray) -> float:
    """Seconds that it takes to scan so much JSON."""
    return len(data) * _BYTE + sum(data.count(sign) * seconds for sign, seconds in _JSON.items())


def of_events(data: bytes) -> float:
    """Seconds that it takes to read so many server-sent events."""
    lines = data.count(b"\n") + data.count(b"\r")
    return lines * _LINE + (of_json(data) if lines < _FEW else 2 * len(data) * _BYTE)


class Allowance:
    """What is left of it, in seconds: 0 to `BURST`."""

    __slots__ = ("_at", "left")

    def __init__(self) -> None:
        self.left = BURST
        self._at = 0.0

    def tick(self, now: float) -> None:
        """Time went by; `now` in seconds of a clock that never goes back."""
        passed, self._at = now - self._at, now
        if passed > 0:
            self.left = min(self.left + passed * SHARE, BURST)

    def take(self, seconds: float) -> bool:
        """Take so much, 0 and up; False when there isn't, and then nothing is taken."""
        if seconds > self.left:
            return False
        self.left -= seconds
        return True
