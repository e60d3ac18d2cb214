"""The Kubernetes objects in envoy/, as far as files can be checked without a cluster.

Each has what its kind needs; names, labels and ports that refer to each other agree; settings in them load; Envoy's
parts are those the generator writes. What Envoy makes of them: tests/integration/test_meshes.py.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.addresses import parse_address
from extproc.cli import main as kvsteer
from extproc.config import GatewaySettings, parse
from extproc.core import headers
from extproc.envoyconfig import bootstrap
from extproc.envoyconfig.names import LB_NAMESPACE, OWN_NAMESPACE, SERVICE, SUBSET_NAMESPACE

READY = Path(__file__).parents[2] / "envoy"
Tree = dict[str, Any]
MESHES = ("istio", "envoy-gateway", "ai-gateway")
#: What the API server would miss first: a kind's version, and paths that must be there.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ServiceAccount": ("v1", ()),
    "Service": ("v1", ("spec.selector", "spec.ports")),
    "Role": ("rbac.authorization.k8s.io/v1", ("rules",)),
    "RoleBinding": (
        "rbac.authorization.k8s.io/v1",
        ("roleRef.apiGroup", "roleRef.kind", "roleRef.name", "subjects"),
    ),
    "Deployment": (
        "apps/v1",
        ("spec.selector.matchLabels", "spec.template.metadata.labels", "spec.template.spec.containers"),
    ),
    "PodDisruptionBudget": ("policy/v1", ("spec.selector.matchLabels",)),
    "HorizontalPodAutoscaler": (
        "autoscaling/v2",
        ("spec.scaleTargetRef.name", "spec.maxReplicas", "spec.metrics"),
    ),
    "NetworkPolicy": ("networking.k8s.io/v1", ("spec.podSelector", "spec.policyTypes")),
    "ServiceMonitor": ("monitoring.coreos.com/v1", ("spec.selector", "spec.endpoints")),
    "Gateway": ("gateway.networking.k8s.io/v1", ("spec.gatewayClassName", "spec.listeners")),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", ("spec.parentRefs", "spec.rules")),
    "InferencePool": (
        "inference.networking.k8s.io/v1",
        ("spec.selector.matchLabels", "spec.targetPorts", "spec.endpointPickerRef.name"),
    ),
    "EnvoyFilter": ("networking.istio.io/v1alpha3", ("spec.workloadSelector.labels", "spec.configPatches")),
    "DestinationRule": ("networking.istio.io/v1", ("spec.host",)),
    "EnvoyExtensionPolicy": ("gateway.envoyproxy.io/v1alpha1", ("spec.targetRefs", "spec.extProc")),
    "EnvoyPatchPolicy": (
        "gateway.envoyproxy.io/v1alpha1",
        ("spec.type", "spec.targetRef", "spec.jsonPatches"),
    ),
    "ClientTrafficPolicy": ("gateway.envoyproxy.io/v1alpha1", ("spec.targetRefs",)),
    "BackendTrafficPolicy": ("gateway.envoyproxy.io/v1alpha1", ("spec.targetRefs",)),
}


def files() -> list[Path]:
    """Those with objects of a cluster."""
    not_objects = {"kvsteer.yaml", "kustomization.yaml"}
    folders = [READY / name for name in ("kubernetes", *MESHES)]
    return sorted(
        path for folder in folders for path in folder.glob("*.yaml") if path.name not in not_objects
    )


@cache
def objects(path: Path) -> list[Tree]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def everything(folder: str) -> Iterator[Tree]:
    for path in files():
        if path.parent.name == folder:
            yield from objects(path)


def one(folder: str, kind: str, name: str = "kvsteer") -> Tree:
    found = [each for each in everything(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert found, f"{folder} has no {kind} {name}"
    return found[0]


def at(tree: Tree, path: str) -> Any:
    for key in path.split("."):
        assert key in tree, f"{tree}: no {path}"
        tree = tree[key]
    return tree


@cache
def settings(folder: str) -> GatewaySettings:
    path = READY / folder / "kvsteer.yaml"
    return parse(path.read_text(), str(path))


def pod() -> Tree:
    spec: Tree = one("kubernetes", "Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> Tree:
    (only,) = pod()["containers"]
    found: Tree = only
    return found


# ---- each by itself ----


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_object_is_of_a_known_kind_and_has_what_it_needs(path: Path) -> None:
    for each in objects(path):
        version, needed = KINDS[each["kind"]]
        assert each["apiVersion"] == version
        assert each["metadata"]["name"]
        for inner in needed:
            assert at(each, inner), inner


@pytest.mark.parametrize("folder", ["kubernetes", *MESHES])
def test_no_object_stands_twice(folder: str) -> None:
    """But for inferencepool.yaml of Istio, which is applied instead of other files."""
    paths = [path for path in files() if path.parent.name == folder and path.name != "inferencepool.yaml"]
    names = [(each["kind"], each["metadata"]["name"]) for path in paths for each in objects(path)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("folder", ["kubernetes", "ai-gateway"])
def test_a_kustomization_names_what_is_there(folder: str) -> None:
    tree = yaml.safe_load((READY / folder / "kustomization.yaml").read_text())
    listed = set(tree["resources"])
    beside = {path.name for path in files() if path.parent.name == folder} - {"servicemonitor.yaml"}
    assert {name for name in listed if not name.startswith("../")} == beside
    assert all((READY / folder / name).exists() for name in listed)
    assert [generated["files"] for generated in tree["configMapGenerator"]] == [["kvsteer.yaml"]]


@pytest.mark.parametrize("folder", ["kubernetes", "ai-gateway"])
def test_settings_pass_check_config(folder: str) -> None:
    result = CliRunner().invoke(kvsteer, ["check-config", str(READY / folder / "kvsteer.yaml")])
    assert (result.exit_code, "good; pools: llm" in result.output) == (0, True), result.output


# ---- the gateway's own ----


def test_labels_that_select_the_gateway_are_those_it_has() -> None:
    labels = one("kubernetes", "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        one("kubernetes", "Deployment")["spec"]["selector"]["matchLabels"],
        one("kubernetes", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("kubernetes", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one("kubernetes", "Service")["spec"]["selector"],
        one("kubernetes", "Service", "kvsteer-pods")["spec"]["selector"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    service, monitor = one("kubernetes", "Service"), one("kubernetes", "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert (
        one("kubernetes", "Service", "kvsteer-pods")["metadata"]["labels"] != service["metadata"]["labels"]
    ), "or every gateway would be scraped twice"


def test_ports_are_where_the_gateway_listens() -> None:
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    of = settings("kubernetes")
    assert ports == {
        "grpc": parse_address(of.grpc.address).port,
        "admin": parse_address(of.admin.address).port,
    }
    for name in ("kvsteer", "kvsteer-pods"):
        for port in one("kubernetes", "Service", name)["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]
    rules = one("kubernetes", "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == [ports["grpc"], ports["admin"]]
    (endpoint,) = one("kubernetes", "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in one("kubernetes", "Service")["spec"]["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["port"] == "admin"
    assert parse_address(of.grpc.address).host == parse_address(of.admin.address).host == "0.0.0.0"


def test_the_gateway_may_drain_before_it_is_killed() -> None:
    for folder in ("kubernetes", "ai-gateway"):
        grpc = settings(folder).grpc
        assert pod()["terminationGracePeriodSeconds"] > grpc.drain + grpc.drain_notice


def test_what_the_gateway_reads_is_mounted() -> None:
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert set(mounts) == set(volumes)
    assert container()["args"] == ["serve", "-c", f"{mounts['settings']['mountPath']}/kvsteer.yaml"]
    assert volumes["settings"] == {"name": "settings", "configMap": {"name": "kvsteer"}}


def test_rights_are_bound_to_the_pods_account() -> None:
    assert one("kubernetes", "ServiceAccount")["metadata"]["name"] == pod()["serviceAccountName"]
    binding = one("kubernetes", "RoleBinding", "kvsteer-discovery")
    assert [subject["name"] for subject in binding["subjects"]] == [pod()["serviceAccountName"]]


def test_there_are_two_gateways_and_never_none() -> None:
    scaler = one("kubernetes", "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "kvsteer"}
    assert scaler["minReplicas"] >= 2
    assert one("kubernetes", "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one("kubernetes", "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert "replicas" not in one("kubernetes", "Deployment")["spec"], "an apply would undo the autoscaler"
    assert container()["resources"]["requests"]["cpu"], "the autoscaler's share is of the request"


def test_the_gateway_needs_no_rights_on_its_machine() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    context = container()["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}


# ---- the meshes' ----


@pytest.mark.parametrize("folder", MESHES)
def test_references_lead_to_objects_that_are_there(folder: str) -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in everything(folder)}
    for each in everything(folder):
        spec = each["spec"]
        for target in [*spec.get("targetRefs", []), *([spec["targetRef"]] if "targetRef" in spec else [])]:
            assert (target["kind"], target["name"]) in there
            assert target["group"] == "gateway.networking.k8s.io"
        for parent in spec.get("parentRefs", []):
            assert ("Gateway", parent["name"]) in there
        for rule in spec.get("rules", []):
            assert rule["timeouts"] == {"request": "0s"}, "or a long answer is cut"
            for backend in rule["backendRefs"]:
                assert (backend.get("kind", "Service"), backend["name"]) in there


@pytest.mark.parametrize("folder", MESHES)
def test_the_picker_is_asked_by_the_name_and_port_of_its_service(folder: str) -> None:
    ports = {port["name"]: port["port"] for port in one("kubernetes", "Service")["spec"]["ports"]}
    text = "\n".join(path.read_text() for path in files() if path.parent.name == folder)
    assert "kvsteer" in text
    for each in everything(folder):
        if each["kind"] == "InferencePool":
            reference = each["spec"]["endpointPickerRef"]
            assert (reference["name"], reference["port"]["number"]) == ("kvsteer", ports["grpc"])
        if each["kind"] == "EnvoyExtensionPolicy":
            assert each["spec"]["extProc"][0]["backendRefs"] == [{"name": "kvsteer", "port": ports["grpc"]}]


def test_a_pool_has_the_pods_that_the_gateway_looks_for() -> None:
    pool, found = (
        one("istio", "InferencePool", "llm")["spec"],
        settings("kubernetes").pools[0].discovery.kubernetes,
    )
    assert found is not None
    assert found.selector == ",".join(
        f"{key}={value}" for key, value in pool["selector"]["matchLabels"].items()
    )
    assert [str(port["number"]) for port in pool["targetPorts"]] == [found.port]
    followed = settings("ai-gateway").pools[0].discovery.inference_pool
    assert followed is not None
    assert one("ai-gateway", "InferencePool", followed.name)


def test_the_gateway_may_read_what_it_looks_for() -> None:
    rules = one("kubernetes", "Role", "kvsteer-discovery")["rules"]
    read = {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}
    assert read["pods"] == read["inferencepools"] == {"list", "watch"}


@pytest.mark.parametrize("folder", ["istio", "envoy-gateway"])
def test_the_service_has_the_pods_that_the_gateway_looks_for(folder: str) -> None:
    service, found = (
        one(folder, "Service", "vllm")["spec"],
        settings("kubernetes").pools[0].discovery.kubernetes,
    )
    assert found is not None
    assert found.selector == ",".join(f"{key}={value}" for key, value in service["selector"].items())
    assert [str(port["targetPort"]) for port in service["ports"]] == [found.port]


# ---- Envoy's parts ----


@cache
def envoy() -> tuple[Tree, dict[str, Tree]]:
    """What the generator writes for the same settings: connection manager, clusters by name."""
    text = (
        (READY / "kubernetes" / "kvsteer.yaml").read_text().replace("envoy:\n", "envoy:\n  eds_dir: /eds\n")
    )
    tree = bootstrap(parse(text, "with EDS"))["static_resources"]
    manager = tree["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return manager, {cluster["name"]: cluster for cluster in tree["clusters"]}


#: What clients could send of what the gateway owns or answers with, by name.
OWNED = {headers.DESTINATION, headers.SUBSET, headers.SERVED, *headers.ALWAYS_REMOVED, *headers.OWNED_NAMES}


def steering_policy() -> Tree:
    """The generator's, without what Envoys before 1.38 or so would refuse to read."""
    policy = deepcopy(envoy()[1]["kvsteer_pool_llm"]["load_balancing_policy"])
    del policy["policies"][0]["typed_extension_config"]["typed_config"]["selected_host_key"]
    found: Tree = policy
    return found


