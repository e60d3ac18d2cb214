"""How requests ended at their replicas, read from Envoy's gRPC access log."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError

from extproc.addresses import HostPort
from extproc.core.usage import token_usage
from extproc.core.usage.record import Usage
from extproc.pb import access_log_pb2 as pb

#: Digits of a Retry-After that are read; a longer number is cut, dates and junk count as 0.
_RETRY_DIGITS = 6
#: Status codes with which an engine asks to be left alone.
_PUSHING = frozenset({429, 503})


#: Envoy's word for `max_stream_duration` (pools[].timeouts.total).
_TOO_LONG = "max_duration_timeout"
_NOTHING = token_usage.Told(None, token_usage.ABSENT)


class Ended(NamedTuple):
    """One request's end at the replica that served it last.

    Attributes:
        replica: ip:port of that replica.
        request_id: Envoy's id of the request.
        status: HTTP status; None when the replica refused, reset or timed out.
        retry_after: seconds it asked to be left alone, with a 429 or 503; None when it did not.
        by_client: the client left before the end, so the status says nothing of the replica.
        attempts: how many replicas Envoy tried; None where it does not say.
        limited: a limit of Envoy's on the whole exchange ended it, so it says nothing of the replica.
        usage: tokens as the engine counted them, where ai_protocol_manager read the response; else None.
        verdict: what that record was like (core/usage/token_usage.py).
    """

    replica: str
    request_id: str
    status: int | None
    retry_after: float | None
    by_client: bool
    attempts: int | None = None
    limited: bool = False
    usage: Usage | None = None
    verdict: str = token_usage.ABSENT


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
            limited = response.response_code_details == _TOO_LONG  # which has no flag
            if common.HasField("response_flags"):  # most requests have none
                broken, by_client = _flagged(common.response_flags)
                limited = limited or _limited(common.response_flags)
            asked = _retry_after(response) if code in _PUSHING else None
            status = None if broken or not code else code
            attempts = common.upstream_request_attempt_count or None
            replica, request_id = _address(socket.address, port), entry.request.request_id
            told = token_usage.in_log_entry(entry) if common.HasField("metadata") else _NOTHING
            yield Ended(replica, request_id, status, asked, by_client, attempts, limited, *told)


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
        or flags.upstream_protocol_error  # a chunked response that ends before its last chunk
    )
    return broken, flags.downstream_connection_termination and not broken


def _limited(flags: pb.ResponseFlags) -> bool:
    """Whether Envoy's clock ended it and not the replica's try: also a client that reads nothing can be the cause."""
    return flags.stream_idle_timeout or flags.duration_timeout or flags.upstream_max_stream_duration_reached


def _retry_after(response: pb.HTTPResponseProperties) -> float | None:
    """Seconds asked for, cut to a million; 0 for a date, which says nothing without a wall clock; None for none."""
    text = response.response_headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
        return 0.0 if text else None
    return float(text) if len(text) <= _RETRY_DIGITS else 10.0**_RETRY_DIGITS
