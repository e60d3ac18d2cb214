"""What computing a prompt costs.

Work is counted in tokens at the start of a prompt: a token further in costs more, since attention reads all
before it. Seconds are work over a replica's prefill speed.
"""

import math


def prefill_work(start: float, end: float, doubling: float = math.inf) -> float:
    """Work of computing prompt tokens `start`..`end`: the integral of 1 + position / doubling.

    `doubling` is the position, in tokens, at which a token costs twice what the first does: a fit to the
    attention's linear growth with position. Infinity when every token costs the same.
    """
    return (end - start) * (1.0 + (start + end) / (2.0 * doubling))


def tokens_at_start(work: float, doubling: float = math.inf) -> float:
    """Tokens from a prompt's start on that take so much work: `prefill_work` from 0, turned round."""
    if math.isinf(doubling):
        return work
    return doubling * (math.sqrt(1.0 + 2.0 * work / doubling) - 1.0)
