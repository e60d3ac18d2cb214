"""Identities are found where the operator says, and nowhere else."""

import pytest

from extproc.core.admission.identity import (
    API_KEY,
    CERTIFICATE,
    HEADER,
    METADATA,
    NONE,
    Source,
    Told,
    digest,
)
from extproc.core.admission.identity import read as read_found
from extproc.core.opening import Opening
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb.opening_pb2 import RequestStart


def message(**headers: str) -> pb.ProcessingRequest:
    made = pb.ProcessingRequest()
    for name, value in headers.items():
        made.request_headers.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
    return made


def begun(message: pb.ProcessingRequest) -> RequestStart:
    return RequestStart.FromString(message.SerializeToString())


def read(message: pb.ProcessingRequest, source: Source) -> Told:
    return read_found(message, Opening(begun(message), wanted=source.wanted).kept, source)


def with_claim(value: str | float | None) -> pb.ProcessingRequest:
    made = message()
    struct = made.metadata_context.filter_metadata["envoy.filters.http.jwt_authn"]
    struct.update({"payload": {"sub": value}})
    return made


CLAIM = Source(kind=METADATA, namespace="envoy.filters.http.jwt_authn", path=("payload", "sub"))


@pytest.mark.parametrize(
    ("value", "identity"),
    [("team-a", "team-a"), (7, "7"), (True, ""), (None, ""), ("x" * 513, ""), ("", ""), (" ", "")],
)
def test_a_claim_is_read_out_of_metadata(value: str | float | None, identity: str) -> None:
    assert read(with_claim(value), CLAIM).identity == identity


def test_without_metadata_there_is_nobody() -> None:
    assert read(message(), CLAIM) == Told()
    assert read(with_claim("x"), Source(kind=METADATA, namespace="other", path=("sub",))).identity == ""
    assert (
        read(with_claim("x"), Source(kind=METADATA, namespace=CLAIM.namespace, path=("nope", "sub"))).identity
        == ""
    )


def test_a_certificates_subject_is_read_out_of_attributes() -> None:
    made = message()
    made.attributes["envoy.filters.http.ext_proc"].update(
        {"connection.subject_peer_certificate": "CN=team-a"}
    )
    assert read(made, Source(kind=CERTIFICATE)).identity == "CN=team-a"
    assert read(message(), Source(kind=CERTIFICATE)).identity == ""


def test_a_key_is_digested() -> None:
    # sha256 of "secret", as sha256sum says it.
    known = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    source = Source(kind=API_KEY, header="authorization")
    assert read(message(authorization="Bearer secret"), source).identity == known
    assert read(message(authorization="secret"), source).identity == digest("bEARER  secret ") == known
    assert read(message(), source).identity == digest("Bearer ") == ""


def test_a_header_counts_only_where_it_is_trusted() -> None:
    made = message(x_tenant="team-a")
    assert read(made, Source(kind=HEADER, header="x-tenant")).identity == "team-a"
    for source in (
        Source(kind=NONE),
        CLAIM,
        Source(kind=CERTIFICATE),
        Source(kind=API_KEY, header="authorization"),
    ):
        assert read(made, source).identity == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("0", None), ("-1", None), ("nan", None), ("inf", None), ("x", None)],
)
def test_a_deadline_is_a_number_of_seconds(text: str, seconds: float | None) -> None:
    assert read(message(x_wait=text), Source(deadline="x-wait")).deadline == seconds


@pytest.mark.parametrize(
    ("text", "length"), [("123", 123), ("-1", None), ("", None), ("1" * 20, None), ("\u0663", None)]
)
def test_the_declared_length_is_read(text: str, length: int | None) -> None:
    assert read(message(content_length=text), Source()).length == length


@pytest.mark.parametrize("blank", ["", " ", "\t \u00a0"])
def test_a_blank_header_is_no_identity(blank: str) -> None:
    assert read(message(x_tenant=blank), Source(kind=HEADER, header="x-tenant")).identity == ""


def test_a_header_that_routing_reads_or_removes_is_found_and_still_removed() -> None:
    made = message(x_request_id="team-a", x_kvsteer_team="team-b")
    for header, identity, owned in (("x-request-id", "team-a", 1), ("x-kvsteer-team", "team-b", 1)):
        source = Source(kind=HEADER, header=header)
        opening = Opening(begun(made), wanted=source.wanted)
        assert (read_found(made, opening.kept, source).identity, len(opening.owned)) == (identity, owned)
        assert opening.request_id == "team-a"
