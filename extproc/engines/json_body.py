"""JSON bodies of engines, read without trust: a wrong shape or a wrong type is unknown, never an error."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

_EMPTY: Mapping[str, Any] = {}


def load(text: bytes) -> Any:
    """The value of a body; None where it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def group(value: object, *keys: str) -> Mapping[str, Any]:
    """The object under `keys`, one inside the other; an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else _EMPTY


def number(value: object) -> float | None:
    """A quantity: a finite number of at least 0; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < math.inf else None
