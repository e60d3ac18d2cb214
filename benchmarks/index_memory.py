"""Resident memory of the prefix index at a million (hash, replica) pairs.

.venv/bin/python -m benchmarks.index_memory
"""

import gc
import os
import random
from pathlib import Path

from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain

_PAIRS = 1_000_000
_REPLICAS = 16


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(length: int, turnover: int) -> float:
    """Bytes a pair, once `turnover` million pairs of chains of `length` hashes went through an index of one."""
    gc.collect()
    before = resident()
    rng = random.Random(1)
    index = PrefixIndex(3600.0)
    slots = [index.add_slot(_PAIRS // _REPLICAS * 1024, 0.0) for _ in range(_REPLICAS)]
    ends = [1024 * (i + 1) for i in range(length)]
    for step in range(turnover * _PAIRS // length):
        index.place(
            slots[step % _REPLICAS], Chain([rng.getrandbits(60) for _ in range(length)], ends), step / 1000
        )
    return (resident() - before) / len(index)


def main() -> None:
    """Print a line a case; each case in a process of its own, so that none inherits another's heap."""
    for length in (30, 1):
        for turnover in (1, 3):
            child = os.fork()
            if child == 0:
                each = fill(length, turnover)
                print(
                    f"chains of {length:2} hashes, {turnover} million placed: {each:6.1f} bytes a pair",
                    flush=True,
                )
                os._exit(0)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
