"""A bound on one value that a client takes from Redis: a larger one is not read, and its connection is closed.

redis-py reads whatever length it is told, and holds several copies of it on the way. Where others may write what is
read, that would be their choice of this process' memory. Its parsers' `_read(length)` is the one place where a value
is taken in, with its length known and nothing of it read.
"""

from typing import Any, Final

from redis._parsers import _AsyncRESP2Parser, _AsyncRESP3Parser
from redis.exceptions import InvalidResponse

#: Bytes of the largest value that is taken: twice the largest batch that is read (core/journal.py).
MOST_VALUE: Final = 2**20


class TooLarge(InvalidResponse):
    """Redis was about to send a value that is larger than any that is meant."""


class Bounded2(_AsyncRESP2Parser):
    """redis-py's parser of RESP2, with the bound."""

    async def _read(self, length: int) -> bytes:
        return await super()._read(_checked(length))


class Bounded3(_AsyncRESP3Parser):
    """redis-py's parser of RESP3, with the bound."""

    async def _read(self, length: int) -> bytes:
        return await super()._read(_checked(length))


def bound(client: Any, protocol: int) -> Any:
    """Let a client that has not connected yet raise TooLarge for a value above `MOST_VALUE`; returns the client."""
    parser = {"parser_class": Bounded3 if protocol == 3 else Bounded2}
    nodes = getattr(client, "nodes_manager", None)
    if nodes is None:
        client.connection_pool.connection_kwargs.update(parser)
        return client
    nodes.connection_kwargs.update(parser)
    for node in nodes.startup_nodes.values():
        node.connection_kwargs.update(parser)
    return client


def _checked(length: int) -> int:
    if length > MOST_VALUE:
        raise TooLarge(f"redis holds a value of {length} bytes where at most {MOST_VALUE} are read")
    return length
