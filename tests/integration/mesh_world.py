"""What meshes' control planes make of the files in envoy/: a bare Envoy configured as they would configure theirs.

Each mesh's own part (listener, clusters, the ext_proc filter where the mesh writes it) is written here after what is
known of it; the files' parts are read from the files and put in as the mesh would.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from extproc.addresses import parse_address

ENVOY = Path(__file__).parents[2] / "envoy"
Tree = dict[str, Any]

_TYPES = "type.googleapis.com/envoy.extensions."
_HCM = "envoy.filters.network.http_connection_manager"
_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": f"{_TYPES}filters.http.router.v3.Router"},
}
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
DESTINATION = "x-gateway-destination-endpoint"


def documents(path: str) -> list[Tree]:
    """The objects of a YAML file below envoy/."""
    return [each for each in yaml.safe_load_all((ENVOY / path).read_text()) if each]


def document(path: str, kind: str) -> Tree:
    (found,) = (each for each in documents(path) if each["kind"] == kind)
    return found


def bootstrap(listen: int, admin: int, listener: Tree, clusters: list[Tree]) -> Tree:
    return {
        "admin": {"address": _address(f"127.0.0.1:{admin}")},
        "static_resources": {
            "listeners": [{"name": "llm", "address": _address(f"127.0.0.1:{listen}"), **listener}],
            "clusters": clusters,
        },
    }


def listener(cluster: str, filters: list[Tree], **manager: Any) -> Tree:
    """A listener with one route, which sends everything to a cluster."""
    host = {
        "name": "llm",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}],
    }
    config = {
        "@type": f"{_TYPES}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "llm",
        "route_config": {"name": "llm", "virtual_hosts": [host]},
        "http_filters": [*filters, _ROUTER],
        **manager,
    }
    return {"filter_chains": [{"filters": [{"name": _HCM, "typed_config": config}]}]}


def cluster(name: str, addresses: list[str], **more: Any) -> Tree:
    endpoints = [{"endpoint": {"address": _address(each)}} for each in addresses]
    return {
        "name": name,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        **more,
    }


def http2() -> Tree:
    options = {"explicit_http_config": {"http2_protocol_options": {}}}
    kind = f"{_TYPES}upstreams.http.v3.HttpProtocolOptions"
    return {"typed_extension_protocol_options": {_HTTP_OPTIONS: {"@type": kind, **options}}}


def _address(address: str) -> Tree:
    host, port = parse_address(address)
    return {"socket_address": {"address": host, "port_value": port}}


def merged(base: Any, patch: Any) -> Any:
    """As protobuf merges: messages field by field, lists one after the other, the patch's numbers and words win."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {key: _pair(base, patch, key) for key in {**base, **patch}}
    return [*base, *patch] if isinstance(base, list) and isinstance(patch, list) else deepcopy(patch)


def _pair(base: Tree, patch: Tree, key: str) -> Any:
    if key not in patch:
        return base[key]
    return merged(base[key], patch[key]) if key in base else deepcopy(patch[key])


# ---- Istio ----


def istio(replicas: list[str], gateways: list[str]) -> tuple[Tree, list[Tree]]:
    """Listener and clusters with envoyfilter.yaml's patches put in, each where it matches."""
    engines, pickers = (
        "outbound|8000||vllm.llm.svc.cluster.local",
        "outbound|50051||kvsteer.llm.svc.cluster.local",
    )
    world = {
        "listener": listener(engines, []),
        engines: cluster(engines, replicas, common_lb_config={}),
        pickers: cluster(pickers, gateways, common_lb_config={}, **http2()),
    }
    for patch in document("istio/envoyfilter.yaml", "EnvoyFilter")["spec"]["configPatches"]:
        _put_in(world, patch["applyTo"], patch["match"], patch["patch"])
    return world.pop("listener"), list(world.values())


