"""A chain's hashes in runs that have the same holders, and what each of them weighs (core/index.py)."""

from itertools import accumulate
from operator import sub
from typing import Final

#: Weights are kept in units of 64 bytes, rounded up, so that 16 bits reach to 4 MiB for one hash.
UNIT_SHIFT: Final = 6
_WEIGHT_MAX: Final = 0xFFFF


def runs_of(found: list[int | None]) -> list[tuple[int, int, int]]:
    """Runs of the same packed value: where each begins, where it ends, and the value (0 for unknown).

    Nearly every chain is one run or two, the second unknown; those are found without looking at each hash.
    """
    count, first = len(found), found[0]
    if found.count(first) == count:
        return [(0, count, first or 0)]
    known = count
    while found[known - 1] is None:
        known -= 1
    if first is not None and known < count and found[:known].count(first) == known:
        return [(0, known, first), (known, count, 0)]
    found_runs, start = [], 0
    while start < count:
        before, stop = found[start], start + 1
        while stop < count and found[stop] is before:
            stop += 1
        found_runs.append((start, stop, before or 0))
        start = stop
    return found_runs


def weights_of(ends: list[int]) -> list[int]:
    """Weights of a chain's hashes, in units.

    Within a long text all are of one size (core/prefix.py), so a size is turned into units once, wherever it stands.
    """
    sizes = [ends[0], *map(sub, ends[1:], ends)]
    units = {size: _weight(size) for size in set(sizes)}
    return list(map(units.__getitem__, sizes)) if len(units) > 1 else [units[sizes[0]]] * len(sizes)


def _weight(size: int) -> int:
    weight = (size + 63) >> UNIT_SHIFT
    return weight if weight < _WEIGHT_MAX else _WEIGHT_MAX


def first_mentions(hashes: list[int], ends: list[int]) -> tuple[list[int], list[int]]:
    """No true chain repeats a hash; of one that does each hash counts where it comes first."""
    sizes = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    firsts = dict(zip(reversed(hashes), reversed(sizes), strict=True))
    keys = list(dict.fromkeys(hashes))
    return keys, list(accumulate(firsts[key] for key in keys))
