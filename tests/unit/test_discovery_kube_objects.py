"""EndpointSlices and pods as endpoints: conditions, ports, families."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.membership import Endpoint
from extproc.errors import ConfigError
from extproc.io.discovery.inference_pool import PoolSpec, read_pool
from extproc.io.discovery.kube_api import Access, KubeApi, in_cluster
from extproc.io.discovery.kube_objects import Parsed, member_parser, one_family, pod_parser, slice_parser
from extproc.io.discovery.kubernetes import pods, service_slices
from extproc.io.discovery.selectors import check_subdomain

FIXTURES = Path(__file__).parents[1] / "fixtures" / "discovery"
SLICE = json.loads((FIXTURES / "slice.json").read_text())
INFERENCE_POOL = json.loads((FIXTURES / "inference_pool.json").read_text())
POD = json.loads((FIXTURES / "pod.json").read_text())


def changed(thing: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A copy; a key `a__b` names a field within a field."""
    made = copy.deepcopy(thing)
    for path, value in parts.items():
        *way, last = path.split("__")
        place = made
        for step in way:
            place = place[step]
        place[last] = value
    return made


def addresses(parsed: Parsed) -> list[str]:
    return [endpoint.address for endpoint in parsed.endpoints]


# -- EndpointSlices ------------------------------------------------------------------------------------------


def test_a_slice_ready_counts_terminating_runs_out_and_not_ready_is_left_out() -> None:
    assert slice_parser("http", "any")(SLICE) == Parsed(
        (
            Endpoint(address="10.1.0.1:8000", labels={"pod": "engine-0", "node": "node-a", "zone": "zone-1"}),
            Endpoint(address="10.1.0.2:8000", terminating=True, labels={"pod": "engine-1", "node": "node-b"}),
            Endpoint(address="10.1.0.4:8000", terminating=True, labels={"pod": "engine-3", "node": "node-c"}),
            Endpoint(address="10.1.0.5:8000"),
        )
    )


def test_a_slices_port_is_found_by_name_or_number_or_by_being_the_only_one() -> None:
    only = changed(SLICE, ports=[{"name": "", "port": 8000}])
    assert addresses(slice_parser("9000", "any")(SLICE))[0] == "10.1.0.1:9000"
    assert addresses(slice_parser("metrics", "any")(SLICE))[0] == "10.1.0.1:9000"
    assert addresses(slice_parser("", "any")(only))[0] == "10.1.0.1:8000"


@pytest.mark.parametrize("port", ["", "grpc", "1234"])
def test_a_slice_without_the_port_says_so(port: str) -> None:
    assert slice_parser(port, "any")(SLICE) == Parsed(portless=True)
    assert slice_parser(port, "any")(changed(SLICE, endpoints=None)) == Parsed()


def test_an_ipv6_slice_gives_canonical_addresses_and_host_names_are_left_out() -> None:
    entry = {"addresses": ["FD00:0::A"], "conditions": {"ready": True}}
    six = changed(SLICE, addressType="IPv6", endpoints=[entry])
    assert addresses(slice_parser("http", "any")(six)) == ["[fd00::a]:8000"]
    assert addresses(slice_parser("http", "ipv4")(six)) == []
    assert addresses(slice_parser("http", "ipv6")(SLICE)) == []
    assert addresses(slice_parser("http", "any")(changed(SLICE, addressType="FQDN"))) == []


def test_a_pod_with_both_families_is_one_engine() -> None:
    both = [
        Endpoint(address="[fd00::1]:80", labels={"pod": "a"}),
        Endpoint(address="10.0.0.1:80", labels={"pod": "a"}),
        Endpoint(address="[fd00::2]:80", labels={"pod": "b"}),
        Endpoint(address="[fd00::3]:80"),
        Endpoint(address="10.0.0.3:80"),
    ]
    assert [e.address for e in one_family(iter(both))] == [
        "10.0.0.1:80", "[fd00::2]:80", "[fd00::3]:80", "10.0.0.3:80",
    ]  # fmt: skip


# -- pods ----------------------------------------------------------------------------------------------------


def test_a_ready_pod_is_an_endpoint_with_its_labels() -> None:
    labels = {"pod": "engine-0", "node": "node-a", "app": "engine", "version": "v2"}
    assert pod_parser("http", "any")(POD) == Parsed((Endpoint(address="10.1.0.1:8000", labels=labels),))
    assert addresses(pod_parser("http", "ipv6")(POD)) == ["[fd00:1::1]:8000"]


def test_a_pod_that_is_deleted_is_terminating_ready_or_not() -> None:
    deleted = changed(POD, metadata__deletionTimestamp="2026-01-01T00:00:00Z")
    unready = changed(deleted, status__conditions=[{"type": "Ready", "status": "False"}])
    for pod in (deleted, unready):
        assert [e.terminating for e in pod_parser("http", "any")(pod).endpoints] == [True]


