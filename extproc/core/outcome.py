"""How requests ended, read from Envoy's gRPC access log.

An entry without a code, or of an answer that began and whose last byte Envoy did not send, is one of an exchange that
was broken off. Flags say by whom, but not for HTTP/2 clients that cancel with error code 0: such entries have neither
flags nor details of their own (seen with Envoy 1.40).
"""

from collections.abc import Callable, Iterator
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
#: How Envoy's details begin where the client broke it off: an HTTP/2 reset, a connection closed.
_CLIENT_LEFT = ("http2.remote_reset", "http3.remote_reset", "downstream_remote_disconnect")
#: Envoy's details where nothing was wrong up to there: before and after the replica's headers.
_ALL_WELL = ("", "via_upstream")


class Ended(NamedTuple):
    """One request's end.

    Attributes:
        replica: ip:port of the replica that served it last; "" when it reached none.
        request_id: Envoy's id of the request.
        status: HTTP status that the replica gave; None when it refused, reset or timed out, or gave none.
        retry_after: seconds it asked to be left alone, with a 429 or 503; None when it did not.
        by_client: the client left before the end, so the status says nothing of the replica.
        attempts: how many replicas Envoy tried; None where it does not say.
        limited: a limit of Envoy's on the whole exchange ended it, so it says nothing of the replica.
        usage: tokens as the engine counted them, where ai_protocol_manager read the response; else None.
        verdict: what that record was like (core/usage/token_usage.py).
        code: HTTP status that the client got, whoever ended it; None when it got none.
        unsure: it was broken off, and nothing says by whom.
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
    code: int | None = None
    unsure: bool = False

    @property
    def silent(self) -> bool:
        """Whether it says nothing of how well the replica is."""
        return not self.replica or self.by_client or self.limited or self.unsure


def read(data: bytes, asks: Callable[[str], bool] = lambda _request_id: True) -> Iterator[Ended]:
    """The entries of one message of the access log; bytes of no such message give none.

    `asks`: whether the usage of a request is to be read, by its id: of most it is known by then.
    """
    try:
        message = pb.StreamAccessLogsMessage.FromString(data)
    except DecodeError:
        return
    for entry in message.http_logs.log_entry:
        common, response = entry.common_properties, entry.response
        socket = common.upstream_remote_address.socket_address
        code = response.response_code.value
        broken, limited, by_client, unsure = _judged(common, response)
        asked = _retry_after(response) if code in _PUSHING else None
        request_id = entry.request.request_id
        told = token_usage.NOTHING
        if common.HasField("metadata") and asks(request_id):
            told = token_usage.in_log_entry(entry)
        yield Ended(
            _address(socket.address, socket.port_value) if socket.port_value else "",
            request_id,
            None if broken or not code else code,
            asked,
            by_client,
            common.upstream_request_attempt_count or None,
            limited,
            told.usage,
            told.verdict,
            code or None,
            unsure,
        )


@lru_cache(maxsize=4096)
def _address(host: str, port: int) -> str:
    return str(HostPort(host, port))


def _judged(common: pb.AccessLogCommon, response: pb.HTTPResponseProperties) -> tuple[bool, bool, bool, bool]:
    """Whether the replica broke it off, a limit of Envoy's ended it, the client left, or it was cut by who knows."""
    details = response.response_code_details
    broken = left = False
    limited = details == _TOO_LONG  # which has no flag
    if common.HasField("response_flags"):  # most requests have none
        flags = common.response_flags
        broken = _broken(flags)
        left = flags.downstream_connection_termination or flags.downstream_remote_reset
        limited = limited or _limited(flags)
    if broken:
        return True, limited, False, False
    left = left or details.startswith(_CLIENT_LEFT)
    if left or limited or _finished(common, response):
        return False, limited, left, False
    # No complaint of the replica, no limit, and still no end: an HTTP/2 client's reset with code 0.
    left = details in _ALL_WELL
    return False, False, left, not left


def _finished(common: pb.AccessLogCommon, response: pb.HTTPResponseProperties) -> bool:
    """Whether the client got an answer to its last byte. Who tells no times at all is not doubted."""
    began, ended = "time_to_first_downstream_tx_byte", "time_to_last_downstream_tx_byte"
    return bool(response.response_code.value) and (common.HasField(ended) or not common.HasField(began))


def _broken(flags: pb.ResponseFlags) -> bool:
    """Whether the replica broke it off."""
    return (
        flags.upstream_connection_failure
        or flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_request_timeout
        or flags.upstream_protocol_error  # a chunked response that ends before its last chunk
    )


def _limited(flags: pb.ResponseFlags) -> bool:
    """Whether Envoy's clock ended it and not the replica's try: also a client that reads nothing can be the cause."""
    return flags.stream_idle_timeout or flags.duration_timeout or flags.upstream_max_stream_duration_reached


def _retry_after(response: pb.HTTPResponseProperties) -> float | None:
    """Seconds asked for, cut to a million; 0 for a date, which says nothing without a wall clock; None for none."""
    text = response.response_headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
        return 0.0 if text else None
    return float(text) if len(text) <= _RETRY_DIGITS else 10.0**_RETRY_DIGITS
