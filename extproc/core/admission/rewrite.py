"""A request's body with another model or engine priority: what degrading means on the wire."""

from typing import Any, Final

import orjson

from extproc.core.admission.tenants import Degrade

#: Member of a body and what kind of lesser service it carries.
_MEMBERS: Final = {"priority": "priority", "model": "model"}


def degraded(body: bytes, lesser: Degrade) -> bytes | None:
    """The body with the lesser service asked for, written anew; None where it can't be: no JSON object, or a pool.

    Written anew rather than amended, since a member given twice is an error to some readers.
    """
    member = _MEMBERS.get(lesser.kind)
    if member is None:
        return None
    try:
        parsed: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    parsed[member] = int(lesser.to) if lesser.kind == "priority" else lesser.to
    return orjson.dumps(parsed)
