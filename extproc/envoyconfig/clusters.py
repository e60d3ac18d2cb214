"""Envoy's clusters: one for each pool of replicas, one for the gateways."""

from extproc.config import EnvoySettings, GatewaySettings, PoolSettings
from extproc.envoyconfig import eds, picked
from extproc.envoyconfig.names import (
    DESTINATION,
    GATEWAYS,
    LB_NAMESPACE,
    SERVED,
    SERVICE,
    Tree,
    pool_cluster,
    seconds,
    typed,
)
from extproc.envoyconfig.reach import Place, places, security
from extproc.errors import ConfigError
from extproc.settings.tries import RetrySettings

_FALLBACKS = {
    "least_request": "least_request.v3.LeastRequest",
    "round_robin": "round_robin.v3.RoundRobin",
    "random": "random.v3.Random",
}


def of_pool(settings: GatewaySettings, which: PoolSettings) -> list[Tree]:
    """The clusters of one pool: one, or with `steering: original_dst` also that of the gateway's choices.

    Raises:
        ConfigError: a replica is given by host name.
    """
    own = pool(settings, which)
    if settings.envoy.steering != "original_dst":
        return [own]
    common = {key: own[key] for key in ("connect_timeout", "circuit_breakers")}
    return [own, picked.cluster(settings, which) | common]


def pool(settings: GatewaySettings, which: PoolSettings) -> Tree:
    """The cluster of one pool: steered by metadata alone, balanced by Envoy while no gateway answers.

    Raises:
        ConfigError: a replica is given by host name, or Envoy can't learn of those that are discovered.
    """
    return {
        "name": pool_cluster(which.name),
        **_membership(settings, which),
        "connect_timeout": seconds(settings.envoy.connect_timeout),
        **(_over_h2c() if which.app_protocol == "h2c" else {}),
        "circuit_breakers": _circuit_breakers(settings.envoy, which.retries),
        # Seen only by the fallback: a picked replica is used whatever Envoy thinks of it.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_time": "30s",
        },
        "load_balancing_policy": _balancing(settings.envoy),
    }


def _membership(settings: GatewaySettings, which: PoolSettings) -> Tree:
    assignment = eds.load_assignment(which.name, eds.answering(which))
    if not settings.envoy.eds_dir:
        if which.discovery.any:
            raise ConfigError(
                f"pool {which.name}: Envoy never hears of what discovery finds; set envoy.eds_dir"
            )
        return {"type": "STATIC", "load_assignment": assignment}
    source = {
        "path": str(eds.eds_path(settings.envoy.eds_dir, which.name)),
        "watched_directory": {"path": settings.envoy.eds_dir},
    }
    return {
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "path_config_source": source}},
    }


def _circuit_breakers(envoy: EnvoySettings, retries: RetrySettings | None = None) -> Tree:
    """Envoy's default of 1024 is below what a pool streams at once; `num_retries` bounds the retries of a request.

    A budget, where there is one, is what Envoy goes by instead of `max_retries`: retries at once, as a percentage of
    the cluster's requests at the moment. Replicas that all refuse are then not asked several times as often.
    """
    names = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    limits: Tree = dict.fromkeys(names, envoy.concurrent)
    if retries is not None and retries.share and envoy.retries:
        limits["retry_budget"] = {
            "budget_percent": {"value": retries.share * 100},
            "min_retry_concurrency": retries.least,
        }
    return {"thresholds": [limits]}


def _balancing(envoy: EnvoySettings) -> Tree:
    kind = typed(f"extensions.load_balancing_policies.{_FALLBACKS[envoy.fallback]}")
    own = _policies(envoy.fallback, kind)
    return own if envoy.steering == "original_dst" else _override_host(own)


def _override_host(fallback: Tree) -> Tree:
    """Metadata is the only source: no header a client sends can choose a host, gateway alive or dead."""
    policy = typed(
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": _metadata_key(DESTINATION)}],
        selected_host_key=_metadata_key(SERVED),
        fallback_policy=fallback,
    )
    return _policies("override_host", policy)


def _metadata_key(key: str) -> Tree:
    return {"key": LB_NAMESPACE, "path": [{"key": key}]}


def _policies(name: str, config: Tree) -> Tree:
    extension = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}
    return {"policies": [{"typed_extension_config": extension}]}


def gateways(settings: GatewaySettings) -> Tree:
    """The cluster of the gateways: asked for their health, left out at once when they fail or drain.

    Raises:
        ConfigError: Envoy can't be told where they are, or how to speak TLS with them.
    """
    found = places(settings)
    return {
        "name": GATEWAYS,
        "type": _discovery(found),
        "connect_timeout": "0.25s",
        "circuit_breakers": _circuit_breakers(settings.envoy),
        **_over_h2c(),
        **security(settings),
        "common_lb_config": {
            # Envoy's default keeps asking gateways when all are unhealthy; without it fail-open is immediate.
            "healthy_panic_threshold": {"value": 0},
            # Its default holds what health checks found back for up to a second, and goes on asking the dead.
            "update_merge_window": "0s",
        },
        "health_checks": [_health_check()],
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 2,
            "interval": "0.25s",
            "base_ejection_time": "0.25s",  # doubles; the health check is what tells, this only bridges to it
            "max_ejection_time": "0.5s",
            "max_ejection_percent": 100,
        },
        "load_assignment": {
            "cluster_name": GATEWAYS,
            "endpoints": [{"lb_endpoints": [_endpoint(place) for place in found]}],
        },
    }


def log_targets(settings: GatewaySettings) -> list[str]:
    """Clusters that the access log goes to: every gateway gets all of it, as each has breakers of its own."""
    count = len(places(settings))
    return [GATEWAYS] if count == 1 else [f"{GATEWAYS}_{number}" for number in range(count)]


def single_gateways(settings: GatewaySettings) -> list[Tree]:
    """A cluster for each gateway where there are several, for what all of them are told.

    Raises:
        ConfigError: as `gateways`.
    """
    return [
        {
            "name": name,
            "type": _discovery([place]),
            "connect_timeout": "0.25s",
            **_over_h2c(),
            **security(settings),
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [{"lb_endpoints": [_endpoint(place)]}],
            },
        }
        for name, place in zip(log_targets(settings), places(settings), strict=True)
        if name != GATEWAYS
    ]


def _over_h2c() -> Tree:
    """Of a cluster whose hosts speak HTTP/2 from the first byte."""
    options = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    return {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        }
    }


def _health_check() -> Tree:
    """Four times a second, also without traffic (Envoy's default is once a minute then): a gateway that comes back
    steers a quarter of a second later, one that drains gets no new streams after half of one."""
    return {
        "timeout": "1s",
        "interval": "0.25s",
        "no_traffic_interval": "0.25s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": SERVICE},
    }


def _discovery(found: list[Place]) -> str:
    return "STRICT_DNS" if any(place.named for place in found) else "STATIC"


def _endpoint(place: Place) -> Tree:
    return {"endpoint": {"address": place.address}}
