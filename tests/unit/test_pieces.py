"""Pieces of bodies as bytes are what protobuf itself would write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import pieces
from extproc.pb import ext_proc_pb2 as pb


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 16_384, 61_990, 62_000])
@given(end=st.booleans(), without_message=st.booleans(), compressed=st.booleans())
def test_a_piece_of_a_response_is_to_the_byte_what_protobuf_writes(
    size: int, end: bool, without_message: bool, compressed: bool
) -> None:
    wanted = pb.ProcessingResponse()
    streamed = wanted.response_body.response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = b"x" * size, end
    streamed.end_of_stream_without_message, streamed.grpc_message_compressed = without_message, compressed
    made = pieces.of_response(b"x" * size, end=end, without_message=without_message, compressed=compressed)
    assert isinstance(made, bytes)
    assert pb.ProcessingResponse.FromString(made) == wanted
    if size:  # protobuf leaves an empty body out
        assert made == wanted.SerializeToString()


@pytest.mark.parametrize(("size", "count"), [(62_001, 2), (124_000, 2), (124_001, 3)])
def test_a_larger_one_goes_in_several_and_its_flags_with_the_last(size: int, count: int) -> None:
    made = pieces.of_response(b"y" * size, end=True, compressed=True)
    parts = [pb.ProcessingResponse.FromString(part) for part in made if isinstance(part, bytes)]
    told = [part.response_body.response.body_mutation.streamed_response for part in parts]
    assert [len(part.body) for part in told] == [62_000] * (count - 1) + [size - 62_000 * (count - 1)]
    assert [(part.end_of_stream, part.grpc_message_compressed) for part in told] == [(False, False)] * (
        count - 1
    ) + [(True, True)]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (62_000, 1), (62_001, 2)])
def test_a_requests_body_goes_on_in_the_same_way(size: int, count: int, ends: bool) -> None:
    told = [pb.ProcessingResponse.FromString(part) for part in pieces.of_request(b"z" * size, ends=ends)]
    streamed = [part.request_body.response.body_mutation.streamed_response for part in told]
    assert b"".join(part.body for part in streamed) == b"z" * size
    assert [part.end_of_stream for part in streamed] == [False] * (count - 1) + [ends]


def test_an_empty_body_is_told_only_as_an_end() -> None:
    assert list(pieces.of_request(b"", ends=False)) == []
    (only,) = pieces.of_request(b"", ends=True)
    assert pb.ProcessingResponse.FromString(
        only
    ).request_body.response.body_mutation.streamed_response.end_of_stream