@pytest.mark.parametrize(
    "parts",
    [
        {"status__phase": "Pending"},
        {"status__phase": "Succeeded", "metadata__deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"status__conditions": [{"type": "Ready", "status": "False"}]},
        {"status__conditions": []},
        {"status__podIPs": None, "status__podIP": None},
        {"status": None},
    ],
)
def test_a_pod_that_does_not_serve_is_left_out(parts: dict[str, Any]) -> None:
    assert pod_parser("http", "any")(changed(POD, **parts)) == Parsed()


def test_a_pods_port_by_number_need_not_be_declared() -> None:
    bare = changed(POD, spec__containers=[{"name": "engine"}])
    assert addresses(pod_parser("8000", "any")(bare)) == ["10.1.0.1:8000"]
    assert pod_parser("http", "any")(bare) == Parsed(portless=True)
    assert pod_parser("", "any")(POD) == Parsed(portless=True)
    one = changed(POD, spec__containers=[{"ports": [{"containerPort": 8000}]}])
    assert addresses(pod_parser("", "any")(one)) == ["10.1.0.1:8000"]


@given(
    st.sampled_from([SLICE, POD]),
    st.data(),
)
def test_an_object_with_a_part_missing_or_null_is_read_or_left_out(
    thing: dict[str, Any], data: st.DataObject
) -> None:
    made = copy.deepcopy(thing)
    place: Any = made
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            if data.draw(st.booleans()):
                place[key] = None
            else:
                del place[key]
            break
        place = place[key][0] if isinstance(place[key], list) and place[key] else place[key]
    parsers = slice_parser("http", "any"), pod_parser("http", "any"), member_parser([8000, 8001], "any")
    for parse in parsers:
        assert isinstance(parse(made), Parsed)


def test_an_inference_pool_is_read_with_what_the_api_takes_for_granted() -> None:
    thing = changed(
        INFERENCE_POOL, spec__selector={"matchLabels": {"tier": "gold", "app": "engine", "x": ""}}
    )
    del thing["spec"]["endpointPickerRef"]["failureMode"]
    assert read_pool(thing) == PoolSpec(
        selector="app=engine,tier=gold,x=",
        ports=(8000,),
        protocol="http",
        failure_mode="close",
        picker="kvsteer",
    )
    del thing["spec"]["endpointPickerRef"]
    assert read_pool(thing).picker == ""
    open_ = changed(INFERENCE_POOL, spec__endpointPickerRef__failureMode="FailOpen")
    assert read_pool(open_).failure_mode == "open"


def test_a_pod_of_an_inference_pool_is_one_engine_by_its_ipv4_address_on_each_port() -> None:
    parsed = member_parser([8000, 8001], "any")(POD)
    assert addresses(parsed) == ["10.1.0.1:8000", "10.1.0.1:8001"]
    assert addresses(member_parser([8000], "ipv6")(POD)) == ["[fd00:1::1]:8000"]
    none = changed(POD, metadata__annotations={"llm-d.ai/active-ports": "9"})
    assert member_parser([8000], "any")(none) == Parsed()


@pytest.mark.parametrize("name", ["", "a/b", "A", "a..b", "x" * 254])
def test_the_name_of_an_inference_pool_is_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="the InferencePool"):
        check_subdomain(name, "the InferencePool")
    assert check_subdomain("llama-3.1", "") == "llama-3.1"


# -- what is refused when the configuration is read ----------------------------------------------------------


def test_paths_and_selectors_are_those_of_the_api() -> None:
    slices = service_slices("engines", "serving", "http")
    assert slices.path == "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
    assert slices.query == {"labelSelector": "kubernetes.io/service-name=engines"}
    assert pods("app=engine", "serving").path == "/api/v1/namespaces/serving/pods"


def test_a_bad_selector_or_name_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="no label selector"):
        pods("app = a b", "serving")
    with pytest.raises(ConfigError, match="the namespace"):
        pods("app=a", "a/b")
    with pytest.raises(ConfigError, match="the service"):
        service_slices("a/../b", "serving")


def test_a_pod_knows_its_api_server_and_ipv6_hosts_get_brackets(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("serving\n")
    access = in_cluster("", {"KUBERNETES_SERVICE_HOST": "fd00::1"}, str(tmp_path))
    assert (access.url, access.namespace) == ("https://[fd00::1]:443", "serving")
    assert access.token_file == f"{tmp_path}/token"
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_cluster("other", environment, str(tmp_path))
    assert (access.url, access.namespace) == ("https://10.96.0.1:6443", "other")


def test_outside_of_a_cluster_one_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set api"):
        in_cluster("", {}, str(tmp_path))
    with pytest.raises(ConfigError, match="set namespace"):
        in_cluster("", {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, str(tmp_path))


@pytest.mark.parametrize(
    "url", ["10.96.0.1:443", "ftp://x", "https://u:secret@x:1", "https://x/?token=1", ""]
)
def test_a_url_that_is_none_or_holds_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL") as caught:
        KubeApi(Access(url=url, namespace="serving"))
    assert "secret" not in str(caught.value)
