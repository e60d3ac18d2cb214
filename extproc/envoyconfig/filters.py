"""Envoy's HTTP filters: the gateway as external processor, then the router."""

from extproc.config import EnvoySettings, GatewaySettings
from extproc.envoyconfig.names import (
    GATEWAYS,
    LB_NAMESPACE,
    OWN_NAMESPACE,
    OWNED_PREFIXES,
    SELECTION,
    SUBSET_NAMESPACE,
    Tree,
    seconds,
    typed,
)

#: Headers the gateway may set or remove, in requests and in its own answers; Envoy drops any other.
#: Short, since Envoy refuses expressions whose RE2 program has more than 100 steps.
_MUTABLE = (
    "x-(gateway|kvsteer|ratelimit|mirror)-.*",
    "x-should-retry",
    "content-(length|type|encoding)",
    "retry-after",
)
#: The only request headers the gateway gets: what it reads, and clients' copies of what it owns, to remove
#: them. Credentials, cookies and the rest never leave Envoy, and each header less is CPU saved on both sides.
_FORWARDED: tuple[Tree, ...] = (
    *({"exact": name} for name in (":path", ":method", "content-encoding", "x-request-id")),
    *({"prefix": prefix} for prefix in OWNED_PREFIXES),
)
#: The rules hold for both directions: what is needed to read a response's body, beside content-encoding.
_FOR_BODIES: tuple[Tree, ...] = tuple(
    {"exact": name} for name in (":status", "content-type", "content-length")
)
#: What the gateway is told of a response, beside its usage.
_ATTRIBUTES = ("upstream.address", "response.code", "upstream.request_attempt_count")
#: Sources by which it is told of one in messages of its own stream.
_TELLING = frozenset({"trailers", "headers", "body"})
_USAGE_NAMESPACE = "envoy.ai.token_usage"


#: In conformance tests: what clients may name, and what the gateway tells them.
_FOR_TESTS: Tree = {"exact": SELECTION}
_MUTABLE_FOR_TESTS = "x-con.*"  # as short as the bound on expressions asks
_MUTABLE_TRACED = "trace.*"  # likewise: traceparent, where the gateway makes spans
_BODY_MODES = {"buffered": "BUFFERED", "full_duplex": "FULL_DUPLEX_STREAMED"}


def http_filters(settings: GatewaySettings) -> list[Tree]:
    """The filter chain, client side first."""
    feedback = settings.feedback
    chain = [ext_proc(settings)]
    if feedback.observer:
        chain.append(_observer(settings.envoy))
    if feedback.source in ("trailers", "access_log"):
        chain.append(
            _token_usage(feedback.source)
        )  # after ext_proc in the list is before it on a response's way
    return [*chain, _named("router", typed("extensions.filters.http.router.v3.Router"))]


def ext_proc(settings: GatewaySettings) -> Tree:
    """The external processor. Where it fails open, no gateway means Envoy's own balancing, and a gateway that dies
    cuts no running response.

    A request that waits is asked to be waited for, message by message, which Envoy does within a bound alone.
    """
    envoy, source, tests = settings.envoy, settings.feedback.source, settings.requests.test_selection
    forwarded = [*_FORWARDED, *(_FOR_BODIES if source == "body" else ()), *([_FOR_TESTS] if tests else [])]
    if settings.tracing.endpoint:
        forwarded.append({"exact": "traceparent"})
    config = typed(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service=_grpc_service(),
        failure_mode_allow=envoy.failure_mode == "open",
        message_timeout=seconds(envoy.message_timeout),
        processing_mode=_processing_mode(source, envoy.request_body_mode),
        forward_rules={"allowed_headers": {"patterns": forwarded}},
        mutation_rules={"disallow_all": True, "allow_expression": {"regex": _mutable(settings)}},
        metadata_options=_metadata(source),
    )
    if envoy.steering == "original_dst":
        config["route_cache_action"] = (
            "CLEAR"  # so that the header which the gateway set is seen by the routes
        )
    if settings.longest_answer:
        config["max_message_timeout"] = seconds(settings.longest_answer + envoy.message_timeout)
    if source == "body" or envoy.request_body_mode == "full_duplex":
        config["allow_content_length_header"] = True  # it stays true, or the gateway tells the new one
    if source in _TELLING:
        config["response_attributes"] = list(_ATTRIBUTES)
    return _named("ext_proc", config)


