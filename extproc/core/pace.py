"""How many lessons of one kind are taken a second: hundreds that say the same are worth no more than some.

What is learned of ratios and lengths follows the last 200 to 256 lessons. Where more than some tens of them come a
second, to take the first of each `SPAN` follows changes within seconds as well, and costs as much however many come.
"""

from collections.abc import Hashable
from typing import Final

#: Seconds between two lessons of one kind, and those that are taken at once before that holds: a start is quick.
SPAN: Final = 0.02
AT_ONCE: Final = 64
#: Kinds kept; when there are more, all begin anew, which costs a start's lessons and nothing else.
_MOST: Final = 1024


class Pace:
    """Which lessons are due."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        #: By kind: when the next is due, and how many were taken up to `AT_ONCE`.
        self._known: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        """Kinds kept."""
        return len(self._known)

    def due(self, kind: Hashable, now: float) -> bool:
        """Whether a lesson of this kind is to be taken now; one that is counts. `now` in seconds."""
        at, taken = self._known.get(kind, (now, 0))
        if now < at and taken >= AT_ONCE:
            return False
        if len(self._known) >= _MOST and kind not in self._known:
            self._known.clear()
        self._known[kind] = now + SPAN, min(taken + 1, AT_ONCE)
        return True