def strip_by_name() -> list[Tree]:
    """The generator's strip, by name in place of prefixes, which Envoys before 1.36 don't know."""
    (strip,) = deepcopy(envoy()[0]["early_header_mutation_extensions"])
    strip["typed_config"]["mutations"] = [{"remove": name} for name in sorted(OWNED)]
    return [strip]


def told() -> Any:
    """What tells clients who answered."""
    return envoy()[0]["route_config"]["virtual_hosts"][0]["response_headers_to_add"]


def test_istios_patches_are_the_generators_parts() -> None:
    manager, clusters = envoy()
    patches = [
        (patch["applyTo"], patch["patch"]["value"])
        for patch in one("istio", "EnvoyFilter")["spec"]["configPatches"]
    ]
    ours = dict(manager["http_filters"][0]["typed_config"])
    picker = {"cluster_name": "outbound|50051||kvsteer.llm.svc.cluster.local"}
    ours["grpc_service"] = {**ours["grpc_service"], "envoy_grpc": picker}
    of_gateways = clusters["kvsteer_gateways"]
    of_manager = {key: manager[key] for key in ("@type", "stream_idle_timeout")}
    assert patches == [
        ("HTTP_FILTER", {"name": "envoy.filters.http.ext_proc", "typed_config": ours}),
        (
            "NETWORK_FILTER",
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {**of_manager, "early_header_mutation_extensions": strip_by_name()},
            },
        ),
        ("LISTENER", {"per_connection_buffer_limit_bytes": settings("kubernetes").limits.body}),
        ("VIRTUAL_HOST", {"response_headers_to_add": told()}),
        ("CLUSTER", {"load_balancing_policy": steering_policy()}),
        ("CLUSTER", {key: of_gateways[key] for key in ("common_lb_config", "health_checks")}),
    ]


