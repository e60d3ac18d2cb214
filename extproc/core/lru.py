"""One replica's part of the prefix index: what it used, by epochs, and how much that is (core/index.py)."""

from array import array
from typing import Final

from extproc.core.runs import UNIT_SHIFT

#: Bits of one slot in a packed value, and so epochs 1..15.
BITS: Final = 4
EPOCHS: Final = (1 << BITS) - 1


class Slot:
    """One replica's LRU: arrays of (hash, weight) by epoch. Weights, sizes, capacity: units of 64 bytes."""

    __slots__ = (
        "added",
        "began",
        "capacity",
        "count",
        "epoch",
        "forgot",
        "hashes",
        "mine",
        "size",
        "stamp",
        "weights",
    )

    def __init__(self, number: int, capacity: int, now: float) -> None:
        self.capacity = capacity >> UNIT_SHIFT
        self.epoch = 1
        self.mine = EPOCHS << BITS * number  # the slot's bits in a packed value
        self.stamp = 1 << BITS * number  # those of its epoch
        self.began = [now] * (EPOCHS + 1)  # when each epoch began
        self.added = 0  # weight used in this epoch, what was held before counted half
        self.size = 0  # weight held
        self.count = 0  # hashes held
        self.forgot = False  # whether older mentions may be of hashes that were taken back
        self.hashes = [array("Q") for _ in range(EPOCHS + 1)]
        self.weights = [array("H") for _ in range(EPOCHS + 1)]


def take_out(
    hashes: "array[int]", weights: "array[int]", wanted: set[int]
) -> tuple["array[int]", "array[int]"]:
    """Remove these hashes from an epoch, and return them with their weights.

    From its end, since what is taken back was mostly believed a moment ago.
    """
    gone, their_weights, at = array("Q"), array("H"), len(hashes)
    left = set(wanted)
    while left and at:
        at -= 1
        if hashes[at] in left:
            left.discard(hashes[at])
            gone.append(hashes.pop(at))
            their_weights.append(weights.pop(at))
    return gone, their_weights
