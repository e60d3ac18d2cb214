"""Envoy's routes: one for each pool, chosen by a header only the gateway can set; without it by the client's."""

import json
from typing import Final

from extproc.config import GatewaySettings, PoolSettings
from extproc.envoyconfig import picked
from extproc.envoyconfig.names import MIRROR_HEADER, POOL_HEADER, Tree, pool_cluster, seconds


def _in_any_form(text: str) -> str:
    """A regular expression for a path, each of its letters as it is or percent-encoded, as engines decode them."""
    return "".join(f"(?:{letter}|%(?i:{ord(letter):02x}))" for letter in text)


#: The engines' calls that load and unload adapters (extproc/engines/adapter_calls.py), and what begins like them;
#: behind whatever path, as `//v1/`, `/v1/./` or `/a/../v1/` lead there where something puts paths in order.
_ADAPTER_CALLS: Final = "".join(
    [
        *(".*", _in_any_form("/")),
        *(f"(?:{_in_any_form('un')})?", _in_any_form("load_lora_adapter"), ".*"),
    ]
)


def route_config(settings: GatewaySettings) -> Tree:
    """The route table. The first pool takes what neither the gateway nor `envoy.model_header` routes."""
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
    """By the gateway's word, then by the client's if it may name its model, else the first pool."""
    first, *others = settings.pools
    chosen = [_picked(settings, pool) for pool in settings.pools] if _by_address(settings) else []
    header = settings.envoy.model_header if others else ""
    by_gateway = settings.pools if header else others
    told = [_route(settings, pool, _is(POOL_HEADER, pool.name)) for pool in by_gateway]
    hidden = [_hidden(_ADAPTER_CALLS)] if any(pool.adapters.loads for pool in settings.pools) else []
    return [
        *hidden,
        *chosen,
        *told,
        *(_by_model(settings, header) if header else []),
        _route(settings, first),
    ]


def _hidden(path: str) -> Tree:
    """A path that clients are not to reach: engines that let the gateway load adapters would let them, too."""
    error = {"message": "There is no such path here.", "type": "invalid_request_error", "code": "not_found"}
    kind = {"header": {"key": "content-type", "value": "application/json"}}
    return {
        "match": {"safe_regex": {"regex": path}},
        "direct_response": {"status": 404, "body": {"inline_string": json.dumps({"error": error})}},
        "response_headers_to_add": [{**kind, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }


def _by_address(settings: GatewaySettings) -> bool:
    return settings.envoy.steering == "original_dst"


def _picked(settings: GatewaySettings, pool: PoolSettings) -> Tree:
    """What the gateway placed. Envoy would try the same replica again, so it tries once."""
    action: Tree = {"cluster": picked.cluster_name(pool.name), **_limits(pool, 0)}
    return {"match": picked.match(settings, pool), "route": action}


def _by_model(settings: GatewaySettings, header: str) -> list[Tree]:
    """As near to what the gateway would do as Envoy can: the pool that lists the model, else one that lists none.

    Of several the one with the most weight, and of these the first: Envoy knows no lengths and no conversations.
    """
    by_weight = sorted(settings.pools, key=lambda pool: -pool.weight)
    owners: dict[str, PoolSettings] = {}
    for pool in by_weight:
        for model in pool.models:
            owners.setdefault(model, pool)
    names = {**{alias: owners.get(model) for alias, model in settings.aliases.items()}, **owners}
    exact = [
        _route(settings, pool, _is(header, model))
        for pool in settings.pools
        for model in sorted(names)
        if names[model] is pool
    ]
    rest = [pool for pool in by_weight if not pool.models][:1]
    return [*exact, *(_route(settings, pool, {"name": header, "present_match": True}) for pool in rest)]


def _route(settings: GatewaySettings, pool: PoolSettings, header: Tree | None = None) -> Tree:
    match: Tree = {"prefix": "/", **({"headers": [header]} if header else {})}
    return {"match": match, "route": _action(settings, pool)}


def _is(header: str, value: str) -> Tree:
    return {"name": header, "string_match": {"exact": value}}


def _action(settings: GatewaySettings, pool: PoolSettings) -> Tree:
    return {"cluster": pool_cluster(pool.name), **_limits(pool, settings.envoy.retries)}


def _limits(pool: PoolSettings, retries: int) -> Tree:
    """No limit on a response's length (Envoy's default is 15 s); the idle timeout ends a silent one."""
    action: Tree = {"timeout": "0s"}
    limits = _limits_of_a_try(pool)
    if retries or limits:
        action["retry_policy"] = {**_retry_policy(retries), **limits}
    if pool.mirror.pool:  # which requests, the gateway says, each with the cluster in a header
        action["request_mirror_policies"] = [{"cluster_header": MIRROR_HEADER}]
    if pool.timeouts.total:
        action["max_stream_duration"] = {"max_stream_duration": seconds(pool.timeouts.total)}
    return action


def _limits_of_a_try(pool: PoolSettings) -> Tree:
    """Limits that begin when a replica has the request: the wait for the gateway is none of its doing."""
    first_byte, silence = pool.timeouts.first_byte, pool.timeouts.silence
    return {
        **({"per_try_timeout": seconds(first_byte)} if first_byte else {}),
        **({"per_try_idle_timeout": seconds(silence)} if silence else {}),
    }


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
