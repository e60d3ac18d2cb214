"""Hashes of long texts that came before: no text, only what it came to in a prefix chain (core/prefix.py)."""

from collections import OrderedDict
from typing import Final

#: Most hashes kept, each of 1 KiB of text, and most texts: 64 MiB of text in 3 MiB of memory, and 1.5 MiB of keys.
_MOST_HASHES: Final = 65_536
_MOST_TEXTS: Final = 4_096

#: A hash of a text and of all before it, and the text's bytes.
Key = tuple[int, int]


class KnownRuns:
    """Runs of hashes by what they are of; those that were not asked for longest go first.

    Args:
        most_hashes, most_texts: what is kept at most.
    """

    __slots__ = ("_kept", "_most_hashes", "_most_texts", "_size")

    def __init__(self, most_hashes: int = _MOST_HASHES, most_texts: int = _MOST_TEXTS) -> None:
        #: Not a dict, of which to find the first key takes the longer the more were taken out before it.
        self._kept: OrderedDict[Key, list[int]] = OrderedDict()
        self._most_hashes, self._most_texts = most_hashes, most_texts
        self._size = 0

    @property
    def size(self) -> int:
        """Hashes kept."""
        return self._size

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> list[int] | None:
        """The run of a text, not to be changed; None where it is not known."""
        run = self._kept.get(key)
        if run is not None:
            self._kept.move_to_end(key)  # the newest by this
        return run

    def keep(self, key: Key, run: list[int]) -> None:
        """Remember the run of a text, in place of what was kept for it."""
        self._size -= len(self._kept.pop(key, ()))
        self._kept[key] = run
        self._size += len(run)
        while self._size > self._most_hashes or len(self._kept) > self._most_texts:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest)
