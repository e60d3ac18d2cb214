"""What is known of a request that is held until its turn comes."""

from dataclasses import dataclass

from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.rename import Parts


@dataclass(slots=True)
class Owed:
    """One such request.

    Attributes:
        prompt: None for nothing.
        arrived: when, in seconds of the monotonic clock.
        outcome: how it will have been dealt with.
        size: bytes of its body.
        body: the other body that it goes on with, in pieces; None where it goes on as it came.
    """

    prompt: Prompt | None
    pool: Pool
    arrived: float
    outcome: str
    size: int
    body: Parts | None = None
