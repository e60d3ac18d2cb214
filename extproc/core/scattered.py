"""Bytes in the pieces in which they came. A large body is never put together here: one copy of 32 MiB takes 20 ms."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate


def _nobody() -> None:
    """Nobody waits for the memory."""


class Pieces:
    """A run of bytes in pieces.

    Args:
        views: the pieces in order.
        freed: called once, when they are needed no more.
    """

    __slots__ = ("_freed", "_starts", "_views", "size")

    def __init__(
        self, views: Sequence[bytes | bytearray | memoryview], freed: Callable[[], None] = _nobody
    ) -> None:
        self._views = [memoryview(view) for view in views if len(view)]
        self._starts = list(accumulate(map(len, self._views), initial=0))
        self._freed = freed
        #: Bytes in all.
        self.size = self._starts.pop()

    def __len__(self) -> int:
        return self.size

    def views(self) -> list[memoryview]:
        """The pieces, none of them empty; nothing once they were freed."""
        return self._views

    def handed_over(self) -> list[memoryview]:
        """The pieces, which whoever asks lets go one by one; `free` is still to be called."""
        views, self._views, self._starts = self._views, [], []
        return views

    def whole(self) -> bytes:
        """All bytes, copied."""
        return b"".join(self._views)

    def cut(self, at: int, size: int) -> bytes:
        """Up to `size` bytes from `at` on, copied."""
        made, stop = b"", min(at + size, self.size)
        place = bisect_right(self._starts, at) - 1
        while at < stop:
            view, start = self._views[place], self._starts[place]
            made += view[at - start : stop - start]
            at = start + len(view)
            place += 1
        return made

    def part(self, at: int, size: int) -> "Pieces":
        """`size` bytes from `at` on, of the same memory; freeing the part frees the whole."""
        if not size:
            return Pieces((), self.free)
        first = bisect_right(self._starts, at) - 1
        last = bisect_left(self._starts, at + size) - 1
        views, starts = self._views[first : last + 1], self._starts
        views[-1] = views[-1][: at + size - starts[last]]
        views[0] = views[0][at - starts[first] :]
        return Pieces(views, self.free)

    def free(self) -> None:
        """They are needed no more. Idempotent; views that were handed out stay good."""
        self._views, self._starts = [], []
        freed, self._freed = self._freed, _nobody
        freed()
