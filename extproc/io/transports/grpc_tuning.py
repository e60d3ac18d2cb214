"""What makes `grpc.aio` cost less: settings of gRPC's own, and helping threads that do not cut in.

Measured with `python -m benchmarks.server_cpu`, with and without, alternating (docs/performance.md).
"""

import contextlib
import os
from collections.abc import Iterator
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


@contextlib.contextmanager
def helpers_give_way() -> Iterator[None]:
    """Threads that are started within do not interrupt a running one when they have something to do (Linux).

    gRPC's threads wake for each operation, some eight times a request, and each time the kernel lets them cut in on
    the one that decides, and they take its caches. Woken under SCHED_BATCH (sched(7)) they get an idle processor, or
    the next turn on theirs. Nothing waits longer for that: what they bring is for the thread they would have cut in
    on. Threads inherit their starter's policy, and so do those that these start. Any process may ask for it; where
    that is forbidden, or an operator has given the process a policy, nothing changes.
    """
    given = _batch()
    try:
        yield
    finally:
        if given:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _batch() -> bool:
    """Give the calling thread the policy, if it has the usual one; whether it has it now."""
    if not hasattr(os, "SCHED_BATCH"):
        return False  # no Linux
    try:
        if os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return False  # a sandbox forbids it
    return True
