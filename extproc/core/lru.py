"""One replica's part of the prefix index: what it used, by epochs, and how much that is (core/index.py)."""

from array import array
from collections import deque
from collections.abc import Callable
from itertools import repeat
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
        "stale",
        "stamp",
        "unit",
        "weights",
    )

    def __init__(self, number: int, capacity: int, now: float) -> None:
        self.capacity = capacity >> UNIT_SHIFT
        self.epoch = 1
        self.unit = 1 << BITS * number  # the lowest of the slot's bits in a packed value
        self.mine = EPOCHS * self.unit  # all of them
        self.stamp = self.unit  # those of its epoch
        self.began = [now] * (EPOCHS + 1)  # when each epoch began
        self.added = 0  # weight used in this epoch, what was held before counted half
        self.size = 0  # weight held
        self.count = 0  # hashes held
        self.stale = 0  # mentions of hashes that were used again since or taken back, at most
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


def drop(
    held: dict[int, int],
    share: Callable[[int], int],
    slot: Slot,
    epoch: int,
    hashes: "array[int]",
    weights: "array[int]",
) -> None:
    """Take entries of an epoch out of the table, but for what was used again since.

    Args:
        held: hash -> packed value, for all slots.
        share: the object to be kept for a packed value.
        slot: whose they are; `epoch` is when they were mentioned.
        hashes, weights: these.
    """
    stamp, mine = epoch * slot.unit, slot.mine
    found = list(map(held.get, hashes, repeat(0)))
    if found.count(stamp) == len(found):  # held here alone and not used since: all go at once
        deque(map(held.pop, hashes), maxlen=0)
        slot.size -= sum(weights)
        slot.count -= len(found)
        return
    # Few values stand for many hashes. What is not in here was used again since, or is gone.
    rests = {packed: packed ^ stamp for packed in set(found) if packed & mine == stamp}
    rests = {packed: share(rest) for packed, rest in rests.items()}
    size = count = 0
    for key, weight, packed in zip(hashes, weights, found, strict=True):
        if packed in rests:
            if rest := rests[packed]:
                held[key] = rest
            else:
                del held[key]
            size += weight
            count += 1
    slot.size -= size
    slot.count -= count


def drop_few(
    held: dict[int, int],
    share: Callable[[int], int],
    slot: Slot,
    epoch: int,
    hashes: "array[int]",
    weights: "array[int]",
) -> None:
    """The same, in half the time where there are but some."""
    stamp, mine = epoch * slot.unit, slot.mine
    before = rest = 0
    for key, weight in zip(hashes, weights):  # noqa: B905 - of one length, and to check it takes as long as a hash
        packed = held.get(key, 0)
        if packed == stamp:
            del held[key]
        elif packed & mine == stamp:
            if packed != before:
                before, rest = packed, share(packed ^ stamp)
            held[key] = rest
        else:
            continue
        slot.size -= weight
        slot.count -= 1


def compact(held: dict[int, int], slot: Slot) -> None:
    """Forget the slot's mentions of hashes that were used again since, or taken back."""
    for epoch in range(1, EPOCHS + 1):
        stamp = epoch * slot.unit
        hashes, weights = array("Q"), array("H")
        for key, weight in zip(slot.hashes[epoch], slot.weights[epoch], strict=True):
            if held.get(key, 0) & slot.mine == stamp:
                hashes.append(key)
                weights.append(weight)
        slot.hashes[epoch], slot.weights[epoch] = hashes, weights
    slot.stale, slot.forgot = 0, False  # what is left is held
