"""Streams asked for their usage: `stream_options.include_usage` put into a body that lacks it, nothing else touched.

OpenAI's API reference, chat and completions: with `stream_options: {"include_usage": true}` one more chunk comes
before `[DONE]`, with an empty `choices` and the usage of the whole request. The client sees it.
"""

import re
from typing import Any, Final

import orjson

from extproc.core.prompt import Prompt

#: Dialects whose streams have the option.
_DIALECTS: Final = frozenset({"openai_chat", "openai_completions"})

_MEMBER = b'"include_usage":true'
_WHOLE = b'{"include_usage":true}'
#: What may be the member in question; text within strings does not match, as its quotes are escaped.
_OPTIONS = re.compile(rb'"stream_options"\s*:\s*(null\b|\{\s*(\}?))')
#: Most places looked at: each costs a reading of the whole body.
_MOST_PLACES: Final = 4


def added(prompt: Prompt, body: bytes) -> bytes | None:
    """The body with the option added, or None where it stays as it is.

    Args:
        prompt: what was read out of `body`.
        body: JSON as the client sent it, not compressed.

    A client that said `include_usage` itself, whatever it said, gets what it asked for.
    """
    if not prompt.stream or prompt.dialect not in _DIALECTS:
        return None
    parsed = orjson.loads(body)
    if "stream_options" not in parsed:
        start = (
            body.index(b"{") + 1
        )  # white space alone may stand before it; a member follows, as "stream" is there
        return body[:start] + b'"stream_options":' + _WHOLE + b"," + body[start:]
    options = parsed["stream_options"]
    if options is None or (isinstance(options, dict) and "include_usage" not in options):
        return _merged(body, parsed)
    return None


def _merged(body: bytes, parsed: dict[str, Any]) -> bytes | None:
    """The option put into the one that is there; None where it isn't found, e.g. its name in \\u escapes."""
    wanted = {**parsed, "stream_options": {**(parsed["stream_options"] or {}), "include_usage": True}}
    places = list(_OPTIONS.finditer(body))
    for place in reversed(places[-_MOST_PLACES:]):  # of a member given twice the last counts
        made = _at(body, place)
        if orjson.loads(made) == wanted:  # the same name may stand deeper, as in a tool's schema
            return made
    return None


def _at(body: bytes, place: "re.Match[bytes]") -> bytes:
    if place[1] == b"null":
        return body[: place.start(1)] + _WHOLE + body[place.end(1) :]
    start = place.start(1) + 1
    return body[:start] + _MEMBER + (b"" if place[2] else b",") + body[start:]
