"""Streams asked for their usage: `stream_options.include_usage` put into a body that lacks it, nothing else touched.

OpenAI's API reference, chat and completions: with `stream_options: {"include_usage": true}` one more chunk comes
before `[DONE]`, with an empty `choices` and the usage of the whole request. The client sees it.
"""

import re
from typing import Any, Final

import orjson

from extproc.core.prompt import Prompt
from extproc.core.rename import Edit

#: Dialects whose streams have the option.
_DIALECTS: Final = frozenset({"openai_chat", "openai_completions"})

_MEMBER = b'"include_usage":true'
_WHOLE = b'{"include_usage":true}'
#: What may be the member in question; text within strings does not match, as its quotes are escaped.
_OPTIONS = re.compile(rb'"stream_options"\s*:\s*(null\b|\{\s*(\}?))')
#: Most places looked at: each costs a reading of the whole body.
_MOST_PLACES: Final = 4
#: Longest options that are read here of a body that was read elsewhere, bytes.
_LONGEST: Final = 16 * 2**10


def added(prompt: Prompt, body: bytes) -> bytes | None:
    """The body with the option added, or None where it stays as it is. As `adding`, joined."""
    edit = adding(prompt, body)
    return None if edit is None else body[: edit[0]] + edit[2] + body[edit[1] :]


def adding(prompt: Prompt, body: bytes) -> Edit | None:
    """What adds the option to the body; None where that stays as it is.

    Args:
        prompt: what was read out of `body`.
        body: JSON as the client sent it, not compressed.

    A client that said `include_usage` itself, whatever it said, gets what it asked for.
    """
    if not prompt.stream or prompt.dialect not in _DIALECTS:
        return None
    if prompt.spots is not None:
        return _by_spots(body, prompt.spots["stream_options"])
    parsed = orjson.loads(body)
    if "stream_options" not in parsed:
        return _first(body)
    options = parsed["stream_options"]
    if options is None or (isinstance(options, dict) and "include_usage" not in options):
        return _merged(body, parsed)
    return None


def _first(body: bytes) -> Edit:
    """Options as the first member: white space alone may stand before it; others follow, as "stream" is there."""
    start = body.index(b"{") + 1
    return start, start, b'"stream_options":' + _WHOLE + b","


def _by_spots(body: bytes, spots: list[tuple[int, int]]) -> Edit | None:
    """By where the options stand, as who read the body told; of several the last counts."""
    if not spots:
        return _first(body)
    start, end = spots[-1]
    options = orjson.loads(body[start:end]) if end - start <= _LONGEST else {"include_usage": "not looked at"}
    if options is None:
        return start, end, _WHOLE
    if not isinstance(options, dict) or "include_usage" in options:
        return None
    return start + 1, start + 1, _MEMBER + (b"," if options else b"")


def _merged(body: bytes, parsed: dict[str, Any]) -> Edit | None:
    """The option put into the one that is there; None where it isn't found, e.g. its name in \\u escapes."""
    wanted = {**parsed, "stream_options": {**(parsed["stream_options"] or {}), "include_usage": True}}
    places = list(_OPTIONS.finditer(body))
    for place in reversed(places[-_MOST_PLACES:]):  # of a member given twice the last counts
        start, end, new = made = _at(place)
        if (
            orjson.loads(body[:start] + new + body[end:]) == wanted
        ):  # the name may stand deeper, as in a schema
            return made
    return None


def _at(place: "re.Match[bytes]") -> Edit:
    if place[1] == b"null":
        return place.start(1), place.end(1), _WHOLE
    start = place.start(1) + 1
    return start, start, _MEMBER + (b"" if place[2] else b",")
