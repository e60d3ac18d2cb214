"""The message of a response's clean end: status, replica, attempts and usage, out of its bytes.

It comes once for every request, so no more of it is opened than is learned from. All but the record of usage are the
same few bytes for nearly all requests of a replica: what stands before the record, and the attributes behind it. What
was made of either is kept by its bytes, and of a message without a record all of it.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from extproc.addresses import HostPort, parse_address
from extproc.core import trimmed
from extproc.core.headers import LB_NAMESPACE, SERVED
from extproc.core.usage import token_usage
from extproc.pb import trailers_pb2 as pb
from extproc.pb.ext_proc_pb2 import ProcessingRequest

#: How such a message begins where fields are in the order of their numbers, as Envoy writes them: the tag of
#: `response_trailers`, field 7, a message (protobuf's encoding: 7 << 3 | 2).
FIRST: Final = b"\x3a"
#: Under which name Envoy sends attributes.
FILTER: Final = "envoy.filters.http.ext_proc"
_LB: Final = LB_NAMESPACE.encode()
#: Attributes kept: replicas times attempts times status codes times orders of three fields, as maps have none.
_KEPT: Final = 4096
#: Beginnings kept, of which there are as many as lengths of records; bytes of a message of which anything is kept.
_BEGINNINGS: Final = 256
_SMALL: Final = 1024


class Attributes(NamedTuple):
    """What Envoy says of how a request went: ip:port of the replica, "" for unknown; status and tries, or None."""

    served: str = ""
    status: int | None = None
    attempts: int | None = None

    @property
    def well(self) -> bool:
        """Whether the first replica tried answered, and with no error: the access log would tell nothing more."""
        return self.served != "" and self.status is not None and self.status < 400 and self.attempts == 1


class Told(NamedTuple):
    """A clean end, and the usage with what its record was like (core/usage/token_usage.py)."""

    attributes: Attributes
    usage: token_usage.Told


_NONE: Final = Attributes()
_new = tuple.__new__
#: Bytes from where a record is found up to it: its length is one byte.
_BEFORE: Final = len(token_usage.BEFORE_RECORD) + 1


def read(data: bytes) -> Told | None:
    """What a message tells; None for one that is no clean end, or of an observer. Never raises."""
    size, record = len(data), data.find(token_usage.BEFORE_RECORD) + _BEFORE
    if record <= size <= _SMALL:
        if record < _BEFORE:
            return _repeated(data)
        end = record + data[record - 1]
        if end <= size and _leads(data[:record]) and (told := _follows(data[end:])) is not None:
            return _new(Told, (told, token_usage.in_record(data[record:end])))
    return _opened(data)


@lru_cache(maxsize=_BEGINNINGS)
def _leads(head: bytes) -> bool:
    """Whether so a clean end begins, and nothing but a record of usage, as long as the last byte says, is missing.

    Such a field ends where its length says, whatever is in it: so one of zeros tells.
    """
    packed = head[head.find(token_usage.BEFORE_RECORD) :] + bytes(head[-1])
    if head[-1] > token_usage.SHORT:
        return False
    try:
        message = trimmed.read(pb.ResponseEnd, ProcessingRequest, head + bytes(head[-1]))
    except DecodeError:
        return False
    context = message.metadata_context
    is_end = message.WhichOneof("request") == "response_trailers" and not message.observability_mode
    has_more = message.attributes or context.filter_metadata
    return is_end and not has_more and context.typed_filter_metadata.get(token_usage.NAMESPACE) == packed


@lru_cache(maxsize=_KEPT)
def _follows(tail: bytes) -> Attributes | None:
    """The attributes, if nothing else comes after the metadata: what follows in a message is a message of its own
    (https://protobuf.dev/programming-guides/encoding/#last-one-wins). None for anything else."""
    try:
        message = trimmed.read(pb.ResponseEnd, ProcessingRequest, tail)
    except DecodeError:
        return None
    if message.WhichOneof("request") or message.HasField("metadata_context") or message.observability_mode:
        return None
    raw = message.attributes.get(FILTER)
    return _NONE if raw is None else attributes(raw)


def _opened(data: bytes) -> Told | None:
    """As `read`, of bytes that are not known again."""
    try:
        message = trimmed.read(pb.ResponseEnd, ProcessingRequest, data)
    except DecodeError:
        return None
    if message.WhichOneof("request") != "response_trailers" or message.observability_mode:
        return None
    raw = message.attributes.get(FILTER)
    told = _NONE if raw is None else attributes(raw)
    context = message.metadata_context
    packed = context.typed_filter_metadata.get(token_usage.NAMESPACE)
    # Nearly none has it, and its bytes say so at once.
    if data.find(_LB) >= 0 and (chosen := context.filter_metadata.get(LB_NAMESPACE)):
        told = told._replace(served=told.served or selected(chosen))
    return Told(told, token_usage.NOTHING if packed is None else token_usage.in_packed(packed))


_repeated = lru_cache(maxsize=_KEPT)(_opened)


@lru_cache(maxsize=_KEPT)
def attributes(data: bytes) -> Attributes:
    """A serialized Struct of Envoy's attributes. What makes no sense is unknown."""
    try:
        fields = Struct.FromString(data).fields
    except DecodeError:
        return _NONE
    served, code, tries = (
        fields.get(name) for name in ("upstream.address", "response.code", "upstream.request_attempt_count")
    )
    count = tries.number_value if tries is not None else -1.0
    return Attributes(
        canonical(served.string_value) if served is not None else "",
        status(code.number_value) if code is not None else None,
        int(count) if 0 <= count < 1000 else None,
    )


@lru_cache(maxsize=_KEPT)
def selected(data: bytes) -> str:
    """The endpoint that Envoy's balancing chose last, of a serialized Struct, where it forwards that (endpoint picker
    protocol 004); "" for unknown."""
    try:
        fields = Struct.FromString(data).fields
    except DecodeError:
        return ""
    return canonical(fields[SERVED].string_value) if SERVED in fields else ""


def status(value: str | float) -> int | None:
    """An HTTP status; None for what is none."""
    try:
        number = int(value)
    except (ValueError, OverflowError):  # no number, NaN or infinity
        return None
    return number if 100 <= number <= 599 else None


def canonical(address: str) -> str:
    """ip:port as replicas are named; "" for what is none."""
    try:
        return str(HostPort(*parse_address(address)))
    except ValueError:
        return ""
