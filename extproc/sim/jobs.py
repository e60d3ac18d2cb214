"""One request on its way through a simulation."""

from collections.abc import Sequence
from enum import IntEnum

from extproc.core.prompt import BYTES_PER_TOKEN_ID, Chain, Prompt

#: Tokens of one block, unless a trace says otherwise: what the public ones number and modelled engines cache by.
BLOCK_TOKENS = 512
_MASK60 = (1 << 60) - 1


class Status(IntEnum):
    """How far a request came."""

    UNFINISHED = 0
    FINISHED = 1
    FAILED = 2
    REJECTED = 3


class Row:
    """One request of a workload.

    Attributes:
        at: arrival in seconds; for a later turn of a session, ignored.
        tokens: prompt tokens, at least 1.
        output: tokens the answer has, at least 1.
        blocks: chained 60-bit hashes of the prompt's blocks of `block` tokens; the last may stand for a partial one.
        limit: output limit the request names; None when it names none.
        think: seconds after the previous turn's answer before this one starts.
        after: the next turn of the same session; None when there is none.
    """

    __slots__ = ("after", "at", "block", "blocks", "limit", "output", "think", "tokens")

    def __init__(
        self,
        at: float,
        tokens: int,
        output: int,
        blocks: Sequence[int],
        *,
        limit: int | None = None,
        think: float = 0.0,
        block: int = BLOCK_TOKENS,
    ) -> None:
        self.at = at
        self.tokens = max(tokens, 1)
        self.output = max(output, 1)
        self.blocks = blocks
        self.limit = limit
        self.think = think
        self.block = block
        self.after: Row | None = None

    def prompt(self) -> Prompt:
        """The request as a gateway reads it: token ids, so that tokens come out exact."""
        size = self.tokens * BYTES_PER_TOKEN_ID
        count, each = len(self.blocks), self.block * BYTES_PER_TOKEN_ID
        ends = list(range(each, each * (count + 1), each))
        ends[-1] = size
        return Prompt(
            dialect="trace",
            kind="generate",
            chains=[Chain(list(self.blocks), ends)],
            size=size,
            token_ids=True,
            max_output=self.limit,
            stream=True,
        )


class Job:
    """A row being served. Times in seconds of virtual time; -1 while unknown."""

    __slots__ = (
        "arrived",
        "began",
        "finished",
        "first",
        "full",
        "gateway",
        "hit",
        "key",
        "number",
        "position",
        "replica",
        "row",
        "status",
    )

    def __init__(self, number: int, row: Row, arrived: float, gateway: int) -> None:
        self.number = number  #: in the order of arrival, from 0
        self.row = row
        self.arrived = arrived
        self.gateway = gateway
        self.key = number
        self.began = self.first = self.finished = -1.0  #: computing, first token, end
        self.hit = 0  #: prompt tokens found in the replica's cache
        self.position = 0  #: prompt tokens computed or found
        self.full = row.tokens // row.block  #: full blocks, which engines share
        self.replica = ""
        self.status = Status.UNFINISHED


def block_hash(number: int) -> int:
    """60 well mixed bits for a trace's block number (the finalizer of splitmix64)."""
    z = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) & _MASK60