def test_istios_connections_have_room_for_every_stream() -> None:
    rules = [each for each in everything("istio") if each["kind"] == "DestinationRule"]
    assert {each["metadata"]["name"] for each in rules} == {"kvsteer", "vllm"}
    for rule in rules:
        room = rule["spec"]["trafficPolicy"]["connectionPool"]
        most = {
            room["tcp"]["maxConnections"],
            room["http"]["http2MaxRequests"],
            room["http"]["http1MaxPendingRequests"],
        }
        assert most == {settings("kubernetes").envoy.concurrent}
        assert not {"outlierDetection", "loadBalancer"} & set(rule["spec"]["trafficPolicy"])


def test_envoy_gateways_steering_is_the_generators() -> None:
    steering, telling = one("envoy-gateway", "EnvoyPatchPolicy")["spec"]["jsonPatches"]
    listener = one("envoy-gateway", "Gateway", "llm")["spec"]["listeners"][0]["name"]
    assert telling == {
        "type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": f"llm/llm/{listener}",
        "operation": {"op": "add", "path": "/virtual_hosts/0/response_headers_to_add", "value": told()},
    }
    assert steering == {
        "type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "httproute/llm/llm/rule/0",
        "operation": {
            "op": "add",
            "path": "/load_balancing_policy",
            "value": steering_policy(),
        },
    }


