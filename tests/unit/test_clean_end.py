"""The message of a response's clean end, read from its bytes: the same as read from the whole message."""

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import clean_end
from extproc.core.clean_end import Attributes
from extproc.core.headers import LB_NAMESPACE, SERVED
from extproc.core.usage import token_usage
from extproc.core.usage.record import Usage
from extproc.pb import ext_proc_pb2 as pb

#: As Envoy 1.40 sends it: 506 tokens in, 2 out, 496 cached; 10.0.0.7:8000 answered 200 at the second try.
SENT = (
    b":\x02\n\x00Bq\x12o\n\x14envoy.ai.token_usage\x12W\n/type.googleapis.com/envoy.data.ai.v3.TokenUsage"
    b'\x12$\x08\x01\x12\x04demo\x1a\x03\x08\xfa\x03"\x02\x08\x02*\x03\x08\xfc\x032\x05\n\x03\x08\xf0\x03'
    b"B\x03\x08\xfc\x03H\x01J\x8d\x01\n\x1benvoy.filters.http.ext_proc\x12n\n\x1a\n\rresponse.code\x12\t\x11"
    b"\x00\x00\x00\x00\x00\x00i@\n+\n\x1eupstream.request_attempt_count\x12\t\x11\x00\x00\x00\x00\x00\x00\x00@"
    b"\n#\n\x10upstream.address\x12\x0f\x1a\x0d10.0.0.7:8000"
)


def test_what_envoy_sends_is_read() -> None:
    told = clean_end.read(SENT)
    assert told is not None
    assert told.attributes == Attributes("10.0.0.7:8000", 200, 2)
    assert told.usage == (Usage(506, 2, 496), token_usage.COMPLETE)


def test_it_says_the_same_as_the_whole_message() -> None:
    whole = pb.ProcessingRequest.FromString(SENT)
    assert whole.attributes[clean_end.FILTER].fields["upstream.address"].string_value == "10.0.0.7:8000"
    assert token_usage.in_metadata(whole.metadata_context) == clean_end.read(SENT).usage  # type: ignore[union-attr]


def test_an_end_without_anything_tells_nothing() -> None:
    told = clean_end.read(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()).SerializeToString())
    assert told == (Attributes("", None, None), (None, token_usage.ABSENT))


def test_the_endpoint_that_balancing_chose_counts_where_no_attribute_says_it() -> None:
    message = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    message.metadata_context.filter_metadata[LB_NAMESPACE].update({SERVED: "10.0.0.9:80"})
    told = clean_end.read(message.SerializeToString())
    assert told is not None
    assert told.attributes.served == "10.0.0.9:80"


@pytest.mark.parametrize("kind", ["request_headers", "response_headers", "response_body", "request_trailers"])
def test_other_messages_are_none(kind: str) -> None:
    message = pb.ProcessingRequest()
    getattr(message, kind).SetInParent()
    assert clean_end.read(message.SerializeToString()) is None


def test_of_two_kinds_in_one_message_the_last_counts() -> None:
    body = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"x")).SerializeToString()
    assert clean_end.read(SENT + body) is None
    assert clean_end.read(body + SENT) == clean_end.read(SENT)


def test_messages_of_an_observer_are_none() -> None:
    assert clean_end.read(SENT + b"\x50\x01") is None  # field 10, true


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    clean_end.read(data)
    clean_end.read(clean_end.FIRST + data)
    clean_end.attributes(data)
    clean_end.selected(data)
    token_usage.in_packed(data)


@given(st.integers(0, len(SENT) - 1), st.integers(0, 255))
def test_a_broken_byte_gives_a_usage_that_can_be_or_none(at: int, byte: int) -> None:
    told = clean_end.read(SENT[:at] + bytes([byte]) + SENT[at + 1 :])
    if told is not None and told.usage.usage is not None:
        usage = told.usage.usage
        assert usage.input is None or usage.input > 0
        assert usage.cached is None or usage.input is None or 0 <= usage.cached <= usage.input


_RECORD = SENT.index(b"\x08\x01\x12\x04demo")
_AFTER = SENT.index(b"J\x8d\x01")


@given(st.binary(max_size=140))
def test_a_record_of_any_bytes_says_in_a_known_message_what_it_says_in_a_new_one(record: bytes) -> None:
    message = pb.ProcessingRequest.FromString(SENT)
    packed = message.metadata_context.typed_filter_metadata[token_usage.NAMESPACE]
    packed.value = record
    for data in (
        message.SerializeToString(),
        SENT[: _RECORD - 1] + bytes([len(record)]) + record + SENT[_AFTER:],
    ):
        assert clean_end.read(data) == clean_end._opened(data)
    assert clean_end.read(message.SerializeToString()) == (
        Attributes("10.0.0.7:8000", 200, 2),
        token_usage.in_any(packed.type_url, record),
    )


@given(st.integers(0, len(SENT) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 3))
def test_whatever_is_changed_it_is_read_as_if_nothing_were_known(at: int, new: bytes, old: int) -> None:
    data = SENT[:at] + new + SENT[at + old :]
    assert clean_end.read(SENT) is not None
    assert clean_end.read(data) == clean_end._opened(data)
    assert clean_end.read(data) == clean_end._opened(data)


@pytest.mark.parametrize(
    "added",
    [
        pb.ProcessingRequest(observability_mode=True),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=b"x")),
        pb.ProcessingRequest(
            metadata_context=pb.Metadata(typed_filter_metadata={token_usage.NAMESPACE: Any()})
        ),
        pb.ProcessingRequest(attributes={clean_end.FILTER: Struct()}),
        pb.ProcessingRequest(response_trailers=pb.HttpTrailers()),
    ],
    ids=["observer", "another kind", "another record", "other attributes", "the same kind"],
)
def test_what_comes_before_or_after_counts_also_in_a_message_that_is_known(
    added: pb.ProcessingRequest,
) -> None:
    more = added.SerializeToString()
    for data in (SENT + more, more + SENT):
        assert clean_end.read(data) == clean_end._opened(data)


def test_a_balancers_choice_counts_beside_a_record() -> None:
    message = pb.ProcessingRequest.FromString(SENT)
    message.attributes.clear()
    message.metadata_context.filter_metadata[LB_NAMESPACE].update({SERVED: "10.0.0.9:80"})
    for _ in range(2):
        told = clean_end.read(message.SerializeToString())
        assert told == (Attributes("10.0.0.9:80", None, None), (Usage(506, 2, 496), token_usage.COMPLETE))
