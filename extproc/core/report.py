"""What a reporter beside an engine tells of it: a sample, or why there is none, as JSON.

    {"version": 1, "replica": "10.0.0.1:8000", "pool": "", "age": 0.012, "draining": false,
     "sample": {"running": 3, "kv_used": 0.5, ...}}          or  "failure": "connect"  instead of a sample

`age` is the reporter's own: seconds since the engine was asked. No machine's clock is compared with another's.
Reading is strict: an unknown field, another type or a value out of range refuses the whole report, since half a
sample would make the rest look unknown. A field that is not there, or null, is unknown.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import orjson

from extproc.addresses import parse_address
from extproc.core.sample import MOST_RANKS, Sample

VERSION: Final = 1
#: Largest report, in bytes; one of an engine with a thousand adapters has half of it.
LARGEST: Final = 64 * 1024
#: Largest age, in seconds: the longest `metrics.stale_after`, beyond which nothing believes a sample.
OLDEST: Final = 600.0

#: Words a reporter may say for why it has no sample; those of the collector (io/scrape.py).
_FAILURE = re.compile(
    r"connect|tls|timeout|broken|too_large|unparsable|internal|status_(?:[1-5]xx|[1-5][0-9]{2})"
)
_POOL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_MEMBERS: Final = ("version", "replica", "pool", "age", "draining", "sample", "failure")
#: Most requests of one engine, and largest counter or sum, that are believed.
_MOST_REQUESTS = 1e9
_MOST_COUNTED = 1e15
#: Largest KV cache, in tokens, as for scraped samples (engines/quantities.py).
_MOST_TOKENS = 10**12
#: Latest start that is believed, seconds since the epoch: the year 5138.
_LATEST_START = 1e11
#: Most names in a list, and longest name, in characters.
_MOST_NAMES = 4096
_LONGEST_NAME = 512


class BadReport(Exception):
    """A report can't be used. Raised by `read_report`; the gateway refuses it with the message.

    The message names the field and what it may be, and repeats nothing of what was sent but the field's name.
    """


@dataclass(slots=True, frozen=True, kw_only=True)
class Report:
    """What is told of one replica."""

    #: `ip:port`, canonical.
    replica: str
    #: The pool meant; empty for every pool that has the replica.
    pool: str = ""
    #: Seconds between asking the engine and sending this.
    age: float = 0.0
    #: The engine is about to stop: nothing new should go there.
    draining: bool = False
    #: What the engine said; None when it could not be asked.
    sample: Sample | None = None
    #: Why it could not be asked, a word of the collector's; empty when it could.
    failure: str = ""


def write_report(report: Report) -> bytes:
    """A report as JSON; what is unknown is left out."""
    told: dict[str, Any] = {
        "version": VERSION,
        "replica": report.replica,
        "pool": report.pool,
        "age": report.age,
        "draining": report.draining,
    }
    if report.sample is not None:
        values = ((name, getattr(report.sample, name)) for name in _READERS)
        told["sample"] = {name: value for name, value in values if value is not None}
    if report.failure:
        told["failure"] = report.failure
    return orjson.dumps(told)


def read_report(data: bytes, arrived: float) -> Report:
    """A report out of JSON; its sample's `at` is `arrived` (seconds, monotonic) less its age.

    Raises:
        BadReport: it is none.
    """
    told = _tree(data)
    if told.get("version") != VERSION or isinstance(told["version"], bool):
        raise BadReport(f"version must be {VERSION}; the reporter and this gateway are of different versions")
    _only(told, _MEMBERS, "the report")
    age = _number(told.get("age", 0.0), OLDEST, "age")
    failure, pool = told.get("failure"), told.get("pool") or ""
    if failure is not None and not (isinstance(failure, str) and _FAILURE.fullmatch(failure)):
        raise BadReport("failure is none of the collector's words; see docs/engines.md")
    if not isinstance(pool, str) or (pool and not _POOL.fullmatch(pool)):
        raise BadReport("pool is no name of a pool")
    if failure is not None and told.get("sample") is not None:
        raise BadReport("sample and failure are both given; send one of them")
    return Report(
        replica=_replica(told.get("replica")),
        pool=pool,
        age=age,
        draining=_truth(told.get("draining", False), "draining"),
        sample=_sample(told.get("sample"), arrived - age),
        failure=failure or "",
    )


def _tree(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST:
        raise BadReport(f"the report is larger than {LARGEST} bytes")
    try:
        told = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise BadReport("the report is no JSON") from None
    if not isinstance(told, dict):
        raise BadReport("the report is no JSON object")
    return told


def _only(told: Mapping[str, Any], known: Any, where: str) -> None:
    unknown = sorted(name for name in told if name not in known)
    if unknown:
        raise BadReport(f"{where} has {unknown[0][:40]!r}, which is no field of it; is the reporter newer?")


def _replica(value: object) -> str:
    try:
        address = parse_address(value) if isinstance(value, str) and len(value) <= 100 else None
    except ValueError:
        address = None
    if address is None or not address.is_ip:
        raise BadReport("replica must be ip:port, IPv6 as [::1]:port")
    return str(address)


def _sample(value: object, at: float) -> Sample | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadReport("sample is no JSON object")
    _only(value, _READERS, "sample")
    read = {name: _READERS[name](known, name) for name, known in value.items() if known is not None}
    return Sample(at=at, **read)


def _number(value: object, most: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReport(f"{name} must be a number")
    if not (math.isfinite(value) and 0 <= value <= most):
        raise BadReport(f"{name} must be from 0 to {most:g}")
    return float(value)


def _whole(value: object, most: float, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadReport(f"{name} must be a whole number from 1 to {most:g}")
    return value


def _truth(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadReport(f"{name} must be true or false")
    return value


def _names(value: object, name: str) -> tuple[str, ...]:
    short = isinstance(value, list) and len(value) <= _MOST_NAMES
    if not short or not all(isinstance(one, str) and len(one) <= _LONGEST_NAME for one in value):  # type: ignore[attr-defined]
        raise BadReport(f"{name} must be a list of at most {_MOST_NAMES} short texts")
    return tuple(sorted(set(value)))  # type: ignore[call-overload]


def _counts(value: object, name: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not 2 <= len(value) <= MOST_RANKS:
        raise BadReport(f"{name} must be a list of 2 to {MOST_RANKS} numbers")
    return tuple(_number(one, _MOST_REQUESTS, name) for one in value)


def _up_to(read: Callable[[object, float, str], Any], most: float) -> Callable[[object, str], Any]:
    return lambda value, name: read(value, most, name)


_COUNTED = _up_to(_number, _MOST_COUNTED)
#: How each field of a sample is read; `at` is the receiver's own.
_READERS: Final[dict[str, Callable[[object, str], Any]]] = {
    **{entry.name: _COUNTED for entry in fields(Sample) if entry.name != "at"},
    "running": _up_to(_number, _MOST_REQUESTS),
    "waiting": _up_to(_number, _MOST_REQUESTS),
    "kv_used": _up_to(_number, 1.0),
    "kv_capacity": _up_to(_whole, _MOST_TOKENS),
    "block_size": _up_to(_whole, 2**53),
    "max_running": _up_to(_whole, 2**53),
    "max_adapters": _up_to(_whole, 2**53),
    "started": _up_to(_number, _LATEST_START),
    "asleep": _truth,
    "ranks": _counts,
    "adapters": _names,
    "models": _names,
}
