"""How many examples of a property are tried: `make unit` few, `make guarantees` all, `make properties` many more.

Each run tries others, so that few examples a run find in some runs what many find in one.
"""

import os

from hypothesis import settings
from hypothesis import strategies as st

#: How many times as many examples are tried as a property says.
TIMES = float(os.environ.get("KVSTEER_EXAMPLES", "0.5"))
#: Whether this is a quick run, as `make unit` is: half of the examples, and of no property more than `ENOUGH`.
QUICK = TIMES < 1
ENOUGH = 50

#: What `st.text()` draws from: all that UTF-8 can write. To find that out by trying takes a second in a fresh clone.
LETTERS = st.characters(exclude_categories=["Cs"])


def count_of(count: int, quick: int | None = None) -> int:
    """So many, or that many times more or less, at least one; in a quick run `quick`, where that is given."""
    return quick if QUICK and quick is not None else max(round(count * TIMES), 1)


def examples(count: int) -> settings:
    """`@examples(60)`: so many, or that many times more or less."""
    few = min(count_of(count), ENOUGH)
    return settings(max_examples=count_of(count, few), deadline=None)
