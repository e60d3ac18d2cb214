"""A request's headers told apart by their bytes: as protobuf would read them, however they are written."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import headers
from extproc.core.opening import Opening
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb.opening_pb2 import RequestStart

NAMES = (
    ":path", ":method", "content-encoding", "x-request-id", "traceparent", "x-tenant", headers.SELECTION,
    "x-gateway-destination-endpoint", "x-kvsteer-team", "x-mirror-cluster", "user-agent", "x-" + "n" * 130,
)  # fmt: skip
LENGTHS = (0, 1, 2, 126, 127, 128, 129, 300)
values = st.binary(max_size=8) | st.sampled_from(LENGTHS).map(lambda length: b"v" * length)
given_headers = st.lists(st.tuples(st.sampled_from(NAMES), values, st.booleans()), max_size=8)


def opened(message: pb.ProcessingRequest, *, selects: bool = False, wanted: tuple[str, ...] = ()) -> Opening:
    start = RequestStart.FromString(message.SerializeToString())
    return Opening(start, selects=selects, wanted=frozenset(wanted))


def with_headers(*pairs: tuple[str, bytes, bool]) -> pb.ProcessingRequest:
    """`raw` tells in which of a header's two fields its value is."""
    message = pb.ProcessingRequest()
    for name, value, raw in pairs:
        made = message.request_headers.headers.headers.add(key=name)
        if raw:
            made.raw_value = value
        else:
            made.value = value.decode("latin-1")
    return message


@given(given_headers)
def test_headers_are_read_as_protobuf_reads_them(pairs: list[tuple[str, bytes, bool]]) -> None:
    message = with_headers(*pairs)
    told: dict[str, str] = {}
    owned, traces = [], set()
    for header in message.request_headers.headers.headers:
        told[header.key] = header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value
        if header.key == "traceparent":
            traces |= {told[header.key][:64]} - {""}
        if headers.is_owned(header.key):
            owned.append(header.key)
    opening = opened(message, wanted=("x-tenant", "x-kvsteer-team"))
    assert opening.path == told.get(":path", "")
    assert opening.coding == told.get("content-encoding", "")
    assert opening.trace == (traces.pop() if len(traces) == 1 else "several" if traces else "")
    assert opening.request_id == (headers.plain_id(told.get("x-request-id", "")) or "")
    assert list(opening.owned) == owned
    assert opening.kept == {name: told[name] for name in ("x-tenant", "x-kvsteer-team") if name in told}
    assert opening.only == ()


def test_endpoints_that_clients_name_count_only_where_they_may_name_them() -> None:
    message = with_headers((headers.SELECTION, b"10.0.0.1:80", True))
    assert opened(message, wanted=(headers.SELECTION,)).only == ()
    (named,) = opened(message, selects=True).only
    assert "10.0.0.1:80" in named
    assert "10.0.0.2:80" not in named
    assert opened(message, selects=True).owned == opened(message).owned == (headers.SELECTION,)


def test_a_header_with_its_value_before_its_name_is_read_all_the_same() -> None:
    # value (field 3) "/a", then key (field 1) ":path"
    start = RequestStart()
    start.request_headers.headers.headers.append(b"\x1a\x02/a" + b"\x0a\x05:path")
    assert Opening(start).path == "/a"


@pytest.mark.parametrize("header", [b"\x0a", b"\x0a\x05:path\x1a\x09/a", b"\x0a\x05:path\x1a", b"\xff"])
def test_bytes_that_are_no_header_are_refused(header: bytes) -> None:
    start = RequestStart()
    start.request_headers.headers.headers.append(header)
    with pytest.raises(DecodeError):
        Opening(start)


def test_modes_are_those_told_and_buffered_where_none_are() -> None:
    mode = pb.ProcessingMode
    assert (opened(with_headers()).mode, opened(with_headers()).response_mode) == (mode.BUFFERED, mode.NONE)
    told = with_headers()
    told.protocol_config.SetInParent()  # it is there and says nothing: NONE is 0
    assert (opened(told).mode, opened(told).response_mode) == (mode.NONE, mode.NONE)
    told.protocol_config.request_body_mode = mode.FULL_DUPLEX_STREAMED
    told.protocol_config.response_body_mode = mode.STREAMED
    assert (opened(told).mode, opened(told).response_mode) == (mode.FULL_DUPLEX_STREAMED, mode.STREAMED)
