"""gRPC's own settings that make it cost less: a tenth of what `grpc.aio` takes for a request.

Measured with `python -m benchmarks.server_cpu`'s no-op server, with and without, alternating (docs/performance.md).
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Channel arguments. The probe sends a ping for each read, to guess a bandwidth that between an Envoy and a gateway
#: beside it never limits anything; messages that nobody compresses pass two filters all the same; traces of channels
#: are kept for a page that nobody serves.
OPTIONS: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
    ("grpc.enable_channelz", 0),
    ("grpc.max_channel_trace_event_memory_per_node", 0),
)
#: What a connection may send before it is told to go on, in bytes: without the probe this stays as it begins, and
#: the default, 64 KiB, would stop a large body a few hundred times.
WINDOW: Final = ("grpc.http2.lookahead_bytes", 2**20)

_EXPERIMENTS: Final = "GRPC_EXPERIMENTS"
#: Sockets are read by the thread that waits for events, instead of by threads that wake it: fewer threads, less CPU.
_OFF: Final = "-event_engine_listener"

#: Most wake-ups taken in at once; more of them only wake the loop once more.
_AT_ONCE: Final = 256


def fewer_threads() -> None:
    """Choose how gRPC reads sockets, for this process, unless the environment says something of its experiments.

    Call it before the first server is made: gRPC looks at the environment once.
    """
    os.environ.setdefault(_EXPERIMENTS, _OFF)


class _Wakeups(socket.socket):
    """The end of a pair that an event loop reads to learn that gRPC has news; what the bytes are means nothing."""

    __slots__ = ()

    def recv(self, _size: int, flags: int = 0) -> bytes:
        """All that came, although one byte is asked for."""
        return super().recv(_AT_ONCE, flags)


@contextmanager
def merged_wakeups() -> Iterator[None]:
    """Within it, a first `grpc.aio` server is made whose event loop is woken once for all news there is.

    gRPC's thread writes a byte for each event and the loop, woken by it, takes one byte and all events: under load it
    is then woken for each of the other bytes too, and finds nothing. Events are written down before their bytes, so
    that taking all bytes first and all events then loses none. Where a gRPC makes no such pair this changes nothing.
    """
    made = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        reads, writes = made()
        reads.__class__ = _Wakeups
        return reads, writes

    socket.socketpair = pair  # type: ignore[assignment]
    try:
        yield
    finally:
        socket.socketpair = made
