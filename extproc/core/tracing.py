"""W3C trace context (w3.org/TR/trace-context, level 1): whose trace a request is in, and the gateway's span in it.

Where the replica is told of it, `traceparent` names the gateway's span, so that an engine's spans stand below it.
What the caller did not sample is left as it is.
"""

import re
from typing import Final, NamedTuple, Protocol

from extproc.core import replies

#: `traceparent`: version, trace, caller's span, flags. Version ff and ids of zeros are invalid; version 00 has 55
#: characters, later ones may have more behind a dash.
_PARENT = re.compile(
    r"^(?!ff)(?!00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?=\Z|-)",
    re.DOTALL,
)
_HEADER: Final = "traceparent"
#: The answer's part that sets it, cut where its 55 characters belong: at headers, and at a body.
_BLANK: Final = "-" * 55
_SHAPES: Final = tuple(
    replies.told([(_HEADER, _BLANK)], at_headers=at_headers).split(_BLANK.encode())
    for at_headers in (False, True)
)


class Draw(Protocol):
    """Random numbers for ids and shares, which guard nothing; `random.Random` fits."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """So many random bits."""
        ...


class Span(NamedTuple):
    """A span's ids in lower-case hex: of the trace (32), of the caller's span ("" for none), and its own (16)."""

    trace: str
    parent: str
    id: str


def parent_of(header: str) -> tuple[str, str, bool] | None:
    """Trace, caller's span and whether it is sampled, of a `traceparent`; None for one that is invalid."""
    found = _PARENT.match(header)
    return (found[1], found[2], bool(int(found[3], 16) & 1)) if found else None


class Traces:
    """Says which requests have a span.

    Args:
        share: of the requests without a valid `traceparent`, 0..1; others as their caller says.
        draw: draws them, and the ids.
    """

    def __init__(self, share: float, draw: Draw) -> None:
        self._share = share
        self._draw = draw

    def begin(self, caller: str) -> Span | None:
        """The span of a request whose caller sent this `traceparent`, "" for none; None where it has no span."""
        parent = parent_of(caller) if caller else None
        if not (parent[2] if parent else self._draw.random() < self._share):
            return None
        trace, span = (parent[0], parent[1]) if parent else (f"{self._draw.getrandbits(128) or 1:032x}", "")
        return Span(trace, span, f"{self._draw.getrandbits(64) or 1:016x}")


def told(span: Span, *, at_headers: bool) -> bytes:
    """To append to an answer to headers or a body: the replica's caller is this span, which is sampled."""
    before, after = _SHAPES[at_headers]
    return b"%b00-%b-%b-01%b" % (before, span.trace.encode(), span.id.encode(), after)
