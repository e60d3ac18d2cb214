"""A chain's hashes in runs that have the same holders, and what each of them weighs (core/index.py)."""

from itertools import accumulate
from typing import Final

#: Weights are kept in units of 64 bytes, rounded up, so that 16 bits reach to 4 MiB for one hash.
UNIT_SHIFT: Final = 6
_WEIGHT_MAX: Final = 0xFFFF
_ROUNDING: Final = (1 << UNIT_SHIFT) - 1
#: Bytes below which no weight comes near that.
_CLAMPED: Final = _WEIGHT_MAX << UNIT_SHIFT
#: Hashes up to which a loop takes less than calls that deal with all of them at once, as of chats of a few messages.
SHORT: Final = 16


#: Where a run begins, where it ends, and the packed value that all of its hashes have (0 for unknown).
Run = tuple[int, int, int]


def runs_of(found: list[int | None]) -> list[Run]:
    """Runs of the same packed value.

    Nearly every chain is one run or two, the second unknown; those are found without looking at each hash.
    """
    count, first = len(found), found[0]
    if found.count(first) == count:
        return [(0, count, first or 0)]
    known = count - found.count(None)
    if first is not None and found[:known].count(first) == known:
        return [(0, known, first), (known, count, 0)]
    runs, start, value = [], 0, first
    for at, packed in enumerate(found):
        if packed is not value:
            runs.append((start, at, value or 0))
            start, value = at, packed
    runs.append((start, count, value or 0))
    return runs


def weights_of(ends: list[int], start: int, stop: int) -> list[int]:
    """Weights of the hashes `start` to `stop` of a chain, in units."""
    begin = ends[start - 1] if start else 0
    weights: list[int] = []
    if stop - start <= SHORT and ends[stop - 1] - begin < _CLAMPED:
        for end in ends[start:stop]:
            weights.append((end - begin + _ROUNDING) >> UNIT_SHIFT)
            begin = end
        return weights
    size, weight = -1, 0
    for end in ends[start:stop]:
        if end - begin != size:  # within a long text all are of one size (core/prefix.py)
            size = end - begin
            weight = min((size + _ROUNDING) >> UNIT_SHIFT, _WEIGHT_MAX)
        weights.append(weight)
        begin = end
    return weights


def first_mentions(hashes: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
    """No true chain repeats a hash; of one that does each hash counts where it comes first."""
    sizes = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    firsts = dict(zip(reversed(hashes), reversed(sizes), strict=True))
    keys = list(dict.fromkeys(hashes))
    return keys, list(accumulate(firsts[key] for key in keys))
