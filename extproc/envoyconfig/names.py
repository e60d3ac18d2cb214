"""Names that Envoy's configuration, the ext_proc server and the replicas have in common."""

from typing import Any

from extproc.core import headers

#: One object of Envoy's configuration as JSON or YAML would hold it.
Tree = dict[str, Any]

#: Dynamic metadata namespace the chosen replicas are written to (endpoint picker protocol 004).
LB_NAMESPACE = "envoy.lb"
#: Key in that namespace, and header: `ip:port[,ip:port...]` in order of preference.
DESTINATION = "x-gateway-destination-endpoint"
#: Key in that namespace where Envoy writes the replica it really used.
SERVED = "x-gateway-destination-endpoint-served"
#: Namespace for whatever else the gateway wants in Envoy's access log.
OWN_NAMESPACE = "kvsteer"
#: Key in it by which the gateway says that it knows all of a request's end.
TOLD = headers.TOLD
#: Header by which the gateway picks the pool's route, when there are several pools.
POOL_HEADER = "x-gateway-pool"
#: Header by which the gateway names a cluster that is to get a request too.
MIRROR_HEADER = headers.MIRROR
#: Every header with one of these beginnings is the gateway's; a client's copy is removed at once.
OWNED_PREFIXES = ("x-gateway-", "x-kvsteer-")
#: Namespace in which other filters limit a request to some replicas.
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
#: Further headers by which clients could steer; removed from clients too.
OWNED_NAMES = tuple(sorted(headers.OWNED_NAMES))
#: By which clients name the replicas they want, in conformance tests alone.
SELECTION = headers.SELECTION
#: gRPC service of the gateway, also the name its health is asked under.
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
#: Cluster of the gateways.
GATEWAYS = "kvsteer_gateways"


def pool_cluster(pool: str) -> str:
    """Name of a pool's cluster, also the resource name in its EDS file."""
    return f"kvsteer_pool_{pool}"


def typed(kind: str, **fields: Any) -> Tree:
    """An Envoy `Any`: `kind` is the message's full name without the `envoy.` in front."""
    return {"@type": f"type.googleapis.com/envoy.{kind}", **fields}


def seconds(value: float) -> str:
    """A duration (seconds, 0 or more) as protobuf's JSON writes it: `1s`, `0.25s`; nanoseconds at finest."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"
