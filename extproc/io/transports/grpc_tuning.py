"""gRPC's own settings that make it cost less: a twentieth of what `grpc.aio` takes for a request.

Measured with `python -m benchmarks.server_cpu`'s no-op server, with and without, alternating (docs/performance.md).
"""

from typing import Final

#: Channel arguments. The probe sends a ping for each read, to guess a bandwidth that between an Envoy and a gateway
#: beside it never limits anything; messages that nobody compresses pass two filters all the same; traces of channels
#: are kept for a page that nobody serves. As nothing decompresses, only `identity` (bit 0) is offered and taken: a
#: client that compresses all the same is answered UNIMPLEMENTED, as on transport fast.
OPTIONS: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.enable_channelz", 0),
    ("grpc.max_channel_trace_event_memory_per_node", 0),
)
#: What a connection may send before it is told to go on, in bytes: without the probe this stays as it begins, and
#: the default, 64 KiB, would stop a large body a few hundred times.
WINDOW: Final = ("grpc.http2.lookahead_bytes", 2**20)
