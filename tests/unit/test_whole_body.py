"""The body of a message read by hand: the same as protobuf reads, or nothing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.envelope import whole_body
from extproc.pb import ext_proc_pb2 as pb


def message(body: bytes, *, end: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=end))


@pytest.mark.parametrize("size", [1, 121, 122, 127, 128, 129, 16_370, 16_383, 16_384, 16_390, 2_097_200])
@pytest.mark.parametrize("metadata", [False, True])
def test_a_body_of_any_length_is_read(size: int, metadata: bool) -> None:
    given_message = message(b"x" * size)
    if metadata:
        given_message.metadata_context.SetInParent()
    assert whole_body(given_message.SerializeToString()) == b"x" * size


def test_a_message_that_tells_more_is_left_to_protobuf() -> None:
    observed = message(b"{}")
    observed.observability_mode = True
    with_metadata = message(b"{}")
    with_metadata.metadata_context.filter_metadata["a"].SetInParent()
    answer = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"{}", end_of_stream=True))
    for other in (observed, with_metadata, answer, message(b"{}", end=False)):
        assert whole_body(other.SerializeToString()) is None


@given(st.binary(max_size=300), st.binary(max_size=12))
@example(b"", b"")
@example(b'"\x02\n\x00\x10\x01', b"")
@example(b'"\x02\x10\x01', b"")
@example(b'"\x06\n\x02{}\x10\x01', b'"\x02\x10\x01')
def test_whatever_the_bytes_are_it_is_what_protobuf_reads_or_nothing(body: bytes, more: bytes) -> None:
    for data in (body, message(body).SerializeToString() + more):
        found = whole_body(data)
        if found is not None:
            told = pb.ProcessingRequest.FromString(data)
            assert told.request_body.body == found
            assert told.request_body.end_of_stream
            assert not told.observability_mode
