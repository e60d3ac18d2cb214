"""Envoy's routes: one for each pool, chosen by a header only the gateway can set."""

from extproc.config import GatewaySettings, PoolSettings
from extproc.envoyconfig.names import POOL_HEADER, Tree, pool_cluster


def route_config(settings: GatewaySettings) -> Tree:
    """The route table. The first pool takes what the gateway did not route, also while it is dead."""
    host: Tree = {
        "name": "llm",
        "domains": ["*"],
        "request_body_buffer_limit": settings.limits.body,  # above it 413
        "include_attempt_count_in_response": True,
        "routes": _routes(settings),
    }
    if settings.requests.replica_header:
        host["response_headers_to_add"] = [_replica_header(settings.requests.replica_header)]
    return {"name": "llm", "virtual_hosts": [host]}


def _routes(settings: GatewaySettings) -> list[Tree]:
    first, *others = settings.pools
    chosen = [
        {"match": {"prefix": "/", "headers": [_is_pool(pool)]}, "route": _action(settings, pool)}
        for pool in others
    ]
    return [*chosen, {"match": {"prefix": "/"}, "route": _action(settings, first)}]


def _is_pool(pool: PoolSettings) -> Tree:
    return {"name": POOL_HEADER, "string_match": {"exact": pool.name}}


def _action(settings: GatewaySettings, pool: PoolSettings) -> Tree:
    """No limit on a response's length (Envoy's default is 15 s); the idle timeout ends a silent one."""
    action: Tree = {"cluster": pool_cluster(pool.name), "timeout": "0s"}
    if settings.envoy.retries:
        action["retry_policy"] = _retry_policy(settings.envoy.retries)
    return action


def _retry_policy(retries: int) -> Tree:
    """Only what the replica surely did not begin: a prompt that crashes one engine is not fed to the next."""
    predicate = "envoy.retry_host_predicates.previous_hosts"
    kind = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": retries,
        "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
        # For the fallback, which would else be free to choose the failed replica again.
        "retry_host_predicate": [{"name": predicate, "typed_config": {"@type": kind}}],
        "host_selection_retry_max_attempts": 5,
    }


def _replica_header(name: str) -> Tree:
    return {
        "header": {"key": name, "value": "%UPSTREAM_REMOTE_ADDRESS%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
