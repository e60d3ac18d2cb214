"""Streams asked for their usage: `stream_options.include_usage` put into a body that lacks it, nothing else touched.

OpenAI's API reference, chat and completions: with `stream_options: {"include_usage": true}` one more chunk comes
before `[DONE]`, with an empty `choices` and the usage of the whole request. The client sees it.
"""

from typing import Final

import orjson

from extproc.core.prompt import Prompt
from extproc.core.rename import Edit, places

#: Dialects whose streams have the option.
_DIALECTS: Final = frozenset({"openai_chat", "openai_completions"})

_MEMBER = b'"include_usage":true'
_WHOLE = b'{"include_usage":true}'
#: Longest options that are looked into, bytes.
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
    spots = places(body, ("stream_options",)) if prompt.spots is None else prompt.spots
    return _by_spots(body, spots["stream_options"])


def _first(body: bytes) -> Edit:
    """Options as the first member: white space alone may stand before it; others follow, as "stream" is there."""
    start = body.index(b"{") + 1
    return start, start, b'"stream_options":' + _WHOLE + b","


def _by_spots(body: bytes, spots: list[tuple[int, int]]) -> Edit | None:
    """By where the options stand; of several the last counts."""
    if not spots:
        return _first(body)
    start, end = spots[-1]
    if end - start > _LONGEST:
        return None
    try:
        options = orjson.loads(body[start:end])
    except (
        orjson.JSONDecodeError
    ):  # half of a surrogate pair, which is read otherwise (core/dialects/halves.py)
        return None
    if options is None:
        return start, end, _WHOLE
    if not isinstance(options, dict) or "include_usage" in options:
        return None
    return start + 1, start + 1, _MEMBER + (b"," if options else b"")
