"""Messages of which only part is opened say what the whole message says, however they are written.

Each is made of parts in any order, repeated, with unknown fields between, of which protobuf makes one message (its
encoding's "last one wins"). What is read of it must be what is read of that one message as protobuf writes it.
"""

import random
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import clean_end, outcome
from extproc.core.exchange import Exchange
from extproc.core.headers import SUBSET, SUBSET_NAMESPACE
from extproc.core.pieces import varint
from extproc.core.pool import Pool
from extproc.core.reply import ALL_TOLD
from extproc.core.states import BODY, OVER
from extproc.core.steering import Rules, Steering
from extproc.core.traits import Traits
from extproc.core.usage import token_usage
from extproc.pb import access_log_pb2 as log
from extproc.pb import ext_proc_pb2 as pb
from tests.unit.messages import Mode, answer, chat, mutation, request_body, request_headers

OWNED = "x-prefiller-host-port"


def field(number: int, value: bytes) -> bytes:
    """A field with a length: its tag is number << 3 | 2."""
    return varint(number << 3 | 2) + varint(len(value)) + value


#: Fields that nobody has: 200 with a length, 77 a number, 99 of four bytes.
UNKNOWN = [field(200, b"abc"), varint(77 << 3) + b"\x05", varint(99 << 3 | 5) + b"abcd"]


def joined(*parts: bytes) -> st.SearchStrategy[bytes]:
    """Some of these, in any order, any of them again, with unknown fields between."""
    return st.lists(st.sampled_from([*parts, *parts, *UNKNOWN]), max_size=6).map(b"".join)


