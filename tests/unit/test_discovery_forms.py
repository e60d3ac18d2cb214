"""The forms of a file of endpoints, each written out, and what is said of those that can't be read."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.membership import Endpoint
from extproc.envoyconfig.eds import eds_text
from extproc.envoyconfig.names import pool_cluster
from extproc.io.discovery.base import SourceFailed
from extproc.io.discovery.file_forms import plain_endpoint, read_endpoints
from tests.examples import LETTERS, examples

FIXTURES = Path(__file__).parents[1] / "fixtures" / "discovery"


def read(text: str | bytes, cluster: str = "", limit: int = 100) -> tuple[Endpoint, ...]:
    return read_endpoints(text.encode() if isinstance(text, str) else text, cluster, limit)


def fixture(name: str, cluster: str = "") -> tuple[Endpoint, ...]:
    return read((FIXTURES / name).read_bytes(), cluster)


def test_a_plain_list_in_yaml() -> None:
    assert fixture("plain.yaml") == (
        Endpoint(address="10.0.0.1:8000"),
        Endpoint(address="[fd00::2]:8000"),
        Endpoint(
            address="10.0.0.3:8000",
            metrics="http://10.0.0.3:9000/metrics",
            terminating=True,
            labels={"zone": "a"},
        ),
    )


def test_a_plain_list_in_json() -> None:
    assert fixture("plain.json") == (
        Endpoint(address="10.0.0.1:8000"),
        Endpoint(address="[fd00::2]:8000", labels={"zone": "b"}),
    )


def test_eds_with_several_clusters_is_read_by_cluster() -> None:
    assert fixture("eds.yaml", "chat") == (
        Endpoint(address="10.0.0.1:8000"),
        Endpoint(address="[fd00::2]:8000"),
        Endpoint(address="10.0.0.3:8000", terminating=True),
    )
    assert fixture("eds.yaml", "embed") == (Endpoint(address="10.0.1.1:8000"),)


def test_eds_in_json_with_camel_case_names_and_numbers_for_enums() -> None:
    expected = (Endpoint(address="10.0.0.1:8000", terminating=True), Endpoint(address="[fd00::2]:8000"))
    assert fixture("eds.json") == expected


def test_the_eds_file_a_gateway_writes_can_be_read_back() -> None:
    addresses = ["10.0.0.1:8000", "[fd00::2]:8000"]
    text = eds_text("chat", addresses)
    assert [e.address for e in read(text, pool_cluster("chat"))] == addresses
    assert [e.address for e in read(text)] == addresses


@pytest.mark.parametrize("text", ["[]", "endpoints: []", '{"resources": []}', "cluster_name: x"])
def test_an_empty_list_is_an_empty_set(text: str) -> None:
    assert read(text) == ()


def test_no_more_than_one_above_the_limit_is_read() -> None:
    assert len(read("\n".join(f"- 10.0.0.{n}:80" for n in range(1, 20)), limit=5)) == 6


def test_aliases_that_multiply_are_read_up_to_the_limit() -> None:
    place = "{endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 80}}}}"
    many = ", ".join(["*l"] * 500)
    text = f"x: &l {{lb_endpoints: [{', '.join([place] * 500)}]}}\ncluster_name: c\nendpoints: [{many}]"
    assert len(read(text, limit=10)) == 11


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; write [] for no replicas"),
        ("# nothing\n", "is empty"),
        ("endpoints: [10.0.0.1:80", "is neither YAML nor JSON"),
        ('["10.0.0.1:80", "10.0.', "is neither YAML nor JSON"),
        ("hello", "no list of endpoints"),
        ("replica: [10.0.0.1:80]", "has neither endpoints nor resources"),
        ("- 10.0.0.1:80\n- engine:80", "entry 2: 'engine:80' is a host name"),
        ("- 10.0.0.1", "entry 1: '10.0.0.1' has no port"),
        ("- 8000", "entry 1 is neither ip:port nor a mapping"),
        ("- {adress: 10.0.0.1:80}", "entry 1 has 'adress', which is no field"),
        ("- {metrics: x}", "entry 1 has no address"),
        ("- {address: 10.0.0.1:80, metrics: ftp://x}", "metrics is no URL"),
        ("- {address: 10.0.0.1:80, metrics: 'http://[bad'}", "metrics is no URL"),
        ("- {address: 10.0.0.1:80, metrics: 'http://10.0.0.1:99999/m'}", "metrics is no URL"),
        ("- {address: 10.0.0.1:80, metrics: 'http://10.0.0.1:x/'}", "metrics is no URL"),
        ("- {address: 10.0.0.1:80, metrics: 'http://'}", "metrics is no URL"),
        ("- {address: 10.0.0.1:80, metrics: 'http://a b/'}", "metrics is no URL"),
        ("- {address: 255.255.255.255:80}", "is no address of one engine"),
        ("- {address: 10.0.0.1:80, metrics: 'http://u:secret@x/'}", "without a user"),
        ("- {address: 10.0.0.1:80, terminating: 1}", "no truth value"),
        ("- {address: 10.0.0.1:80, labels: [a]}", "labels are no mapping"),
        ("- {address: 10.0.0.1:80, labels: {a: 1}}", "labels are no mapping"),
        (
            "cluster_name: c\nendpoints: [{lb_endpoints: [{endpoint: {}}]}]",
            "has nothing where a mapping with socket",
        ),
        ("cluster_name: c\nendpoints: [{lb_endpoints: [5]}]", "has int where a mapping"),
        (b"\xff\xff\x00\x01", "neither YAML nor JSON"),
        ("[" * 5000, ""),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(text: str | bytes, said: str) -> None:
    with pytest.raises(SourceFailed) as caught:
        read(text)
    assert caught.value.reason == "unreadable"
    assert said in caught.value.detail
    assert "secret" not in caught.value.detail


def test_several_clusters_need_a_name_and_an_unknown_one_is_told() -> None:
    with pytest.raises(SourceFailed, match="several clusters; set cluster to one of chat, embed"):
        fixture("eds.yaml")
    with pytest.raises(SourceFailed, match="has no cluster 'other'; it has chat, embed"):
        fixture("eds.yaml", "other")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_never_break_the_reader(text: bytes) -> None:
    with contextlib.suppress(SourceFailed):
        assert all(isinstance(endpoint, Endpoint) for endpoint in read(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(LETTERS, max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=5), inner, max_size=3)
        ),
    )
)
@examples(25)
def test_any_entry_is_an_endpoint_or_a_value_error(entry: object) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(plain_endpoint(entry, "entry 1"), Endpoint)
