"""The kinds of values settings are made of: durations, sizes, addresses, numbers."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Strict

from extproc.addresses import parse_address

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WITH_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*)")


def _duration(value: object) -> object:
    """Seconds of a number or of text like `500ms`."""
    if not isinstance(value, str):
        return _number(value, "a duration; write for example 500ms, 2s, 10m or 1h")
    return _with_unit(value, _DURATION_UNITS, "s", "a duration; write for example 500ms, 2s, 10m or 1h")


def _size(value: object) -> object:
    """Bytes of a number or of text like `4KiB`."""
    if not isinstance(value, str):
        return _number(value, "a size; write for example 4KiB, 32MiB or 1GiB")
    return int(_with_unit(value, _SIZE_UNITS, "B", "a size; write for example 4KiB, 32MiB or 1GiB"))


def _number(value: object, what: str) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is not {what}")  # noqa: TRY004 - pydantic reports ValueError only
    return value


def _with_unit(text: str, units: dict[str, float] | dict[str, int], default: str, what: str) -> float:
    match = _WITH_UNIT.fullmatch(text.strip())
    if not match or (match[2] or default) not in units:
        raise ValueError(f"is not {what}")
    return float(match[1]) * units[match[2] or default]


def _address(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):  # YAML reads a port alone as a number
        value = str(value)
    return str(parse_address(value)) if isinstance(value, str) else value


def show_duration(value: float) -> str:
    """Seconds as one writes them in a file: `500ms`, `2s`, `10m`; exact."""
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if value and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"


def show_size(value: int) -> str:
    """Bytes as one writes them in a file: `32MiB`; exact."""
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _SIZE_UNITS[unit] == 0:
            return f"{value // _SIZE_UNITS[unit]}{unit}"
    return f"{value}B"


class DurationKind:
    """Marks a field as a duration, for the documentation."""


class SizeKind:
    """Marks a field as a size, for the documentation."""


class AddressKind:
    """Marks a field as an address, for the documentation."""


#: Seconds; written as a number or with ms, s, m, h.
Duration = Annotated[float, BeforeValidator(_duration), DurationKind]
#: Bytes; written as a number or with B, KiB, MiB, GiB.
Size = Annotated[int, BeforeValidator(_size), SizeKind]
#: `host:port`, IPv6 in brackets; kept in its canonical form.
Address = Annotated[str, BeforeValidator(_address), AddressKind]
#: An integer; neither text nor a truth value.
Whole = Annotated[int, Strict()]
#: An integer or a fraction; neither text nor a truth value.
Number = Annotated[float, Strict()]
