"""How many examples of a property are tried: few in `make unit`, many in `make properties`."""

import os

from hypothesis import settings

#: How many times as many as `make unit` tries.
TIMES = int(os.environ.get("KVSTEER_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """`@examples(60)`: so many, or that many times more."""
    return settings(max_examples=count * TIMES, deadline=None)
