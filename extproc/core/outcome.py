"""How requests ended at their replicas, read from Envoy's gRPC access log."""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from extproc.addresses import HostPort
from extproc.pb import access_log_pb2 as pb

#: Longest Retry-After read, in characters; dates and junk are passed over.
_RETRY_DIGITS = 6


class Ended(NamedTuple):
    """One request's end at the replica that served it last.

    Attributes:
        replica: ip:port of that replica.
        request_id: Envoy's id of the request.
        status: HTTP status; None when the replica refused, reset or timed out.
        retry_after: seconds it asked to be left alone; None when it did not.
        by_client: the client left before the end, so the status says nothing of the replica.
    """

    replica: str
    request_id: str
    status: int | None
    retry_after: float | None
    by_client: bool


def read(data: bytes) -> Iterator[Ended]:
    """The entries of one message of the access log that reached a replica; bytes of no such message give none."""
    try:
        message = pb.StreamAccessLogsMessage.FromString(data)
    except DecodeError:
        return
    for entry in message.http_logs.log_entry:
        common = entry.common_properties
        socket = common.upstream_remote_address.socket_address
        if socket.port_value:
            yield _ended(entry, common.response_flags, str(HostPort(socket.address, socket.port_value)))


def _ended(entry: pb.HTTPAccessLogEntry, flags: pb.ResponseFlags, replica: str) -> Ended:
    broken = (
        flags.upstream_connection_failure
        or flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_request_timeout
    )
    response = entry.response
    status = None if broken or not response.response_code.value else response.response_code.value
    return Ended(
        replica,
        entry.request.request_id,
        status,
        _seconds(response.response_headers.get("retry-after", "")),
        flags.downstream_connection_termination and not broken,
    )


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) <= _RETRY_DIGITS else None
