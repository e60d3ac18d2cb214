"""How far back a view of the prefix index reaches: a snapshot, and the journal's tail after it.

    everything up to POSITION           from SINCE on, everything that was read
    [========== snapshot ==========]
                          [============ the journal's tail, as long as it is kept ============>

A view is whole when the two overlap. The tail may have been cut meanwhile (a full Redis, an operator), or a gateway
was away for longer than it is kept: then there is a hole between them, and only a newer snapshot mends it. Whoever
writes snapshots looks whether the kept tail still reaches back to the last one, and writes another when it does not.
"""

from collections.abc import Iterable
from typing import Final

#: An entry's id in the stream: milliseconds, number.
Position = tuple[int, int]

#: Most milliseconds that a snapshot lies behind the journal's end, as it is written in calm times.
MOST_BEHIND: Final = 15_000
#: Milliseconds by which a position may lie beyond what was read here: more is no position of this stream, of which no
#: more than a minute or two is kept. After ten the stream has caught up with one that is nearer.
_BEYOND: Final = 600_000
#: Least milliseconds between two snapshots, where the tail is short.
LEAST_BEHIND: Final = 1_000


class Reach:
    """Says of each pool whether the view of its index is whole.

    Args:
        pools: their names.
    """

    def __init__(self, pools: Iterable[str]) -> None:
        self._pools = tuple(pools)
        #: First entry of the tail that was read without a gap; None before it is known.
        self._since: Position | None = None
        self._newest: Position | None = None
        self._loaded: dict[str, Position] = {}
        self._needed: dict[str, Position] = {}
        #: Whether what was read before may be followed by what was not, and no snapshot was loaded since.
        self.lost = False

    def gap(self) -> None:
        """Entries may have gone unread, or the stream is another one: what was known reaches to no tail any more."""
        self.lost = self.lost or self._since is not None
        self._since = self._newest = None
        self._loaded.clear()
        self._needed.clear()

    def read(self, position: Position) -> None:
        """An entry was read that follows the one read before, or a gap."""
        if self._since is None:
            self._since = position
        self._newest = position

    def missed(self, pool: str, last: Position) -> None:
        """Entries of a pool up to `last` could not be used when they were read: a snapshot must bring them."""
        self._needed[pool] = last

    def loaded(self, pool: str, position: Position) -> None:
        """Everything up to a position is known, by a snapshot of others or because this one's own begins there."""
        self.lost = False
        former = self._loaded.get(pool, position)
        self._loaded[pool] = position if self.is_beyond(former) else max(position, former)

    def is_beyond(self, position: Position) -> bool:
        """Whether a position is none of this stream: by anybody's hand, or of another one."""
        return self._newest is not None and position[0] > self._newest[0] + _BEYOND

    def is_whole(self, pool: str) -> bool:
        """Whether nothing lies between what was loaded and what was read."""
        loaded = self._loaded.get(pool)
        if self._since is None or loaded is None or self.is_beyond(loaded):
            return False
        return loaded >= max(self._since, self._needed.get(pool, self._since))

    def has_hole(self, pool: str) -> bool:
        """Whether a snapshot was loaded that does not reach to the tail."""
        loaded = self._loaded.get(pool)
        return (
            loaded is not None
            and not self.is_beyond(loaded)
            and not self.is_whole(pool)
            and self._since is not None
        )

    @property
    def whole(self) -> bool:
        """Whether every pool's view is whole."""
        return all(map(self.is_whole, self._pools))


def is_due(snapshot: Position | None, first: Position | None, last: Position) -> bool:
    """Whether another snapshot must be written now.

    Args:
        snapshot: position of the newest; None for none.
        first: oldest entry of the journal that is kept; None for none.
        last: up to where the writer has read.

    It is when the kept tail does not reach back to the newest, or would not for long: the newest is to be in its
    younger half. A position far beyond `last` is none of this stream: such a snapshot is as good as none.
    """
    if snapshot is None or first is None or first > snapshot or snapshot[0] > last[0] + _BEYOND:
        return True
    behind, kept = last[0] - snapshot[0], last[0] - first[0]
    return behind >= MOST_BEHIND or (behind >= LEAST_BEHIND and 2 * behind > kept)
