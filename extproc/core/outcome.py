"""How requests ended at their replicas, read from Envoy's gRPC access log."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError

from extproc.addresses import HostPort
from extproc.pb import access_log_pb2 as pb

#: Digits of a Retry-After that are read; a longer number is cut, dates and junk count as 0.
_RETRY_DIGITS = 6
#: Status codes with which an engine asks to be left alone.
_PUSHING = frozenset({429, 503})


class Ended(NamedTuple):
    """One request's end at the replica that served it last.

    Attributes:
        replica: ip:port of that replica.
        request_id: Envoy's id of the request.
        status: HTTP status; None when the replica refused, reset or timed out.
        retry_after: seconds it asked to be left alone, with a 429 or 503; None when it did not.
        by_client: the client left before the end, so the status says nothing of the replica.
        attempts: how many replicas Envoy tried; None where it does not say.
    """

    replica: str
    request_id: str
    status: int | None
    retry_after: float | None
    by_client: bool
    attempts: int | None = None


def read(data: bytes) -> Iterator[Ended]:
    """The entries of one message of the access log that reached a replica; bytes of no such message give none."""
    try:
        message = pb.StreamAccessLogsMessage.FromString(data)
    except DecodeError:
        return
    for entry in message.http_logs.log_entry:
        common = entry.common_properties
        socket = common.upstream_remote_address.socket_address
        port = socket.port_value
        if port:
            response = entry.response
            code = response.response_code.value
            broken = by_client = False
            if common.HasField("response_flags"):  # most requests have none
                broken, by_client = _flagged(common.response_flags)
            asked = _retry_after(response) if code in _PUSHING else None
            status = None if broken or not code else code
            attempts = common.upstream_request_attempt_count or None
            yield Ended(
                _address(socket.address, port), entry.request.request_id, status, asked, by_client, attempts
            )


@lru_cache(maxsize=4096)
def _address(host: str, port: int) -> str:
    return str(HostPort(host, port))


def _flagged(flags: pb.ResponseFlags) -> tuple[bool, bool]:
    """Whether the replica broke it off, and whether the client left."""
    broken = (
        flags.upstream_connection_failure
        or flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_request_timeout
    )
    return broken, flags.downstream_connection_termination and not broken


def _retry_after(response: pb.HTTPResponseProperties) -> float | None:
    """Seconds asked for, cut to a million; 0 for a date, which says nothing without a wall clock; None for none."""
    text = response.response_headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
        return 0.0 if text else None
    return float(text) if len(text) <= _RETRY_DIGITS else 10.0**_RETRY_DIGITS
