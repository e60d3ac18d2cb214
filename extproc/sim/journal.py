"""How gateways of a simulation hear of each other: every piece of news arrives whole, in order, a set delay late."""

from typing import NamedTuple

from extproc.core.prompt import Chain, Prompt


class Placed(NamedTuple):
    """A gateway sent a request to a replica. `work` in tokens at a prompt's start, `tokens` in all."""

    key: int
    address: str
    chains: list[Chain]
    work: float
    tokens: int
    at: float


class FirstToken(NamedTuple):
    """The first token of a request came, so its prompt is computed."""

    key: int
    at: float


class Ended(NamedTuple):
    """A request is over, however it ended."""

    key: int


class Held(NamedTuple):
    """A gateway lets a request wait."""

    key: int
    prompt: Prompt
    arrived: float


News = Held | Placed | FirstToken | Ended
