"""How many examples of a property are tried: `make unit` half, `make guarantees` all, `make properties` many more.

Each run tries others, so that few examples a run find in some runs what many find in one.
"""

import os

from hypothesis import settings

#: How many times as many examples are tried as a property says.
TIMES = float(os.environ.get("KVSTEER_EXAMPLES", "0.5"))


def count_of(count: int) -> int:
    """So many, or that many times more or less; at least one."""
    return max(round(count * TIMES), 1)


def examples(count: int) -> settings:
    """`@examples(60)`: so many, or that many times more or less."""
    return settings(max_examples=count_of(count), deadline=None)
