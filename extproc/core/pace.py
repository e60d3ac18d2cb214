"""How many lessons of one kind are taken a second: hundreds that say the same are worth no more than some.

What is learned of ratios and lengths follows the last 200 to 256 lessons. Where more than some tens of them come a
second, a share of them follows changes within seconds as well, and costs as much however many come. It is a share of
the lessons and not of the time: of answers that began together, the short ones end close behind each other and the
long ones one by one, and who takes one in so many milliseconds takes too many of the long.
"""

from collections.abc import Hashable
from typing import Final

#: Lessons of one kind taken a second, on average, and the seconds over which the share that comes to is worked out.
MOST: Final = 50
SPAN: Final = 1.0
#: Kinds kept; when there are more, all begin anew, which costs a start's lessons and nothing else.
_KINDS: Final = 1024
#: The golden ratio's fraction: its multiples, taken modulo 1, fall into each part of that as often as it is long, and
#: nothing that comes in turns can keep step with them (Weyl's equidistribution).
_GOLDEN: Final = 0.6180339887498949


class _Kind:
    """Lessons of one kind: how many came since `began`, and in all; the share of them that is taken."""

    __slots__ = ("began", "came", "share", "total")

    def __init__(self, now: float) -> None:
        self.began, self.came, self.total, self.share = now, 0, 0, 1.0


class Pace:
    """Which lessons are due."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, _Kind] = {}

    def __len__(self) -> int:
        """Kinds kept."""
        return len(self._known)

    def due(self, kind: Hashable, now: float) -> bool:
        """Whether a lesson of this kind is to be taken, of which one came at `now`, in seconds."""
        known = self._known.get(kind)
        if known is None:
            known = self._begun(kind, now)
        elif (passed := now - known.began) >= SPAN:
            known.share = MOST * passed / known.came  # 1 and more takes all
            known.began, known.came = now, 0
        known.came += 1
        known.total += 1
        return known.share >= 1.0 or known.total * _GOLDEN % 1.0 < known.share

    def _begun(self, kind: Hashable, now: float) -> _Kind:
        if len(self._known) >= _KINDS:
            self._known.clear()
        known = self._known[kind] = _Kind(now)
        return known
