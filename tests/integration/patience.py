"""How long tests wait for what is due, and how long what they time may take.

Every limit in a test is what an idle machine keeps. `make test` must pass on one that is several times slower and
stands still for a second now and then, so limits are stretched; `make guarantees` and `make faults` hold every one of
them to the letter (KVSTEER_PATIENCE=1).
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

#: How many times as long as an idle machine this one may take.
TIMES = float(os.environ.get("KVSTEER_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """Seconds to wait for what is due within `seconds`: a machine that stands still costs a waiting test nothing."""
    return TIMES * seconds + (5.0 if TIMES > 1 else 0.0)


def bar(seconds: float) -> float:
    """Seconds that something may have taken that takes at most `seconds`; compare the median of several with it."""
    return TIMES * seconds


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `condition()` holds, which is due within `seconds`, and return it; fail saying what did not."""
    deadline = time.monotonic() + patient(seconds)
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {patient(seconds):g} s")
        time.sleep(0.01)
    return value


async def until_async(condition: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
    """As `until`, for a coroutine function."""
    deadline = time.monotonic() + patient(seconds)
    while not (value := await condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {patient(seconds):g} s")
        await asyncio.sleep(0.01)
    return value
