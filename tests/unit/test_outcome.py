"""Ends of requests out of Envoy's access log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.outcome import Ended, read
from extproc.core.usage.record import Usage
from extproc.pb import access_log_pb2 as pb
from extproc.pb import log_entry_pb2
from extproc.pb.ext_proc_pb2 import TokenUsage


def message(status: int = 200, host: str = "10.0.0.1", retry_after: str = "", **flags: bool) -> bytes:
    made = pb.StreamAccessLogsMessage()
    entry = made.http_logs.log_entry.add()
    entry.common_properties.upstream_remote_address.socket_address.address = host
    entry.common_properties.upstream_remote_address.socket_address.port_value = 8000
    for name, value in flags.items():
        setattr(entry.common_properties.response_flags, name, value)
    entry.request.request_id = "id-1"
    entry.response.response_code.value = status
    if retry_after:
        entry.response.response_headers["retry-after"] = retry_after
    return made.SerializeToString()


def test_an_answered_request() -> None:
    assert list(read(message(200))) == [Ended("10.0.0.1:8000", "id-1", 200, None, False, code=200)]


def test_an_ipv6_replica_has_brackets() -> None:
    assert next(read(message(host="::1"))).replica == "[::1]:8000"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("", None), ("Wed, 21 Oct", 0.0), ("-1", 0.0), ("9" * 400, 1e6)]
)
def test_retry_after_is_read_as_seconds_and_anything_else_as_zero(text: str, seconds: float | None) -> None:
    assert next(read(message(429, retry_after=text))).retry_after == seconds


@pytest.mark.parametrize(
    "flag",
    [
        "upstream_connection_failure",
        "upstream_remote_reset",
        "upstream_connection_termination",
        "upstream_request_timeout",
    ],
)
def test_a_broken_exchange_has_no_status_whatever_the_client_was_told(flag: str) -> None:
    ended = next(read(message(503, **{flag: True})))
    assert (ended.status, ended.by_client) == (None, False)


def test_a_client_that_left_says_nothing_of_the_replica() -> None:
    assert next(read(message(200, downstream_connection_termination=True))).by_client


def test_a_request_that_reached_no_replica_says_so_and_nothing_of_any_replica() -> None:
    made = pb.StreamAccessLogsMessage()
    made.http_logs.log_entry.add().response.response_code.value = 503
    ended = next(read(made.SerializeToString()))
    assert (ended.replica, ended.code, ended.by_client, ended.silent) == ("", 503, False, True)


def cut(status: int, details: str = "", *, began: bool = True, done: bool = False, **flags: bool) -> Ended:
    """An entry with Envoy's times: of an answer that began, and that came to its end or not."""
    made = pb.StreamAccessLogsMessage.FromString(message(status, "10.0.0.1", "", **flags))
    entry = made.http_logs.log_entry[0]
    entry.response.response_code_details = details
    if began:
        entry.common_properties.time_to_first_downstream_tx_byte.nanos = 1
    if done:
        entry.common_properties.time_to_last_downstream_tx_byte.nanos = 2
    return next(read(made.SerializeToString()))


@pytest.mark.parametrize(
    ("status", "details", "flags"),
    [
        (200, "http2.remote_reset", {"downstream_remote_reset": True}),  # an error code but 0
        (0, "http2.remote_reset", {"downstream_remote_reset": True}),  # before the headers
        (200, "http2.remote_reset", {}),
        (200, "downstream_remote_disconnect", {}),
        (200, "via_upstream", {}),  # error code 0
        (0, "", {}),  # error code 0 before the headers
    ],
)
def test_an_http2_client_that_cancels_left_whatever_its_error_code(
    status: int, details: str, flags: dict[str, bool]
) -> None:
    ended = cut(status, details, began=status != 0, **flags)
    assert (ended.by_client, ended.unsure, ended.silent) == (True, False, True)


def test_an_answer_whose_last_byte_was_sent_is_whole() -> None:
    ended = cut(200, "via_upstream", done=True)
    assert (ended.by_client, ended.unsure, ended.silent) == (False, False, False)


def test_a_cut_for_a_reason_that_is_not_known_is_nobodys() -> None:
    ended = cut(200, "something_new")
    assert (ended.by_client, ended.unsure, ended.silent) == (False, True, True)


def test_a_replica_that_breaks_off_is_not_excused_by_a_client_that_leaves_then() -> None:
    ended = cut(
        200, "upstream_reset_after_response_started", upstream_remote_reset=True, downstream_remote_reset=True
    )
    assert (ended.status, ended.code, ended.by_client, ended.silent) == (None, 200, False, False)


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    assert all(isinstance(ended, Ended) for ended in read(data))


def test_a_chunked_response_that_breaks_off_is_the_replicas_fault() -> None:
    ended = next(read(message(200, upstream_protocol_error=True)))
    assert (ended.status, ended.limited) == (None, False)


def test_envoys_limit_on_the_whole_exchange_has_no_flag_and_is_told_by_its_details() -> None:
    made = pb.StreamAccessLogsMessage.FromString(message(200))
    made.http_logs.log_entry[0].response.response_code_details = "max_duration_timeout"
    ended = next(read(made.SerializeToString()))
    assert (ended.status, ended.limited) == (200, True)


@pytest.mark.parametrize(
    "flag", ["stream_idle_timeout", "duration_timeout", "upstream_max_stream_duration_reached"]
)
def test_what_envoys_own_clock_ended_is_limited(flag: str) -> None:
    ended = next(read(message(504, "10.0.0.1", "", **{flag: True})))
    assert (ended.status, ended.limited) == (504, True)


def test_usage_comes_with_the_entry() -> None:
    made = pb.StreamAccessLogsMessage.FromString(message(200))
    record = TokenUsage(extraction_status=TokenUsage.COMPLETE)
    record.input_tokens.value, record.output_tokens.value = 100, 7
    packed = made.http_logs.log_entry[0].common_properties.metadata.typed_filter_metadata[
        "envoy.ai.token_usage"
    ]
    packed.type_url, packed.value = (
        "type.googleapis.com/envoy.data.ai.v3.TokenUsage",
        record.SerializeToString(),
    )
    ended = next(read(made.SerializeToString()))
    assert (ended.usage, ended.verdict) == (Usage(100, 7, None), "complete")


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_hostile_record_in_an_entry_raises_nothing_and_gives_no_usage(kind: bytes, value: bytes) -> None:
    made = pb.StreamAccessLogsMessage.FromString(message(200))
    packed = made.http_logs.log_entry[0].common_properties.metadata.typed_filter_metadata[
        "envoy.ai.token_usage"
    ]
    packed.type_url, packed.value = kind.decode("latin-1"), value
    ended = next(read(made.SerializeToString()))
    assert (ended.usage, ended.verdict) == (None, "garbled")


def test_parts_that_are_no_messages_count_as_not_there() -> None:
    """A field that should hold a message holds other bytes: 08, a field's number without its value."""
    made = log_entry_pb2.LogMessage()
    entry = made.http_logs.log_entry.add()
    entry.request.request_id = "id-1"
    common = entry.common_properties
    common.upstream_remote_address = common.response_flags = entry.response.response_code = b"\x08"
    common.metadata = b"\x12\xffenvoy.ai.token_usage"
    ended = next(read(made.SerializeToString()))
    assert (ended.replica, ended.code, ended.usage, ended.verdict) == ("", None, None, "garbled")
