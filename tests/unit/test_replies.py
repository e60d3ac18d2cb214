"""The bytes of a steering answer, read back: made by cutting a message, they are what building it would give."""

import pytest

from extproc.core.replies import steer
from extproc.pb import ext_proc_pb2 as pb

DESTINATION = "x-gateway-destination-endpoint"
_A, _AB = "10.0.0.1:8000", "10.0.0.1:8000,10.0.0.22:443"


@pytest.mark.parametrize("destination", [_A, _AB, "[2001:db8::1]:65535"])
@pytest.mark.parametrize("hit", [0, 2, 10, 1234567])
@pytest.mark.parametrize("request_id", ["a", "kvsteer-18", "x" * 128])
def test_values_of_every_length_stand_where_they_belong(destination: str, hit: int, request_id: str) -> None:
    message = pb.ProcessingResponse.FromString(steer(destination, hit, request_id, at_headers=False))
    common = message.request_body.response
    told = {option.header.key: option.header.raw_value for option in common.header_mutation.set_headers}
    assert told == {
        DESTINATION: destination.encode(),
        "x-kvsteer-expected-hit": str(hit).encode(),
        "x-kvsteer-request-id": request_id.encode(),
    }
    overwrites = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert {option.append_action for option in common.header_mutation.set_headers} == {overwrites}
    assert not common.clear_route_cache
    metadata = message.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert {name: value.string_value for name, value in metadata.items()} == {DESTINATION: destination}


def test_answers_of_one_shape_share_no_value() -> None:
    first = steer(_A, 12, "one", at_headers=False)
    second = steer("10.0.0.9:8000", 34, "two", at_headers=False)
    assert len(first) == len(second)
    assert b"10.0.0.9" not in first
    assert (second.count(b"10.0.0.9:8000"), second.count(b"34"), second.count(b"two")) == (2, 1, 1)


def test_at_headers_the_clients_copies_go_beside_those_that_always_do_and_the_pool_is_told() -> None:
    answer = steer(_A, 0, "id", at_headers=True, owned=("x-gateway-mine",), pool="big", mark="7/1/gw")
    message = pb.ProcessingResponse.FromString(answer)
    mutation = message.request_headers.response.header_mutation
    assert mutation.remove_headers[-1] == "x-gateway-mine"
    assert {DESTINATION, "x-gateway-pool"} < set(mutation.remove_headers)
    pools = [
        option.header.raw_value for option in mutation.set_headers if option.header.key == "x-gateway-pool"
    ]
    assert pools == [b"big"]
    assert message.request_headers.response.clear_route_cache
    own = message.dynamic_metadata.fields["kvsteer"].struct_value.fields
    assert own["exchange"].string_value == "7/1/gw"
    assert "envoy.lb" in message.dynamic_metadata.fields
