"""An entry of any size does not reach a gateway's memory."""

import asyncio
from typing import Any, Literal
from unittest.mock import AsyncMock, Mock

import pytest

from extproc.config import RedisSettings
from extproc.core.journal import Refused, decode
from extproc.io.journal_stream import sifted
from extproc.io.redis_bound import MOST_VALUE, Bounded2, Bounded3, TooLarge, bound
from extproc.io.redis_client import make_client


@pytest.mark.parametrize("parser", [Bounded2, Bounded3])
async def test_a_value_above_a_mebibyte_is_not_read_and_one_of_it_is(
    parser: type[Bounded2 | Bounded3],
) -> None:
    def reading(length: int) -> Any:
        made: Any = parser(socket_read_size=65_536)
        stream = asyncio.StreamReader()
        stream.feed_data(b"$%d\r\n" % length + b"x" * length + b"\r\n")
        made.on_connect(Mock(_reader=stream, encoder=Mock()))
        return made

    answer = await reading(MOST_VALUE).read_response(disable_decoding=True)
    assert answer == b"x" * MOST_VALUE
    with pytest.raises(TooLarge, match="1048577 bytes"):
        await reading(MOST_VALUE + 1).read_response(disable_decoding=True)


@pytest.mark.parametrize(
    ("url", "protocol"), [("redis://127.0.0.1:1", 2), ("unix:///x", 3), ("redis+sentinel://127.0.0.1:1/m", 3)]
)
def test_every_connection_of_a_bounded_client_has_the_bound(url: str, protocol: Literal[2, 3]) -> None:
    settings = RedisSettings(url=url, protocol=protocol)
    client = bound(make_client(settings), settings.protocol)
    connection = client.connection_pool.make_connection()
    assert type(connection._parser) is (Bounded3 if protocol == 3 else Bounded2)


def test_every_node_of_a_bounded_cluster_has_the_bound() -> None:
    settings = RedisSettings(url="redis+cluster://127.0.0.1:1")
    client = bound(make_client(settings), settings.protocol)
    (node,) = client.nodes_manager.startup_nodes.values()
    expected = Bounded3 if settings.protocol == 3 else Bounded2
    assert (
        node.connection_kwargs["parser_class"]
        is client.nodes_manager.connection_kwargs["parser_class"]
        is expected
    )


async def test_what_was_too_large_to_fetch_counts_as_too_large_and_its_neighbours_are_read() -> None:
    client = AsyncMock()
    client.eval.return_value = [[b"5-0", []], [b"6-0", [b"b", b"news"]]]
    large, small = await sifted(client, "kvsteer:journal", "4-0", 64)
    assert (large[0], small) == (b"5-0", (b"6-0", {b"b": b"news"}))
    assert large[1] is not None
    with pytest.raises(Refused, match="too_large"):
        decode(large[1][b"b"])
