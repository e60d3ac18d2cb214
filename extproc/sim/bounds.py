"""Bounds of the numbers that people write, so that a run ends, and a wrong number is told instead of played.

Every message says what the number is of, what it may be, and what was found.
"""

import math
from typing import Any, Final

#: Longest time that a simulation may cover, in seconds: thirty days.
MOST_SECONDS: Final = 30 * 86_400.0
#: Longest pause, delay or duration other than that, in seconds: a day.
DAY: Final = 86_400.0
#: Most tokens of one prompt or one answer: ten times the longest context any engine takes today.
MOST_TOKENS: Final = 10_000_000
#: Most requests of a generated workload; what a run keeps of each takes some 50 bytes.
MOST_REQUESTS: Final = 10_000_000
#: Slowest and fastest speed factor, of replicas and of arrivals.
SLOWEST, FASTEST = 0.001, 1000.0
#: What readers of JSON everywhere can hold.
_WHOLE: Final = 2**53


def within(what: str, value: Any, low: float, high: float) -> float:
    """`value` as a float, when it is a number within low..high (an infinite `high` takes infinity too).

    Raises:
        ValueError: it is no number (also NaN, text, true and false), or outside.
    """
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{what} must be a number within {low:g}..{high:g}, not {shown(value)}")
    return float(value)


def whole(what: str, value: Any, low: int, high: int = _WHOLE) -> int:
    """`value` as an int, when it is a whole number within low..high; 3.0 is one, 3.5, true and "3" are not.

    Raises:
        ValueError: it is none, or outside.
    """
    if type(value) not in (int, float) or not low <= value <= high or value != int(value):
        raise ValueError(f"{what} must be a whole number within {low}..{high}, not {shown(value)}")
    return int(value)


def shown(value: Any) -> str:
    """A value as a message may quote it: short, on one line, whatever it is."""
    if type(value) is int and abs(value) > _WHOLE:
        return "a number of more than 16 digits"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
