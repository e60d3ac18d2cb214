"""First messages that differ in their ids alone are known again, and nothing else is taken for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core import openings
from extproc.core.opening import Opening
from extproc.core.openings import Openings
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb.opening_pb2 import RequestStart

UUID = "7e6a2e1f-80c8-4f99-b9c7-27fb163427e7"
OTHER = "0d8a7d9c-3001-4ca8-a7a6-38b9a7793aa7"
MARK = b"\x0a\x0cx-request-id\x1a"


def first(name: str | bytes | None = UUID, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """A first message as Envoy sends it: the headers that routing reads, then the modes."""
    message = pb.ProcessingRequest()
    told = {":path": path, ":method": "POST"} | {key.replace("_", "-"): text for key, text in headers.items()}
    for key, text in told.items():
        message.request_headers.headers.headers.add(key=key, raw_value=text.encode())
    if name is not None:
        value = name if isinstance(name, bytes) else name.encode()
        message.request_headers.headers.headers.add(key="x-request-id", raw_value=value)
    message.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
    return message.SerializeToString()


def read(data: bytes) -> Opening:
    return Opening(RequestStart.FromString(data))


def kept(*messages: bytes) -> Openings:
    made = Openings()
    for data in messages:
        made.keep(data, read(data))
    return made


def told(opening: Opening) -> list[object]:
    return [
        getattr(opening, name) for name in sorted(Opening.__slots__) if name not in ("request_id", "plain")
    ]


def test_a_message_with_another_id_tells_the_same_and_its_own_id() -> None:
    found = kept(first(UUID)).find(first(OTHER))
    assert found is not None
    assert found[1] == OTHER
    assert (found[0].path, found[0].mode) == ("/v1/chat/completions", pb.ProcessingMode.BUFFERED)


ids = st.text("0123456789abcdefXYZ._:-", min_size=1, max_size=4) | st.sampled_from(
    [UUID, OTHER, "bad id", "\x0a\x0cx-request-id\x1a\x01a", "n" * 126, "n" * 127, "n" * 128, "-", ""]
)
paths = st.sampled_from(["/a", "/b", "/a?key=1", "/\x0a\x0cx-request-id\x1a\x01a", ""])
further = st.dictionaries(
    st.sampled_from(["content_length", "cookie", "traceparent", "content_encoding", "x_kvsteer_team"]),
    st.sampled_from(["1", "2", "gzip"]),
    max_size=2,
)
messages = st.builds(lambda name, path, more: first(name, path, **more), ids | st.none(), paths, further)


@given(st.lists(messages, max_size=6), messages)
def test_what_is_found_is_what_would_be_read(before: list[bytes], data: bytes) -> None:
    found = kept(*before, data).find(data)
    if found is not None:
        opening, name = found
        assert told(opening) == told(read(data))
        assert name == read(data).request_id


@pytest.mark.parametrize(
    "data",
    [
        first(None),
        first("not harmless"),
        first("n" * 128),  # its length takes two bytes
        first(path="/v1/models?token=secret"),
        first(cookie="secret"),
        first(authorization="Bearer secret"),
        first(traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
        first(content_encoding="gzip"),
        first(x_kvsteer_team="a"),
        first(user_agent="n" * 2048),
        first(path="/" + MARK.decode() + "\x01a"),
    ],
)
def test_what_may_be_a_secret_or_differs_each_time_or_is_long_is_not_kept(data: bytes) -> None:
    assert len(kept(data)) == 0


def test_of_two_ids_none_is_cut_out() -> None:
    message = pb.ProcessingRequest.FromString(first(UUID))
    for raw in (True, False):
        twice = pb.ProcessingRequest()
        twice.CopyFrom(message)
        header = twice.request_headers.headers.headers.add(key="x-request-id")
        if raw:
            header.raw_value = OTHER.encode()
        else:
            header.value = OTHER
        assert len(kept(twice.SerializeToString())) == 0


def test_an_id_in_the_older_field_is_not_looked_for() -> None:
    message = pb.ProcessingRequest.FromString(first(None))
    message.request_headers.headers.headers.add(key="x-request-id", value=UUID)
    assert len(kept(message.SerializeToString())) == 0


def test_metadata_of_other_filters_is_read_each_time() -> None:
    message = pb.ProcessingRequest.FromString(first())
    message.metadata_context.filter_metadata["envoy.filters.http.jwt_authn"].update({"sub": "a"})
    assert len(kept(message.SerializeToString())) == 0


def test_a_message_that_was_cut_off_is_not_taken_for_a_whole_one() -> None:
    known, data = kept(first(UUID)), first(OTHER)
    assert known.find(data) is not None
    assert [known.find(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_a_harmful_id_of_the_same_length_is_not_found() -> None:
    assert kept(first("aaaa")).find(first("a\r\nb")) is None


def test_so_many_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_MOST", 3)
    known = kept(*(first(path=f"/{i}") for i in range(3)))
    assert len(known) == 3
    data = first(path="/3")
    known.keep(data, read(data))
    assert len(known) == 1
    assert known.find(data) is not None
