"""A request's body read for routing: at once, or beside the event loop, in another process, where it is large.

Reading takes about 6 ms a MiB: decompressing, parsing, hashing. What others may wait for is 1 ms, so a body above
`Rules.beside`, or one that expands beyond it, is handed out as an `Unread`, and what comes back for it is what `read`
gives here.
"""

from typing import Final

from extproc.core import dialects, encoding, rename
from extproc.core.dialects import Limits
from extproc.core.prompt import Prompt, opaque
from extproc.core.scattered import Pieces
from extproc.errors import TooLarge, Unreadable

#: What a body says: its prompt, or one of which only the size is known and a word of `prompt.REASONS` for why.
Found = tuple[Prompt, str]

#: Members that the gateway may write anew (core/onward.py): where they stand in a large body is told with the prompt.
MEMBERS: Final = ("model", "priority", "stream_options")
#: The word for a body that decompresses beyond its limit: refused. Others may pass.
OVER: Final = TooLarge("too_large").reason
#: The word for one that was not read in time: it passes, steered by load alone, since the fault is ours.
NOT_READ: Final = "not_read"


def read(path: str, coding: str, body: bytes, expanded: int, limits: Limits) -> Found:
    """What a body says.

    Args:
        path, coding: the request's, "" for no coding.
        body: as it came.
        expanded: most bytes that it may decompress to.
        limits: what reading may cost.
    """
    return read_open(path, coding, body, expanded, limits)[0]


def read_open(path: str, coding: str, body: bytes, expanded: int, limits: Limits) -> tuple[Found, bytes]:
    """As `read`, and the body without its coding, as far as that could be undone."""
    try:
        if coding:
            body = encoding.decode(body, coding, expanded)
        return (dialects.read(path, body, limits), ""), body
    except Unreadable as error:
        return (opaque(body, error), error.reason), body


def with_spots(found: Found, body: bytes) -> Found:
    """The same, with the places of `MEMBERS`: for a body that may go on changed, without its coding."""
    prompt, why = found
    if not why or prompt.model:  # else it may be no JSON at all
        prompt.spots = rename.places(body, MEMBERS)
    return found


def not_read(size: int) -> Found:
    """What is known of a body of `size` bytes that nobody read."""
    return Prompt(dialect="opaque", kind="generate", size=size), NOT_READ


class Unread:
    """A body to be read.

    Args:
        path, coding, body: as for `read`.
        cut: whether a part of it may go by the gateway.
        keeps: whether the body is needed once it was read, since it may go on changed.

    Attributes:
        size: bytes of the body.
        is_open: whether the body is here without its coding by now.
    """

    __slots__ = ("body", "coding", "cut", "is_open", "keeps", "path", "size")

    def __init__(self, path: str, coding: str, body: Pieces, *, cut: bool, keeps: bool) -> None:
        self.path, self.coding, self.body = path, coding, body
        self.cut, self.keeps = cut, keeps
        self.size = body.size
        self.is_open = not coding

    def opened(self, body: memoryview) -> None:
        """Whoever read it hands it back without its coding."""
        self.body.free()
        self.body, self.is_open = Pieces([body]), True

    def views(self) -> list[memoryview]:
        """The body for who reads it, kept here only as far as it is needed."""
        return self.body.views() if self.keeps else self.body.handed_over()

    def handed_over(self) -> None:
        """Whoever reads it has all of it."""
        if not self.keeps:
            self.body.free()
