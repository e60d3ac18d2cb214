"""How requests ended, read from Envoy's gRPC access log.

An entry without a code, or of an answer that began and whose last byte Envoy did not send, is one of an exchange that
was broken off. Flags say by whom, but not for HTTP/2 clients that cancel with error code 0: such entries have neither
flags nor details of their own (seen with Envoy 1.40).

An entry comes for every request, so no more of it is opened than is learned from; replicas, codes, flags with details
are the same few bytes for nearly all, and what was made of them is kept.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.wrappers_pb2 import UInt32Value

from extproc.addresses import HostPort
from extproc.core import trimmed
from extproc.core.usage import token_usage
from extproc.core.usage.record import Usage
from extproc.pb import access_log_pb2 as full
from extproc.pb import log_entry_pb2 as pb

#: Digits of a Retry-After that are read; a longer number is cut, dates and junk count as 0.
_RETRY_DIGITS = 6
#: Replicas, codes, and flags with details that are kept.
_KEPT = 4096
#: What is in the bytes of metadata that holds a record of usage.
_USAGE = token_usage.NAMESPACE.encode()
#: Status codes with which an engine asks to be left alone.
_PUSHING = frozenset({429, 503})


#: Seconds for which Envoy may keep an entry before it sends it (extproc/envoyconfig/bootstrap.py).
_BATCH = 0.2
#: Envoy's word for `max_stream_duration` (pools[].timeouts.total).
_TOO_LONG = "max_duration_timeout"
#: How Envoy's details begin where the client broke it off: an HTTP/2 reset, a connection closed.
_CLIENT_LEFT = ("http2.remote_reset", "http3.remote_reset", "downstream_remote_disconnect")
#: Envoy's details where nothing was wrong up to there: before and after the replica's headers.
_ALL_WELL = ("", "via_upstream")

M = TypeVar("M", bound=Message)
_new = tuple.__new__


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
        lasted: from its arrival until the answer's last byte was sent, a serialized Duration; empty for unknown.
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
    lasted: bytes = b""

    def arrived(self, now: float) -> float:
        """When the request came, on the clock of `now`, when this is told; -inf for unknown.

        Too early by up to `_BATCH`, as the entry may have waited less.
        """
        if not self.lasted:
            return -math.inf
        lasted = _opened(Duration, self.lasted)
        return now - _BATCH - lasted.seconds - lasted.nanos / 1e9

    @property
    def well(self) -> bool:
        """Whether a replica answered it to its end, and with no error."""
        return self.status is not None and self.status < 400 and not self.silent

    @property
    def silent(self) -> bool:
        """Whether it says nothing of how well the replica is."""
        return not self.replica or self.by_client or self.limited or self.unsure


def read(data: bytes, asks: Callable[[str], bool] = lambda _request_id: True) -> Iterator[Ended]:
    """The entries of one message of the access log; bytes of no such message give none.

    `asks`: whether the usage of a request is to be read, by its id: of most it is known by then.
    """
    try:
        message = trimmed.read(pb.LogMessage, full.StreamAccessLogsMessage, data)
    except DecodeError:
        return
    for entry in message.http_logs.log_entry:
        common, response = entry.common_properties, entry.response
        request_id, metadata = entry.request.request_id, common.metadata
        # Who tells no times at all is not doubted.
        lasted = common.time_to_last_downstream_tx_byte
        cut = not lasted and bool(common.time_to_first_downstream_tx_byte)
        status, code, by_client, limited, unsure = _judged(
            response.response_code, common.response_flags, response.response_code_details, cut
        )
        told = token_usage.NOTHING
        # not `in`, which first tries whether a bytes object is a number
        if metadata.find(_USAGE) >= 0 and asks(request_id):
            told = token_usage.in_log_metadata(metadata)
        # As `Ended._make` does, at half its cost.
        yield _new(
            Ended,
            (
                _replica(common.upstream_remote_address),
                request_id,
                status,
                _retry_after(response) if code in _PUSHING else None,
                by_client,
                common.upstream_request_attempt_count or None,
                limited,
                told.usage,
                told.verdict,
                code,
                unsure,
                lasted,
            ),
        )


@lru_cache(maxsize=_KEPT)
def _replica(data: bytes) -> str:
    """ip:port of a serialized Address; "" for none."""
    socket = _opened(full.Address, data).socket_address
    return str(HostPort(socket.address, socket.port_value)) if socket.port_value else ""


class _Judged(NamedTuple):
    """Who ended a request, as `Ended` has it."""

    status: int | None
    code: int | None
    by_client: bool
    limited: bool
    unsure: bool


@lru_cache(maxsize=_KEPT)
def _judged(code: bytes, flags: bytes, details: str, cut: bool) -> _Judged:
    """What is made of a serialized UInt32Value, serialized ResponseFlags and Envoy's details.

    `cut`: the answer began, and its last byte was not sent. What can't be read counts as not there.
    """
    number = _opened(UInt32Value, code).value or None
    told = _opened(full.ResponseFlags, flags)
    limited = details == _TOO_LONG or _limited(told)  # the details have no flag
    if _broken(told):
        return _Judged(None, number, False, limited, False)
    left = (
        told.downstream_connection_termination
        or told.downstream_remote_reset
        or details.startswith(_CLIENT_LEFT)
    )
    if left or limited or (number and not cut):
        return _Judged(number, number, left, limited, False)
    # No complaint of the replica, no limit, and still no end: an HTTP/2 client's reset with code 0.
    left = details in _ALL_WELL
    return _Judged(number, number, left, False, not left)


def _opened(kind: type[M], data: bytes) -> M:
    """A message out of its bytes; an empty one for what is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind()


def _broken(flags: full.ResponseFlags) -> bool:
    """Whether the replica broke it off."""
    return (
        flags.upstream_connection_failure
        or flags.upstream_remote_reset
        or flags.upstream_connection_termination
        or flags.upstream_request_timeout
        or flags.upstream_protocol_error  # a chunked response that ends before its last chunk
    )


def _limited(flags: full.ResponseFlags) -> bool:
    """Whether Envoy's clock ended it and not the replica's try: also a client that reads nothing can be the cause."""
    return flags.stream_idle_timeout or flags.duration_timeout or flags.upstream_max_stream_duration_reached


def _retry_after(response: pb.LogResponse) -> float | None:
    """Seconds asked for, cut to a million; 0 for a date, which says nothing without a wall clock; None for none."""
    text = response.response_headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
        return 0.0 if text else None
    return float(text) if len(text) <= _RETRY_DIGITS else 10.0**_RETRY_DIGITS
