"""The headers the gateway owns: a client's copy of one never reaches a replica nor steers anything."""

import re
from typing import Final

#: Where Envoy is to send the request: one or more ip:port, best first. Also a key of dynamic metadata.
DESTINATION: Final = "x-gateway-destination-endpoint"
#: Key in the same namespace where Envoy tells which endpoint really answered.
SERVED: Final = "x-gateway-destination-endpoint-served"
#: Namespace and key of dynamic metadata in which Envoy limits a request to some endpoints.
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
#: By which conformance tests name the endpoints they want, and are told which one answered.
SELECTION: Final = "test-epp-endpoint-selection"
ANSWERED: Final = "x-conformance-test-served-endpoint"
#: Which pool answers, where a gateway serves several; Envoy's routes match on it.
POOL: Final = "x-gateway-pool"
#: Envoy's cluster that is to get the request too.
MIRROR: Final = "x-mirror-cluster"
#: Told to an engine with data-parallel ranks behind one address: which of them computes the request.
DATA_PARALLEL_RANK: Final = "x-data-parallel-rank"
#: Namespace of the dynamic metadata that Envoy's override_host policy reads.
LB_NAMESPACE: Final = "envoy.lb"
#: Namespace of what the gateway tells itself through Envoy: which exchange a response belongs to.
OWN_NAMESPACE: Final = "kvsteer"
#: Key in it.
MARK: Final = "exchange"
#: Key in that namespace, true where the gateway was told all that the access log would tell of a request.
TOLD: Final = "told"
#: Told to the replica: the prompt tokens its cache is expected to hold, and this request's id.
EXPECTED_HIT: Final = "x-kvsteer-expected-hit"
REQUEST_ID: Final = "x-kvsteer-request-id"

#: Every header with one of these prefixes is the gateway's.
OWNED_PREFIXES: Final = ("x-gateway-", "x-kvsteer-")
#: Further owned headers: routing levers of Envoy's configuration that a client must not pull, and
#: what endpoint pickers tell engines and the proxies in front of them: which rank computes a request, where its
#: prompt was computed, where its cache is.
OWNED_NAMES: Final = frozenset(
    {
        MIRROR,
        SELECTION,
        DATA_PARALLEL_RANK,
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
    }
)
#: Removed on every path, seen or not, so that a copy that hides (a trailer, a late filter) goes too.
ALWAYS_REMOVED: Final = (DESTINATION, POOL, EXPECTED_HIT, REQUEST_ID, MIRROR)

_PLAIN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")


def is_owned(name: str) -> bool:
    """Whether the gateway owns a header of this lower-case name."""
    return name.startswith(OWNED_PREFIXES) or name in OWNED_NAMES


def plain_id(value: str) -> str | None:
    """The client's request id if it is harmless as a header value and in a log; else None."""
    return value if _PLAIN_ID.match(value) else None
