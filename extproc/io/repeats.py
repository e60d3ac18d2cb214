"""Log lines of one kind are told a few times; of the rest there is one line now and then, which says how many.

Ten thousand replicas that fail at once would else write ten thousand lines each round, and hide what matters. It
works on warnings and errors of every part of the program, and on what else repeats, in one place: what a line's kind
is, its text says, as all else of it (replica, pool, reason) is in fields.
"""

import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

#: Lines of one kind that are told in a period, while that kind is calm. As many replicas as fit a screen.
_FIRST: Final = 16
#: Seconds of a period. What is left out is told that late at most.
_PERIOD: Final = 30.0
#: Most kinds that are told apart. Texts are written in the code, but for a few that hold a fault's words.
_KINDS: Final = 256
#: The kind of all further ones.
_OTHERS: Final = "lines of further kinds"
#: Levels that are bounded. Lines of lower ones are either rare or wanted for each request (`log.requests`) ...
_BOUNDED: Final = frozenset({"warning", "error", "critical"})
#: ... but for these, which come for each replica, once a second as long as something lasts.
VOIDED: Final = "prompts were never computed where they were sent"
_REPEATED: Final = frozenset({VOIDED})

SUMMARY: Final = "lines were left out"


@dataclass(slots=True)
class _Kind:
    """What became of lines of one kind in the period under way."""

    since: float
    told: int = 0
    left: int = 0
    calm: bool = True


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Lines of a kind that were not told: how many, in how many seconds."""

    kind: str
    count: int
    seconds: float


class Repeats:
    """Decides which lines are told. Pure: times, in seconds of any clock that never goes back, are arguments.

    Args:
        first: lines of one kind that are told in a period; in one that follows a period with more, a single one.
        period: seconds.
        kinds: most kinds told apart; further ones count as one.
    """

    def __init__(self, first: int = _FIRST, period: float = _PERIOD, kinds: int = _KINDS) -> None:
        self.period = period
        self._first, self._most = first, kinds
        self._kinds: dict[str, _Kind] = {}

    def tells(self, kind: str, now: float) -> bool:
        """Whether a line of this kind is told; if not, it is counted until `due` gives the count."""
        seen = self._of(kind, now)
        if seen.told < (self._first if seen.calm else 1):
            seen.told += 1
            return True
        seen.left += 1
        return False

    def due(self, now: float, everything: bool = False) -> list[LeftOut]:
        """What was left out in periods that are over, each line once; with `everything` in those under way too."""
        over = [
            (kind, seen)
            for kind, seen in self._kinds.items()
            if seen.left and (everything or self._is_over(seen, now))
        ]
        for kind, _ in over:
            self._kinds[kind] = _Kind(now, calm=False)
        return [LeftOut(kind, seen.left, now - seen.since) for kind, seen in over]

    @property
    def pending(self) -> bool:
        """Whether anything was left out and not told yet."""
        return any(seen.left for seen in self._kinds.values())

    def _of(self, kind: str, now: float) -> _Kind:
        """The period of a kind that is under way; one that is over, with nothing to tell, gives way to a new one."""
        if kind not in self._kinds and len(self._kinds) >= self._most:
            self._forget(now)
            kind = kind if len(self._kinds) < self._most else _OTHERS
        seen = self._kinds.get(kind)
        if seen is None or (not seen.left and self._is_over(seen, now)):
            seen = self._kinds[kind] = _Kind(now)
        return seen

    def _forget(self, now: float) -> None:
        for kind in [
            kind for kind, seen in self._kinds.items() if not seen.left and self._is_over(seen, now)
        ]:
            del self._kinds[kind]

    def _is_over(self, seen: _Kind, now: float) -> bool:
        return now - seen.since >= self.period


class BoundedRepeats:
    """A processor of structlog that drops what `Repeats` does not tell, and tells the counts.

    Counts come within two periods, from a thread that lives only while there is something to tell.

    Args:
        tell: takes what was left out.
        repeats: the rule.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        tell: Callable[[LeftOut], None] | None = None,
        repeats: Repeats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell or _told
        self._repeats = repeats or Repeats()
        self._clock = clock
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def __call__(self, _logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The line, to be written. Raises structlog.DropEvent for one that is only counted."""
        kind = str(line.get("event", ""))
        if (method not in _BOUNDED and kind not in _REPEATED) or kind == SUMMARY:
            return line
        with self._lock:
            if self._repeats.tells(kind, self._clock()):
                return line
            self._wait()
        raise structlog.DropEvent

    def flush(self) -> None:
        """Tell all that was left out until now, as the process ends."""
        self._say(everything=True)

    def _wait(self) -> None:
        if self._timer is None and self._repeats.pending:
            self._timer = threading.Timer(self._repeats.period, self._look)
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        with self._lock:
            self._timer = None
        self._say()
        with self._lock:
            self._wait()

    def _say(self, everything: bool = False) -> None:
        with self._lock:
            found = self._repeats.due(self._clock(), everything)
        for one in found:
            self._tell(one)


def _told(left: LeftOut) -> None:
    structlog.get_logger("kvsteer.logs").warning(
        SUMMARY, like=left.kind, count=left.count, seconds=round(left.seconds, 1)
    )
