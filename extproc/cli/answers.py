"""What answers of a gateway's admin port must look like: whoever answers at a port may be no gateway, or a later one.

Of each answer it is told what a command reads of it; what else stands there is not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: A value's type, a list of values alike, an object with these keys, or Maybe.
Form = Any
#: Most characters of a key that is told.
_LONGEST: Final = 64


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value that may be null, and with `lacks` a key that may be missing."""

    form: Form
    lacks: bool = False


#: Text; a whole number; a number.
_TEXT, _COUNT, _NUMBER = str, int, float
_WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
}

_CACHE: Final = {"precision": Maybe(_NUMBER), "scale": _NUMBER, "believed_share": Maybe(_NUMBER)}
_REPLICA: Final = {
    "pool": _TEXT, "replica": _TEXT, "state": _TEXT, "state_cause": Maybe(_TEXT, True), "share": Maybe(_NUMBER, True),
    "excluded": Maybe(_TEXT), "headroom": Maybe(_NUMBER), "requests_in_flight": _COUNT, "tokens_in_flight": _NUMBER,
    "backlog_seconds": _NUMBER, "kv_used": Maybe(_NUMBER), "index_entries": _COUNT, "cache": Maybe(_CACHE, True),
    "sample_age": Maybe(_NUMBER), "scrape_failure": Maybe(_TEXT, True),
}  # fmt: skip
_REMOVED: Final = {"pool": _TEXT, "replica": _TEXT, "state": _TEXT, "state_cause": _TEXT}

#: GET /replicas.
REPLICAS: Final = {"replicas": [_REPLICA], "removed": Maybe([_REMOVED], True)}

_VIEWED: Final = {
    "replica": _TEXT, "incarnation": _COUNT, "state": _TEXT, "entries": _COUNT, "requests": _COUNT, "tokens": _NUMBER,
}  # fmt: skip
_LEASE: Final = {
    "lease": _TEXT, "held": bool, "holder": Maybe(_TEXT), "token": Maybe(_COUNT), "remaining": Maybe(_NUMBER)
}  # fmt: skip
#: GET /state.
STATE: Final = {
    "pools": [{"pool": _TEXT, "policy_version": _COUNT, "replicas": [_VIEWED]}],
    "gateway": _TEXT, "version": _TEXT, "streams": _COUNT, "shared": _TEXT, "shared_why": Maybe(_TEXT),
    "leases": [_LEASE], "journal": Maybe(dict),
}  # fmt: skip

#: POST /replicas/ADDRESS/drain and undrain.
ORDER: Final = {"replica": _TEXT, "state": _TEXT, "reaches": _TEXT, "written": Maybe(bool, True)}

#: GET /scale-in.
PICKED: Final = {"roles": Maybe(bool, True), "picked": [{"replica": _TEXT, "seconds": _NUMBER, "why": _TEXT}]}

_SEEN: Final = {"requests": _COUNT, "errors": _COUNT, "left": Maybe(_COUNT, True), "ttft_p99": Maybe(_NUMBER)}
_VERSION: Final = {
    "version": _TEXT, "weight": _NUMBER, "share": _NUMBER, "pools": [_TEXT],
    "in_flight": Maybe(_COUNT, True), "before_change": Maybe(_SEEN, True), **_SEEN,
}  # fmt: skip
_MODEL: Final = {
    "model": _TEXT, "number": _COUNT, "who": _TEXT, "why": _TEXT, "stepped_back": Maybe([_TEXT], True),
    "versions": [_VERSION],
}  # fmt: skip
#: GET /versions.
VERSIONS: Final = {"models": [_MODEL]}

#: POST /versions/set and rollback.
WEIGHTS: Final = {
    "versions": [{"version": _TEXT, "share": _NUMBER}],
    "model": _TEXT, "number": _COUNT, "reaches": _TEXT, "stepped_back": Maybe([_TEXT], True),
}  # fmt: skip

#: GET /snapshot, as far as `kvsteer record` reads it.
SNAPSHOT: Final = {
    "pools": [{
        "name": _TEXT,
        "traits": {"prefill_doubling": Maybe(_NUMBER, True)},
        "replicas": [{"prefill_speed": _NUMBER, "kv_tokens": _NUMBER, "max_running": _NUMBER}],
    }],
}  # fmt: skip

#: A line of GET /record, and its last one.
RECORDED: Final = {
    "at": _NUMBER, "tokens": _COUNT, "bytes": _COUNT, "ends": [_COUNT], "hashes": [_COUNT], "output": _COUNT,
    "limit": Maybe(_COUNT), "first": Maybe(_NUMBER), "cached": Maybe(_COUNT), "policy": _TEXT, "pool": _TEXT,
}  # fmt: skip
LAST: Final = {"left_out": _COUNT}


def fault_of(said: Any, form: Form) -> str:
    """Why this is no such answer, as in `JSON without 'replicas'`; "" when it is one."""
    if isinstance(form, Mapping) and not isinstance(said, dict):
        return f"JSON without {next(iter(form))!r}"
    return _fault(said, form, "")


def _fault(said: Any, form: Form, where: str) -> str:
    if isinstance(form, Maybe):
        return "" if said is None else _fault(said, form.form, where)
    if isinstance(form, Mapping):
        return _of_object(said, form, where)
    if isinstance(form, list):
        if not isinstance(said, list):
            return f"JSON in which {where} is not a list"
        faults = (_fault(each, form[0], f"{where}.{number}") for number, each in enumerate(said))
        return next(filter(None, faults), "")
    if _is(said, form):
        return ""
    return f"JSON in which {where} is not {_WORDS[form]}"


def _of_object(said: Any, form: Mapping[str, Form], where: str) -> str:
    if not isinstance(said, dict):
        return f"JSON in which {where} is not an object"
    for key, inner in form.items():
        place = f"{where}.{key}"[-_LONGEST:].lstrip(".")
        if key not in said:
            if isinstance(inner, Maybe) and inner.lacks:
                continue
            return f"JSON without {place!r}"
        if fault := _fault(said[key], inner, place):
            return fault
    return ""


def _is(said: Any, kind: type) -> bool:
    """Whether a JSON value is of a kind; true is no number, and 3 is one where 3.0 is."""
    return type(said) is kind or (kind is float and type(said) is int)
