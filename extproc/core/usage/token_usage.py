"""Usage out of the record that Envoy's ai_protocol_manager leaves in the typed metadata of a request.

The record is envoy.data.ai.v3.TokenUsage, in a google.protobuf.Any under `NAMESPACE`. It comes with the
response_trailers message of ext_proc and with entries of the access log. Its counts already mean what ours do:
cached tokens are part of the input, reasoning of the output, whatever the engine's API.
"""

from typing import Final, NamedTuple

from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message

from extproc.core.usage.record import MOST_TOKENS, Usage, checked
from extproc.pb import access_log_pb2, ext_proc_pb2

#: Where Envoy puts the record unless its configuration says otherwise.
NAMESPACE: Final = "envoy.ai.token_usage"
#: Full name of the message; a type URL ends with it, after a slash (google/protobuf/any.proto).
_MESSAGE = "/envoy.data.ai.v3.TokenUsage"
#: As Envoy writes it, and what so stands in an Any before a record's length (fields 1 and 2, each with a length).
_TYPE_URL = "type.googleapis.com" + _MESSAGE
BEFORE_RECORD: Final = bytes((1 << 3 | 2, len(_TYPE_URL))) + _TYPE_URL.encode() + bytes((2 << 3 | 2,))
#: Longest record whose length takes one byte.
SHORT: Final = 127

# What a record was like: a closed set that labels metrics.
COMPLETE: Final = "complete"  # the only one that gives a usage
ABSENT: Final = "absent"
PARTIAL: Final = "partial"  # Envoy lost some of it: its counts may be stale
FAILED: Final = "failed"  # Envoy saw a usage and could not read it
GARBLED: Final = "garbled"  # not such a record, one without a count, or with one that is not to be believed

_STATUS = {
    ext_proc_pb2.TokenUsage.COMPLETE: COMPLETE,
    ext_proc_pb2.TokenUsage.PARTIAL: PARTIAL,
    ext_proc_pb2.TokenUsage.FAILED: FAILED,
}


class Told(NamedTuple):
    """What was found: a usage with `COMPLETE`, None with every other word of this module."""

    usage: Usage | None
    verdict: str


NOTHING: Final = Told(None, ABSENT)
_GARBLED = Told(None, GARBLED)
_new = tuple.__new__


def in_log_metadata(data: bytes) -> Told:
    """The record in the serialized metadata of an entry of the access log. Never raises for what a peer sends."""
    try:
        return in_metadata(access_log_pb2.Metadata.FromString(data))
    except DecodeError:
        return _GARBLED


def in_metadata(metadata: ext_proc_pb2.Metadata | access_log_pb2.Metadata) -> Told:
    """The record in a request's metadata, as ext_proc or the access log has it."""
    typed = metadata.typed_filter_metadata
    if NAMESPACE not in typed:
        return NOTHING
    packed = typed[NAMESPACE]
    return in_any(packed.type_url, packed.value)


def in_any(type_url: str, value: bytes) -> Told:
    """The record in the two parts of a google.protobuf.Any. Never raises for what a peer sends."""
    return in_record(value) if type_url.endswith(_MESSAGE) else _GARBLED


def in_packed(data: bytes) -> Told:
    """The record in a serialized google.protobuf.Any. Never raises for what a peer sends."""
    try:
        packed = Any.FromString(data)
    except DecodeError:
        return _GARBLED
    return in_any(packed.type_url, packed.value)


def in_record(data: bytes) -> Told:
    """What a serialized record says. Never raises for what a peer sends."""
    try:
        record = ext_proc_pb2.TokenUsage.FromString(data)
    except DecodeError:
        return _GARBLED
    verdict = _STATUS.get(record.extraction_status, GARBLED)
    if verdict != COMPLETE:
        return Told(None, verdict)
    # What is not there reads as 0, so only of a 0 it is to be asked.
    tokens_in = record.input_tokens.value or _zero(record, "input_tokens")
    tokens_out = record.output_tokens.value or _zero(record, "output_tokens")
    details = record.input_token_details
    cached = details.cached_tokens.value or _zero(details, "cached_tokens")
    if tokens_in and tokens_out and cached is not None and cached <= tokens_in <= MOST_TOKENS >= tokens_out:
        # As `_make` does, at half its cost, and with no more to be doubted, as of nearly all.
        return _new(Told, (_new(Usage, (tokens_in, tokens_out, cached, None, 0)), COMPLETE))
    usage = checked(tokens_in, tokens_out, cached)
    return judged(usage) if usage.known else _GARBLED


def _zero(message: Message, name: str) -> int | None:
    """0 for a field that is there, None for one that is not."""
    return 0 if message.HasField(name) else None


def judged(usage: Usage | None) -> Told:
    """What was read to its end: nothing of it is taken when one of its counts is not to be believed."""
    if usage is not None and usage.odd:
        return _GARBLED
    return Told(usage, COMPLETE) if usage is not None and usage.known else NOTHING
