"""A complete Envoy 1.40 bootstrap for a configuration: `kvsteer envoy-config` prints it."""

from extproc.addresses import HostPort, parse_address
from extproc.config import GatewaySettings
from extproc.envoyconfig import clusters, replies, routes
from extproc.envoyconfig.filters import http_filters
from extproc.envoyconfig.identity import with_identity
from extproc.envoyconfig.names import (
    OWN_NAMESPACE,
    OWNED_NAMES,
    OWNED_PREFIXES,
    SELECTION,
    TOLD,
    Tree,
    seconds,
    typed,
)
from extproc.envoyconfig.yamltext import to_yaml

_HEAD = """\
# Envoy 1.40 in front of kvsteer, made by `kvsteer envoy-config`: change the settings, not this file.
"""
_EDS_HEAD = """\
# Envoy starts only when its EDS files are there: start `kvsteer serve` first, which writes them, or write them
# with `kvsteer envoy-config -c FILE --eds --output FOLDER`.
"""


def bootstrap(settings: GatewaySettings) -> Tree:
    """Envoy's whole configuration as a tree.

    Raises:
        ConfigError: a replica is given by host name, or Envoy can't be told where the gateway is.
    """
    return {
        "node": {"id": settings.gateway_id or "kvsteer-envoy", "cluster": "kvsteer"},
        "admin": {"address": _socket_address(settings.envoy.admin)},
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [
                *(cluster for pool in settings.pools for cluster in clusters.of_pool(settings, pool)),
                *(clusters.single_gateways(settings) if settings.envoy.access_log else []),
                clusters.gateways(settings),
            ],
        },
        "overload_manager": _connection_limit(settings.envoy.concurrent),
    }


def render(settings: GatewaySettings) -> str:
    """The bootstrap as YAML that Envoy reads as meant.

    Raises:
        ConfigError: as `bootstrap`.
    """
    start = _EDS_HEAD if settings.envoy.eds_dir else ""
    return _HEAD + start + to_yaml(bootstrap(settings))


def _listener(settings: GatewaySettings) -> Tree:
    manager = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": _connection_manager(settings),
    }
    return {
        "name": "llm",
        "address": _socket_address(settings.envoy.listen),
        "per_connection_buffer_limit_bytes": 2**20,
        "filter_chains": [{"filters": [manager]}],
    }


def _connection_manager(settings: GatewaySettings) -> Tree:
    return typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="llm",
        # This Envoy is the edge: clients' x-envoy-* (timeouts, retries) are dropped, request ids made here.
        use_remote_address=True,
        # By its id the decision on a request is found (/decisions, the live page), so clients are told it.
        always_set_request_id_in_response=True,
        # Covers the wait for the gateway, for the first token, and between two tokens.
        stream_idle_timeout=seconds(_idle_timeout(settings)),
        request_headers_timeout="30s",
        early_header_mutation_extensions=[_strip(settings)],
        local_reply_config=replies.local_reply_config(settings.limits.body),
        route_config=routes.route_config(settings),
        http_filters=with_identity(http_filters(settings), settings.admission),
        **({"access_log": _access_logs(settings)} if settings.envoy.access_log else {}),
    )


def _idle_timeout(settings: GatewaySettings) -> float:
    """Seconds; a request that waits in the gateway is silent, and must outlast that and the gateway's answer."""
    waits = settings.longest_answer
    return max(settings.envoy.idle_timeout, waits + settings.envoy.message_timeout + 1.0 if waits else 0.0)


def _access_logs(settings: GatewaySettings) -> list[Tree]:
    spared = {"filter": _untold()} if settings.spares_log else {}
    return [_access_log(cluster) | spared for cluster in clusters.log_targets(settings)]


def _untold() -> Tree:
    """Matches requests of which the gateway was not told all at the end of the response, in good order at that."""
    # Of a matcher's `invert` this filter knows nothing: what is there and not false does not match.
    told = {"filter": OWN_NAMESPACE, "path": [{"key": TOLD}], "value": {"bool_match": False}}
    untold = {"metadata_filter": {"matcher": told, "match_if_key_not_found": True}}
    return {"or_filter": {"filters": [untold, {"response_flag_filter": {}}]}}


def _access_log(cluster: str) -> Tree:
    """How each request ended, sent to a gateway in batches: a fifth of a second is soon enough for a breaker."""
    common = {
        "log_name": "kvsteer",
        "transport_api_version": "V3",
        "buffer_flush_interval": "0.2s",
        "grpc_service": {"envoy_grpc": {"cluster_name": cluster}},
    }
    return {
        "name": "envoy.access_loggers.http_grpc",
        "typed_config": typed(
            "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            common_config=common,
            additional_response_headers_to_log=["retry-after"],
        ),
    }


def _strip(settings: GatewaySettings) -> Tree:
    """Removes clients' copies of the gateway's headers before routing and filters, gateway alive or dead."""
    mutations: list[Tree] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in OWNED_PREFIXES
    ]
    kept = SELECTION if settings.requests.test_selection else ""
    removed: list[Tree] = [{"remove": name} for name in OWNED_NAMES if name != kept]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": typed(
            "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            mutations=[*mutations, *removed],
        ),
    }


def _socket_address(address: str) -> Tree:
    host, port = parse_address(address)
    return {"socket_address": _socket(HostPort(host, port))}


def _socket(address: HostPort) -> Tree:
    both = {"ipv4_compat": True} if address.host == "::" else {}
    return {"address": address.host, "port_value": address.port, **both}


def _connection_limit(most: int) -> Tree:
    monitor = typed(
        "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=most,
    )
    name = "envoy.resource_monitors.global_downstream_max_connections"
    return {"resource_monitors": [{"name": name, "typed_config": monitor}]}