def _put_in(world: dict[str, Tree], what: str, match: Tree, patch: Tree) -> None:
    manager = world["listener"]["filter_chains"][0]["filters"][0]
    value, operation = patch["value"], patch["operation"]
    if what == "CLUSTER":
        service, port = match["cluster"]["service"], match["cluster"]["portNumber"]
        name = f"outbound|{port}||{service}"
        assert (operation, name in world) == ("MERGE", True)
        world[name] = merged(world[name], value)
    elif what == "LISTENER":
        assert operation == "MERGE"
        world["listener"] = merged(world["listener"], value)
    elif what == "VIRTUAL_HOST":
        assert (operation, match) == ("MERGE", {"context": "GATEWAY"})
        (host,) = hosts = manager["typed_config"]["route_config"]["virtual_hosts"]
        hosts[0] = merged(host, value)
    elif what == "NETWORK_FILTER":
        assert (operation, match["listener"]["filterChain"]["filter"]["name"]) == ("MERGE", _HCM)
        manager["typed_config"] = merged(manager["typed_config"], value["typed_config"])
    else:
        before = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
        assert (what, operation, before) == ("HTTP_FILTER", "INSERT_BEFORE", _ROUTER["name"])
        manager["typed_config"]["http_filters"].insert(-1, value)


def istio_pool(replicas: list[str], gateways: list[str]) -> tuple[Tree, list[Tree]]:
    """What istiod makes of an InferencePool by itself."""
    config = {
        "failure_mode_allow": True,
        "message_timeout": "1000s",
        "processing_mode": _full_duplex(),
        "metadata_options": {"receiving_namespaces": _LB, "forwarding_namespaces": _LB},
    }
    clusters = [
        cluster(
            "pool",
            replicas,
            load_balancing_policy=_by_metadata(selected_host_key=_key(f"{DESTINATION}-served")),
        ),
        cluster("picker", gateways, **http2()),
    ]
    return listener("pool", [_ext_proc("picker", config)]), clusters


_LB = {"untyped": ["envoy.lb"]}


def _key(name: str) -> Tree:
    return {"key": "envoy.lb", "path": [{"key": name}]}


def _by_metadata(**more: Any) -> Tree:
    return _policy(
        "override_host",
        "override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": _key(DESTINATION)}],
        fallback_policy=_policy("round_robin", "round_robin.v3.RoundRobin"),
        **more,
    )


def _policy(name: str, kind: str, **config: Any) -> Tree:
    typed = {"@type": f"{_TYPES}load_balancing_policies.{kind}", **config}
    return {
        "policies": [
            {
                "typed_extension_config": {
                    "name": f"envoy.load_balancing_policies.{name}",
                    "typed_config": typed,
                }
            }
        ]
    }


def _full_duplex() -> Tree:
    return {
        **{f"{way}_{part}_mode": "SEND" for way in ("request", "response") for part in ("header", "trailer")},
        **{f"{way}_body_mode": "FULL_DUPLEX_STREAMED" for way in ("request", "response")},
    }


def _ext_proc(picker: str, config: Tree) -> Tree:
    kind = f"{_TYPES}filters.http.ext_proc.v3.ExternalProcessor"
    service = {"envoy_grpc": {"cluster_name": picker}}
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {"@type": kind, "grpc_service": service, **config},
    }


# ---- Envoy Gateway ----