def nested(number: int, parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A message field, once or twice, or none."""
    return st.lists(parts.map(lambda part: field(number, part)), max_size=2).map(b"".join)


def mixed(*fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """These fields in any order, unknown ones between."""
    every = [*fields, st.sampled_from([b"", *UNKNOWN])]
    return st.permutations(every).flatmap(lambda order: st.tuples(*order)).map(b"".join)


def steering(*, spares_log: bool = False) -> Steering:
    pool = Pool("default", traits=Traits(), now=0.0)
    for number in (1, 2, 3):
        pool.join(f"10.0.0.{number}:8000", 0.0)
    return Steering([pool], Rules(spares_log=spares_log), random.Random(1))


def begun(data: bytes, mind: Steering | None = None) -> Exchange:
    exchange = Exchange(mind or steering())
    exchange.receive(data, 1.0)
    return exchange


def told(exchange: Exchange) -> list[Any]:
    """All that was read of a first message."""
    opening = exchange.opening
    lists = [[place in subset for place in PLACES] for subset in opening.only]
    names = ("alone", "coding", "mode", "owned", "path", "response_mode", "trace")
    name = exchange.request_id
    return [
        "" if name.startswith("kvsteer-") else name,
        exchange.state,
        exchange.outcome,
        lists,
        *(getattr(opening, name) for name in names),
    ]


PLACES = ("10.0.0.1:8000", "10.0.0.2:8000")


def hint(place: str) -> bytes:
    context = pb.Metadata()
    context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: place})
    return context.SerializeToString()


header = joined(
    field(1, b":path"), field(1, b"x-request-id"), field(1, OWNED.encode()), field(1, b"foo"), field(1, b"f\xff"),
    field(3, b"/v1/chat/completions"), field(3, b"a"), field(3, b""), field(3, b"l" * 200), field(2, b"b"),
)  # fmt: skip
usual = st.sampled_from([field(1, b":path") + field(3, b"/a"), field(1, b"x-request-id") + field(3, b"rid")])
header_map = st.lists(usual | usual | header, max_size=4).map(
    lambda every: b"".join(field(1, one) for one in every)
)
request = mixed(nested(1, header_map), st.sampled_from([b"", b"\x18\x00", b"\x18\x01"]))
first_message = mixed(
    nested(2, request),
    nested(8, st.sampled_from([b"", *map(hint, PLACES)])),
    nested(11, joined(b"\x08\x02", b"\x10\x01", b"\x08\x04", b"\x10\x00")),
    st.sampled_from([b"", b"", b"", field(4, b""), b"\x50\x00"]),
)


@given(st.lists(first_message, min_size=1, max_size=3))
def test_a_first_message_is_read_as_protobuf_reads_it_known_again_or_not(messages: list[bytes]) -> None:
    mind = steering()
    for data in messages:
        try:
            written = pb.ProcessingRequest.FromString(data).SerializeToString()
        except DecodeError:  # a name that is no UTF-8
            assert begun(data, mind).state == OVER
        else:
            assert told(begun(data, mind)) == told(begun(written))


def test_a_limit_to_replicas_stays_where_empty_metadata_follows() -> None:
    for second in (b"", *UNKNOWN):
        exchange = begun(request_headers() + field(8, hint(PLACES[0])) + field(8, second))
        (only,) = exchange.opening.only
        assert [place in only for place in PLACES] == [True, False]


def test_modes_told_in_two_messages_are_both_kept() -> None:
    message = pb.ProcessingRequest.FromString(request_headers())
    message.ClearField("protocol_config")
    # protocol_config { request_body_mode: FULL_DUPLEX_STREAMED }, then one { response_body_mode: STREAMED }
    exchange = begun(message.SerializeToString() + field(11, b"\x08\x04") + field(11, b"\x10\x01"))
    assert (exchange.opening.mode, exchange.opening.response_mode) == (
        Mode.FULL_DUPLEX_STREAMED,
        Mode.STREAMED,
    )


def with_header(header: bytes) -> bytes:
    """A request with one header more, as these bytes."""
    return field(2, field(1, field(1, header))) + request_headers()


@pytest.mark.parametrize("value", [b"1.2.3.4:5", b"l" * 300])
@pytest.mark.parametrize("shown", ["foo", "user-agent", ":path"])
def test_of_a_header_with_two_names_the_last_counts(shown: str, value: bytes) -> None:
    header = field(1, shown.encode()) + field(3, value) + field(1, OWNED.encode())
    exchange = Exchange(steering())
    reply = answer(exchange.receive(with_header(header), 1.0)[0])
    assert OWNED in mutation(reply).remove_headers
    last = begun(with_header(field(1, OWNED.encode()) + field(3, value) + field(1, shown.encode())))
    assert last.opening.owned == ()


def test_a_name_that_is_no_utf8_is_refused_as_protobuf_refuses_it() -> None:
    assert begun(with_header(field(1, b"fo\xff") + field(3, b"x"))).state == OVER
    assert begun(with_header(field(1, "fö".encode()) + field(3, b"x"))).state == BODY


def struct(**values: Any) -> bytes:
    made = pb.Metadata()
    made.filter_metadata["x"].update({name.replace("__", "."): value for name, value in values.items()})
    return made.filter_metadata["x"].SerializeToString()


RECORD = b"\x08\x01\x1a\x02\x08\x64\x22\x02\x08\x07\x48\x01"  # 100 tokens in, 7 out, COMPLETE
URL = b"type.googleapis.com/envoy.data.ai.v3.TokenUsage"
any_record = joined(field(1, URL), field(2, RECORD), field(2, b"\x48\x02"), field(1, b"other"))
whole_record = st.just(field(1, URL) + field(2, RECORD))


def entry(key: str, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Of a map: its key, and its value once or twice."""
    key_field = field(1, key.encode())
    return st.lists(values.map(lambda value: field(2, value)), min_size=1, max_size=2).map(
        lambda parts: key_field + b"".join(parts)
    )


attributes = st.sampled_from(
    [struct(upstream__address="10.0.0.7:8000"), struct(response__code=200), struct(response__code=503), b""]
)
usage = mixed(nested(2, entry(token_usage.NAMESPACE, any_record | whole_record)))
end_message = mixed(
    st.just(field(7, b"")), nested(9, entry(clean_end.FILTER, attributes)), nested(8, usage),
    st.sampled_from([b"", field(6, b""), b"\x50\x00"]),
)  # fmt: skip


def as_written(kind: type[Message], data: bytes) -> bytes:
    """The one message that these bytes are."""
    written: bytes = kind.FromString(data).SerializeToString()
    return written


@given(end_message)
def test_a_clean_end_is_read_as_protobuf_reads_it(data: bytes) -> None:
    whole = pb.ProcessingRequest.FromString(data)
    read = clean_end.read(data)
    assert read == clean_end.read(whole.SerializeToString())
    if read is not None:
        assert read.usage == token_usage.in_metadata(whole.metadata_context)
        fields = whole.attributes[clean_end.FILTER].fields
        assert read.attributes.served == fields["upstream.address"].string_value
        assert (read.attributes.status or 0) == fields["response.code"].number_value


@given(any_record | whole_record)
def test_a_record_is_read_as_protobuf_reads_it(data: bytes) -> None:
    packed = Packed.FromString(data)
    assert token_usage.in_packed(data) == token_usage.in_any(packed.type_url, packed.value)


def test_a_record_that_stops_before_its_length_is_garbled() -> None:
    assert token_usage.in_packed(field(1, URL) + b"\x12").verdict == token_usage.GARBLED


address = joined(field(1, field(2, b"10.0.0.7")), field(1, b"\x18\x50"), field(1, b"\x18\x51"))
common = mixed(
    nested(11, st.just(b"\x10\x05")), nested(12, st.sampled_from([b"", b"\x10\x09"])), nested(13, address),
    nested(16, joined(b"\x28\x01", b"\x78\x01", b"\xb8\x01\x01")), nested(17, usage),
)  # fmt: skip
response = mixed(
    nested(1, joined(b"\x08\xc8\x01", b"\x08\xf7\x03")), st.sampled_from([b"", field(6, b"via_upstream")])
)
log_message = nested(
    2, nested(1, mixed(nested(1, common), nested(4, response), nested(3, st.just(field(9, b"rid")))))
)


@given(log_message)
def test_an_entry_of_the_access_log_is_read_as_protobuf_reads_it(data: bytes) -> None:
    written = as_written(log.StreamAccessLogsMessage, data)
    assert list(outcome.read(data)) == list(outcome.read(written))


def test_the_parts_of_an_address_in_two_messages_are_one() -> None:
    host, port = field(1, field(2, b"10.0.0.7")), field(1, b"\x18\x50")  # port 80
    common = field(13, host) + field(13, port)
    (ended,) = outcome.read(field(2, field(1, field(1, common))))
    assert ended.replica == "10.0.0.7:80"


def test_a_clean_end_that_begins_with_an_unknown_field_is_answered_alike() -> None:
    message = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    message.attributes[clean_end.FILTER].update(
        {"upstream.address": "10.0.0.1:8000", "response.code": 200, "upstream.request_attempt_count": 1}
    )
    for before in (b"", *UNKNOWN):
        exchange = begun(request_headers(), steering(spares_log=True))
        exchange.receive(request_body(chat()), 1.0)
        assert exchange.receive(before + message.SerializeToString(), 2.0) == ALL_TOLD