def test_envoy_gateways_policies_say_what_the_generator_would() -> None:
    manager, clusters = envoy()
    ours = manager["http_filters"][0]["typed_config"]
    policy = one("envoy-gateway", "EnvoyExtensionPolicy")["spec"]["extProc"][0]
    assert policy["failOpen"] is ours["failure_mode_allow"] is True
    assert policy["messageTimeout"] == ours["message_timeout"]
    assert policy["processingMode"]["response"]["attributes"] == ours["response_attributes"]
    assert policy["metadata"] == {
        "writableNamespaces": [LB_NAMESPACE, OWN_NAMESPACE],
        "accessibleNamespaces": [SUBSET_NAMESPACE, LB_NAMESPACE],
    }
    assert policy["backendSettings"]["healthCheck"]["active"]["grpc"] == {"service": SERVICE}
    breakers = clusters["kvsteer_gateways"]["circuit_breakers"]["thresholds"][0]
    assert policy["backendSettings"]["circuitBreaker"]["maxParallelRequests"] == breakers["max_requests"]


def test_envoy_gateway_strips_every_header_the_gateway_owns_by_name() -> None:
    client = one("envoy-gateway", "ClientTrafficPolicy")["spec"]
    owned = {
        headers.DESTINATION,
        headers.SUBSET,
        headers.SERVED,
        *headers.ALWAYS_REMOVED,
        *headers.OWNED_NAMES,
    }
    assert set(client["headers"]["earlyRequestHeaders"]["remove"]) == owned
    assert client["connection"]["bufferLimit"] == "32Mi"
    assert settings("kubernetes").limits.body == 32 * 2**20


def test_envoy_ai_gateway_gets_tls_and_one_address_a_request() -> None:
    of = settings("ai-gateway")
    assert of.grpc.tls.on
    assert of.requests.fallbacks == 0, "a list of addresses is no address to ORIGINAL_DST"
    annotations = one("ai-gateway", "InferencePool", "llm")["metadata"].get("annotations", {})
    assert "aigateway.envoyproxy.io/processing-body-mode" not in annotations, (
        "buffered would hold answers back too"
    )