def envoy_gateway(replicas: list[str], gateways: list[str]) -> tuple[Tree, list[Tree]]:
    """The policies as Envoy Gateway translates them, and the steering patch on top."""
    name = "httproute/llm/llm/rule/0"
    policy = document("envoy-gateway/extproc.yaml", "EnvoyExtensionPolicy")["spec"]["extProc"][0]
    client = document("envoy-gateway/traffic.yaml", "ClientTrafficPolicy")["spec"]
    limits = policy["backendSettings"]["circuitBreaker"]
    check = policy["backendSettings"]["healthCheck"]
    pickers = cluster(
        "picker",
        gateways,
        circuit_breakers={"thresholds": [{"max_requests": limits["maxParallelRequests"]}]},
        health_checks=[_health_check(check["active"])],
        common_lb_config={"healthy_panic_threshold": {"value": check["panicThreshold"]}},
        **http2(),
    )
    balanced = _policy(
        "least_request", "least_request.v3.LeastRequest"
    )  # its own default, which the patch replaces
    engines = cluster(name, replicas, common_lb_config={}, load_balancing_policy=balanced)
    removed = [{"remove": header} for header in client["headers"]["earlyRequestHeaders"]["remove"]]
    kind = f"{_TYPES}http.early_header_mutation.header_mutation.v3.HeaderMutation"
    early = {"name": "early", "typed_config": {"@type": kind, "mutations": removed}}
    front = listener(
        name, [_ext_proc("picker", _translated(policy))], early_header_mutation_extensions=[early]
    )
    routes = front["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    for patch in document("envoy-gateway/steering.yaml", "EnvoyPatchPolicy")["spec"]["jsonPatches"]:
        _add({name: engines, "llm/llm/http": routes}[patch["name"]], patch["operation"])
    limit = client["connection"]["bufferLimit"]
    assert limit.endswith("Mi")
    return {**front, "per_connection_buffer_limit_bytes": int(limit[:-2]) * 2**20}, [engines, pickers]


def _add(tree: Any, change: Tree) -> None:
    """RFC 6902's `add` of a member whose parent is there."""
    *parents, last = change["path"].removeprefix("/").split("/")
    assert change["op"] == "add"
    for key in parents:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    tree[last] = change["value"]


def _translated(policy: Tree) -> Tree:
    mode, metadata = policy["processingMode"], policy["metadata"]
    assert mode["request"] == {"body": "Buffered"}
    return {
        "failure_mode_allow": policy["failOpen"],
        "message_timeout": policy["messageTimeout"],
        "processing_mode": {"request_body_mode": "BUFFERED", "response_header_mode": "SEND"},
        "response_attributes": mode["response"]["attributes"],
        "metadata_options": {
            "receiving_namespaces": {"untyped": metadata["writableNamespaces"]},
            "forwarding_namespaces": {"untyped": metadata["accessibleNamespaces"]},
        },
    }


def _health_check(active: Tree) -> Tree:
    assert active["type"] == "GRPC"
    return {
        "timeout": active["timeout"],
        "interval": active["interval"],
        "no_traffic_interval": active["interval"],
        "unhealthy_threshold": active["unhealthyThreshold"],
        "healthy_threshold": active["healthyThreshold"],
        "grpc_health_check": {"service_name": active["grpc"]["service"]},
    }


# ---- Envoy AI Gateway ----


def ai_gateway(replicas: list[str], gateways: list[str]) -> tuple[Tree, list[Tree]]:
    """What it makes of an InferencePool that fails closed: unchecked TLS, an address in a header, full duplex."""
    engines = {
        "name": "pool",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }
    config = {"failure_mode_allow": False, "message_timeout": "300s", "processing_mode": _full_duplex()}
    return listener("pool", [_ext_proc("picker", config)]), [
        engines,
        cluster("picker", gateways, **_unchecked_tls()),
    ]


def ai_gateway_open(replicas: list[str], gateways: list[str]) -> tuple[Tree, list[Tree]]:
    """What newer releases make of one that fails open: steered by metadata, a picker that is looked at."""
    config = {
        "failure_mode_allow": True,
        "message_timeout": "300s",
        "processing_mode": _full_duplex(),
        "metadata_options": {"receiving_namespaces": _LB},
    }
    check = {"timeout": "1s", "interval": "1s", "no_traffic_interval": "1s", "tcp_health_check": {}}
    picker = cluster(
        "picker",
        gateways,
        health_checks=[{**check, "unhealthy_threshold": 1, "healthy_threshold": 1}],
        common_lb_config={"healthy_panic_threshold": {"value": 0}},
        **_unchecked_tls(),
    )
    engines = cluster("pool", replicas, load_balancing_policy=_by_metadata())
    return listener("pool", [_ext_proc("picker", config)]), [engines, picker]


def _unchecked_tls() -> Tree:
    kind = f"{_TYPES}transport_sockets.tls.v3.UpstreamTlsContext"
    tls = {"@type": kind, "common_tls_context": {"validation_context": {}}}
    return {**http2(), "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls}}
