"""Envoy's TokenUsage out of the metadata that ext_proc and the access log bring."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.usage import token_usage
from extproc.core.usage.record import Usage
from extproc.pb import access_log_pb2, ext_proc_pb2

URL = "type.googleapis.com/envoy.data.ai.v3.TokenUsage"
#: protocol 1, model "m", input 100, output 7, total 107, cached 64, status COMPLETE
WIRE = b"\x08\x01\x12\x01m\x1a\x02\x08\x64\x22\x02\x08\x07\x2a\x02\x08\x6b\x32\x04\x0a\x02\x08\x40\x48\x01"
TRUTH = token_usage.Told(Usage(100, 7, 64), token_usage.COMPLETE)


def _request(value: bytes = WIRE, url: str = URL, namespace: str = "envoy.ai.token_usage") -> bytes:
    message = ext_proc_pb2.ProcessingRequest()
    message.response_trailers.SetInParent()
    packed = message.metadata_context.typed_filter_metadata[namespace]
    packed.type_url, packed.value = url, value
    return message.SerializeToString()


def _record(**fields: Any) -> bytes:
    record = ext_proc_pb2.TokenUsage(extraction_status=ext_proc_pb2.TokenUsage.COMPLETE)
    for name, value in fields.items():
        getattr(record, name).value = value
    return record.SerializeToString()


def _told(data: bytes) -> token_usage.Told:
    """What a serialized ProcessingRequest tells; that no bytes make the exchange raise is tested with it."""
    return token_usage.in_metadata(ext_proc_pb2.ProcessingRequest.FromString(data).metadata_context)


def test_a_response_trailers_message_tells_the_usage() -> None:
    assert _told(_request()) == TRUTH


def test_an_entry_of_the_access_log_tells_the_same() -> None:
    entry = access_log_pb2.HTTPAccessLogEntry()
    packed = entry.common_properties.metadata.typed_filter_metadata["envoy.ai.token_usage"]
    packed.type_url, packed.value = URL, WIRE
    assert token_usage.in_log_metadata(entry.common_properties.metadata.SerializeToString()) == TRUTH


def test_no_metadata_and_another_namespace_are_absent() -> None:
    absent = (None, token_usage.ABSENT)
    assert _told(b"") == absent
    assert _told(_request(namespace="envoy.ai.request_info")) == absent
    assert token_usage.in_log_metadata(b"") == absent


@pytest.mark.parametrize(
    "url", ["", "type.googleapis.com/envoy.data.ai.v3.RequestInfo", "envoy.data.ai.v3.TokenUsage", URL + "2"]
)
def test_another_message_is_garbled(url: str) -> None:
    assert _told(_request(url=url)) == (None, token_usage.GARBLED)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (b"", token_usage.GARBLED),
        (b"\x48\x02", token_usage.PARTIAL),
        (b"\x48\x03", token_usage.FAILED),
        (b"\x48\x63", token_usage.GARBLED),
    ],
)
def test_only_a_complete_record_gives_a_usage(status: bytes, verdict: str) -> None:
    assert _told(_request(WIRE[:-2] + status)) == (None, verdict)


def test_counts_that_are_absent_are_unknown_not_zero() -> None:
    assert token_usage.in_any(URL, _record(input_tokens=5)).usage == Usage(5)
    assert token_usage.in_any(URL, _record(output_tokens=5)).usage == Usage(None, 5)
    assert token_usage.in_any(URL, _record()) == (None, token_usage.GARBLED)


def test_a_count_of_zero_is_told_by_an_empty_wrapper() -> None:
    assert token_usage.in_any(URL, _record(input_tokens=5, output_tokens=0)).usage == Usage(5, 0)


@pytest.mark.parametrize("tokens", [2**31 + 5, 10**12, 2**64 - 1])
def test_a_record_with_a_count_beyond_belief_is_garbled_as_a_whole(tokens: int) -> None:
    told = token_usage.in_any(URL, _record(input_tokens=tokens, output_tokens=7))
    assert told == (None, token_usage.GARBLED)


def test_more_cached_than_sent_is_garbled() -> None:
    wire = b"\x1a\x02\x08\x64\x32\x04\x0a\x02\x08\x65\x48\x01"  # input 100, cached 101
    assert token_usage.in_any(URL, wire) == (None, token_usage.GARBLED)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_without_raising(junk: bytes) -> None:
    for told in (_told(_request(junk)), token_usage.in_any(URL, junk)):
        assert (told.usage is not None) == (told.verdict == token_usage.COMPLETE)


@given(st.integers(0, len(WIRE) - 1), st.integers(0, 255))
def test_a_changed_byte_never_raises(at: int, byte: int) -> None:
    told = _told(_request(WIRE[:at] + bytes([byte]) + WIRE[at + 1 :]))
    assert (told.usage is not None) == (told.verdict == token_usage.COMPLETE)


@given(st.integers(0, len(WIRE) - 1))
def test_a_record_cut_short_gives_nothing(length: int) -> None:
    assert _told(_request(WIRE[:length])).usage is None