def _mutable(settings: GatewaySettings) -> str:
    """What the gateway may set, in as few steps as Envoy takes: each further name costs exactness elsewhere."""
    tests, names = settings.requests.test_selection, _handed_over(settings)
    traced = [_MUTABLE_TRACED] if settings.tracing.endpoint else []
    if not names and not (tests and traced):
        return "|".join([*_MUTABLE, *([_MUTABLE_FOR_TESTS] if tests else []), *traced])
    if tests or traced or len(names) > 1:
        return "|".join(["x-.*|content-.*|retry-after", *traced])
    owned, should_retry, _, retry_after = _MUTABLE
    return "|".join([owned, should_retry, "content-.*", retry_after, *names])


def _handed_over(settings: GatewaySettings) -> list[str]:
    """Headers that tell engines where a prompt is computed and by which rank, where pools have that done."""
    used = [pool.prefill for pool in settings.pools if pool.prefill.enabled]
    names = {name for prefill in used for name in (prefill.header, prefill.decode_header)}
    names |= {pool.ranks.header for pool in settings.pools if pool.ranks.enabled}
    return sorted(name for name in names if name and not name.startswith(OWNED_PREFIXES))


def _metadata(source: str) -> Tree:
    """What the gateway is told in dynamic metadata, and what it may tell: as the endpoint picker protocol has it."""
    told = [SUBSET_NAMESPACE, *([LB_NAMESPACE] if source in ("headers", "body") else [])]
    forwarding: Tree = {"untyped": told}
    if source == "trailers":
        forwarding["typed"] = [_USAGE_NAMESPACE]
    return {
        "receiving_namespaces": {"untyped": [LB_NAMESPACE, OWN_NAMESPACE]},
        "forwarding_namespaces": forwarding,
    }


def _processing_mode(source: str, body_mode: str) -> Tree:
    """The whole request body, in one message or, in full duplex, in pieces that come back; of the response at most
    one message, unless its body is wanted.

    STREAMED then, as it neither holds a response until its end (BUFFERED) nor makes the gateway the only one who has
    it (FULL_DUPLEX_STREAMED): a gateway that dies costs one message_timeout, and the response goes on.
    """
    return {
        "request_header_mode": "SEND",
        "request_body_mode": _BODY_MODES[body_mode],
        # Trailers are what ends a body in pieces, if there are any.
        "request_trailer_mode": "SEND" if body_mode == "full_duplex" else "SKIP",
        "response_header_mode": "SEND" if source in ("headers", "body") else "SKIP",
        "response_body_mode": "STREAMED" if source == "body" else "NONE",
        "response_trailer_mode": "SEND" if source == "trailers" else "SKIP",
    }


def _observer(envoy: EnvoySettings) -> Tree:
    """Tells of the first piece of a response's body and never waits: the gateway closes the stream at once."""
    config = typed(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service=_grpc_service(),
        failure_mode_allow=True,  # else a dead gateway costs clients a 500, although nothing waits for it
        observability_mode=True,
        allow_content_length_header=True,  # else answers of known length become chunked
        message_timeout=seconds(envoy.message_timeout),
        processing_mode={
            "request_header_mode": "SKIP",
            "response_header_mode": "SKIP",
            "response_body_mode": "STREAMED",
        },
        metadata_options={"forwarding_namespaces": {"untyped": [OWN_NAMESPACE]}},
    )
    return {"name": "kvsteer.observer", "typed_config": config}


def _grpc_service() -> Tree:
    """No deadline: the stream lives as long as the response. What a dead gateway had goes to the next."""
    return {
        "envoy_grpc": {"cluster_name": GATEWAYS},
        "timeout": "0s",
        "retry_policy": {
            "num_retries": 2,
            "retry_on": "connect-failure,refused-stream,unavailable,reset",
            "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.05s"},
        },
    }


def _token_usage(source: str) -> Tree:
    """Reads responses as they pass; without trailers of its own making nothing but the access log tells of it."""
    signal = "SYNTHESIZE_TRAILERS" if source == "trailers" else "USAGE_SIGNAL_UNSPECIFIED"
    handling = {"include_unconfigured_routes": True, "usage_signal": signal}
    config = typed(
        "extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager",
        response_handling={"token_usage": handling},
    )
    return _named("ai_protocol_manager", config)


def _named(name: str, config: Tree) -> Tree:
    return {"name": f"envoy.filters.http.{name}", "typed_config": config}
