"""A request's body with another model or engine priority: what degrading means on the wire.

It is spliced into the body's bytes (`core/rename.py`), so that all else stays as the client wrote it.
"""

import json
import math
import re
from typing import Final

import orjson

from extproc.core.admission.tenants import Degrade
from extproc.core.rename import Edit, Spots, edited, places, with_value

#: What an object opens with, up to its first member or its end.
_OPENS = re.compile(rb"[ \t\n\r]*+\{[ \t\n\r]*+", re.DOTALL)
_SPACE: Final = b" \t\n\r"
#: Longest value that is read as a number, bytes: no integer of 64 bits is longer, nor a float that means anything.
_LONGEST: Final = 64


def degraded(body: bytes, lesser: Degrade) -> bytes | None:
    """The body with the lesser service asked for; None where it can't be. As `degrading`, joined."""
    edits = degrading(body, lesser)
    return b"".join(edited(body, edits)) if edits else None


def degrading(body: bytes, lesser: Degrade, spots: Spots | None = None, model: str = "") -> list[Edit]:
    """What makes the body ask for the lesser service; nothing where it can't be: no JSON object, or a pool.

    A priority of the client's own that is later (larger) than the lesser one stays: degrading improves nothing.
    Members given twice all get the value, whichever a reader takes.

    Args:
        body: a JSON object that a parser has accepted, or what is seen to be none.
        lesser: what to write.
        spots: what `places` says of the body, where it was asked before.
        model: by which name the replicas know the lesser model; "" for its own.
    """
    opens = _OPENS.match(body)
    if lesser.kind not in ("priority", "model") or opens is None or not body.rstrip(_SPACE).endswith(b"}"):
        return []
    found = (places(body, (lesser.kind,)) if spots is None else spots)[lesser.kind]
    value = lesser.to.encode() if lesser.kind == "priority" else orjson.dumps(model or lesser.to)
    if lesser.kind == "priority":
        value = max((value, *(body[start:end] for start, end in found)), key=_lateness)
    return with_value(found, value) if found else [_first(body, opens.end(), lesser.kind, value)]


def _first(body: bytes, at: int, member: str, value: bytes) -> Edit:
    """One more member, before that at `at`, or where there is none alone."""
    comma = b"" if body[at : at + 1] == b"}" else b","
    return at, at, b'"%s":%s%s' % (member.encode(), value, comma)


def _lateness(value: bytes) -> float:
    """A priority as engines read it, also in quotes (pydantic's lax mode); the earliest for what is none."""
    try:
        text = json.loads(value) if value[:1] == b'"' else value
        lateness = float(text) if len(value) <= _LONGEST else -math.inf
    except ValueError:
        return -math.inf
    return lateness if math.isfinite(lateness) else -math.inf
