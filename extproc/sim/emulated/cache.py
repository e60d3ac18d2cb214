"""The KV cache: blocks held by live sequences, and full blocks kept for later prompts (LRU).

A block is in one of four places:
    named   held by live sequences and known by its hash, so that others may share it
    plain   held by one live sequence and not (yet) known by a hash
    idle    known by its hash, held by nobody: a hit takes it back, a need for room evicts it, oldest first
    free    none of these
Blocks that are held are never evicted. As in vLLM, idle blocks count as free.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Lease:
    """The blocks of one live sequence. Made by `BlockPool.admit`, ended by `BlockPool.release`."""

    __slots__ = ("book", "names", "plain", "reserved")

    def __init__(self, book: dict[int, int], reserved: int) -> None:
        self.book = book  # the pool's table of names at the time of admission
        self.names: list[int] = []
        self.plain = 0
        self.reserved = reserved  # blocks promised and not held yet

    @property
    def blocks(self) -> int:
        """Blocks held."""
        return len(self.names) + self.plain


class BlockPool:
    """`capacity` blocks and who holds them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._named: dict[int, int] = {}  # hash -> live sequences that hold it
        # In order of use, oldest first. A plain dict finds its first key ever more slowly as keys go.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held = 0  # named (of every book) and plain
        self._reserved = 0

    @property
    def held(self) -> int:
        """Blocks held by live sequences."""
        return self._held

    @property
    def idle(self) -> int:
        """Blocks kept for later prompts and held by nobody."""
        return len(self._idle)

    @property
    def cached(self) -> int:
        """Blocks that a prompt could hit now."""
        return len(self._idle) + len(self._named)

    @property
    def usage(self) -> float:
        """Share of the blocks that live sequences hold, 0..1."""
        return self._held / self.capacity

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """Leading blocks of `hashes[:limit]` that are cached."""
        for index in range(min(limit, len(hashes))):
            if hashes[index] not in self._named and hashes[index] not in self._idle:
                return index
        return min(limit, len(hashes))

    def holds(self, name: int) -> bool:
        """Whether a block with this hash is cached."""
        return name in self._named or name in self._idle

    def admit(self, hits: Sequence[int], total: int) -> Lease | None:
        """Take the cached blocks `hits` and promise room for `total` in all; None when there is none."""
        shared = sum(name in self._named for name in hits)
        if self._held + self._reserved + total - shared > self.capacity:
            return None
        lease = Lease(self._named, total - len(hits))
        self._reserved += lease.reserved
        for name in hits:
            self._hold_name(lease, name)
        return lease

    def grow(self, lease: Lease, blocks: int) -> None:
        """Hold plain blocks until `lease` has `blocks` in all, within its promise; idle ones make room."""
        more = min(blocks - lease.blocks, lease.reserved)
        if more <= 0:
            return
        lease.plain += more
        lease.reserved -= more
        self._reserved -= more
        self._held += more
        self._make_room()

    def name(self, lease: Lease, names: Sequence[int]) -> None:
        """The next plain blocks of `lease` are full and get these hashes, so that later prompts hit them."""
        for name in names[: lease.plain]:
            lease.plain -= 1
            self._held -= 1  # it comes back as a named block, or the block of the same name is shared
            self._hold_name(lease, name)

    def release(self, lease: Lease) -> None:
        """End a lease. Named blocks become idle, the end of a prompt before its beginning; plain are free."""
        for name in reversed(lease.names):
            self._drop_name(lease.book, name)
        self._held -= lease.plain
        self._reserved -= lease.reserved
        lease.names, lease.plain, lease.reserved = [], 0, 0

    def drop(self) -> None:
        """Forget every cached block. Live sequences keep theirs, but nobody can hit them any more."""
        self._idle.clear()
        self._named = {}

    def _hold_name(self, lease: Lease, name: int) -> None:
        lease.names.append(name)
        count = lease.book.get(name, 0)
        lease.book[name] = count + 1
        if not count:
            self._held += 1
            if lease.book is self._named:
                self._idle.pop(name, None)

    def _drop_name(self, book: dict[int, int], name: int) -> None:
        if book[name] > 1:
            book[name] -= 1
            return
        del book[name]
        self._held -= 1
        if book is self._named:
            self._idle[name] = None

    def _make_room(self) -> None:
        while self._held + len(self._idle) > self.capacity:
            self._idle.popitem(last=False)
