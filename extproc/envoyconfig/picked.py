"""Steering by address, for Envoys without `override_host`: a cluster that goes where a header says, bounded.

The header is the gateway's alone: clients' copies are gone before routing (`bootstrap`), and a request that has none,
since no gateway answered, takes the pool's own cluster and Envoy's balancing.
"""

from extproc.addresses import Network, parse_address, parse_network
from extproc.config import GatewaySettings, PoolSettings
from extproc.envoyconfig.eds import answering
from extproc.envoyconfig.names import DESTINATION, POOL_HEADER, Tree, pool_cluster, typed

#: What makes a route the picked one: the gateway named a replica.
PICKED: Tree = {"name": DESTINATION, "present_match": True}


#: What a pool's engines speak -> the field of HttpProtocolOptions' explicit configuration.
_PROTOCOLS = {"http": "http_protocol_options", "h2c": "http2_protocol_options"}


def cluster_name(pool: str) -> str:
    """Name of the cluster for requests that the gateway placed."""
    return f"{pool_cluster(pool)}_picked"


def match(settings: GatewaySettings, pool: PoolSettings) -> Tree:
    """Which requests are the gateway's for this pool."""
    told: Tree = {"name": POOL_HEADER, "string_match": {"exact": pool.name}}
    return {"prefix": "/", "headers": [PICKED, *([told] if len(settings.pools) > 1 else [])]}


def cluster(settings: GatewaySettings, pool: PoolSettings) -> Tree:
    """What differs from the pool's own cluster: no members, an address for each request, and a bound on those.

    Raises:
        ConfigError: a replica is given by host name.
    """
    return {
        "name": cluster_name(pool.name),
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={_PROTOCOLS[pool.app_protocol]: {}},
                http_filters=[_bound(_networks(settings, pool)), _codec()],
            )
        },
    }


def _networks(settings: GatewaySettings, pool: PoolSettings) -> list[Network]:
    if settings.envoy.reachable:
        return [parse_network(network) for network in settings.envoy.reachable]
    addresses = [parse_address(address) for address in answering(pool)]
    return [Network(one.host, 128 if ":" in one.host else 32, one.port) for one in sorted(set(addresses))]


def _bound(networks: list[Network]) -> Tree:
    """Any other address is 403, whoever put it into the header: Envoy's own admin port is one."""
    rules = {
        "action": "ALLOW",
        "policies": {
            "replicas": {
                "principals": [{"any": True}],
                "permissions": [{"matcher": _matcher(network)} for network in networks],
            }
        },
    }
    return {
        "name": "envoy.filters.http.upstream_rbac",
        "typed_config": typed("extensions.filters.http.rbac.v3.RBAC", rules=rules),
    }


def _matcher(network: Network) -> Tree:
    kind = "extensions.rbac.matchers.upstream_ip_port.v3.UpstreamIpPortMatcher"
    return {
        "name": "envoy.rbac.matchers.upstream_ip_port",
        "typed_config": typed(
            kind,
            upstream_ip={"address_prefix": network.first, "prefix_len": network.bits},
            upstream_port_range={"start": network.port, "end": network.port + 1},  # the end is not within
        ),
    }


def _codec() -> Tree:
    kind = "extensions.filters.http.upstream_codec.v3.UpstreamCodec"
    return {"name": "envoy.filters.http.upstream_codec", "typed_config": typed(kind)}
