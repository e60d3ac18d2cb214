"""The prefix cache of an emulated replica: an LRU over full blocks."""

from collections.abc import Sequence, Set


class BlockCache:
    """Blocks by their chained hashes, least recently used first out.

    Args:
        capacity: blocks that fit, at least 1.
    """

    __slots__ = ("_blocks", "_capacity")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a prefix cache must hold at least one block, not {capacity}")
        self._capacity = capacity
        self._blocks: dict[int, None] = {}  # in the order of use: dicts keep it

    def __len__(self) -> int:
        return len(self._blocks)

    def leading(self, blocks: Sequence[int], beside: Set[int] = frozenset()) -> int:
        """How many leading blocks of a prompt are held, here or `beside`."""
        held = self._blocks
        depth = 0
        for block in blocks:
            if block not in held and block not in beside:
                break
            depth += 1
        return depth

    def use(self, blocks: Sequence[int]) -> None:
        """Hold a prompt's blocks, as used now. A prompt's last blocks are the first of it to go, as in engines."""
        held = self._blocks
        for block in reversed(blocks):
            held.pop(block, None)
            held[block] = None
        while len(held) > self._capacity:
            del held[next(iter(held))]

    def clear(self) -> None:
        """Forget everything: the engine restarted."""
        self._blocks.clear()
