"""The shape of Envoy's bootstrap and EDS files; tests/integration lets a real Envoy judge them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import EnvoySettings, GatewaySettings, parse
from extproc.envoyconfig import bootstrap, eds_document, eds_text, render, routes, write_eds
from extproc.envoyconfig.names import seconds
from extproc.envoyconfig.yamltext import to_yaml
from extproc.errors import ConfigError
from tests.examples import LETTERS
from tests.unit.yamls import read_yaml

ONE_POOL = 'pools: [{replicas: ["10.0.0.1:8000", "10.0.0.2:8000"]}]\n'
THREE_POOLS = """
pools:
  - {name: chat, models: [llama], replicas: ["10.0.0.1:8000"]}
  - {name: "n", models: [qwen], replicas: ["[fd00::2]:8000"]}
  - {name: rest, replicas: ["10.0.0.3:8000"]}
"""


def settings(text: str = ONE_POOL, **groups: Any) -> GatewaySettings:
    return parse(text + yaml.safe_dump(groups) if groups else text, "test.yaml")


def clusters(of: GatewaySettings) -> dict[str, Any]:
    return {cluster["name"]: cluster for cluster in bootstrap(of)["static_resources"]["clusters"]}


def manager(of: GatewaySettings) -> Any:
    (listener,) = bootstrap(of)["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def virtual_host(of: GatewaySettings) -> Any:
    return manager(of)["route_config"]["virtual_hosts"][0]


def ext_proc(of: GatewaySettings) -> Any:
    return manager(of)["http_filters"][0]["typed_config"]


def walk(tree: Any) -> Iterator[Any]:
    yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from walk(inner)


# ---- what clients can't do ----


def test_where_adapters_are_loaded_clients_can_not_load_any() -> None:
    loads = (
        'pools: [{engine: vllm, replicas: ["10.0.0.1:8000"], '
        "adapters: {enabled: true, loading: {enabled: true, paths: {a: /a}}}}]\n"
    )
    first = virtual_host(settings(loads))["routes"][0]
    assert first["direct_response"]["status"] == 404
    hidden = re.compile(first["match"]["safe_regex"]["regex"])
    for path in ("/v1/load_lora_adapter", "/unload_lora_adapter", "/v1/%75nload_lor%61_adapter", "/%4coad"):
        assert bool(hidden.fullmatch(path)) is (path != "/%4coad"), path
    for path in ("/v1/load_lora_adapter/", "/load_lora_adapter_from_tensors", "%2fv1%2Fload_lora_adapter"):
        assert hidden.fullmatch(path), path
    for path in (
        "//v1/load_lora_adapter",
        "/v1//load_lora_adapter",
        "/v1/./load_lora_adapter",
        "/a/../v1/unload_lora_adapter",
    ):
        assert hidden.fullmatch(path), path
    for path in ("/v1/a%2f..%2fload_lora_adapter", "/v1/%2e/load_lora_adapter"):
        assert hidden.fullmatch(path), path
    for path in ("/v1/chat/completions", "/v1/models", "/v1/models/my_load_lora_adapter"):
        assert not hidden.fullmatch(path), path
    assert "direct_response" not in str(virtual_host(settings()))


def test_clients_copies_of_the_gateways_headers_go_before_routing() -> None:
    (strip,) = manager(settings())["early_header_mutation_extensions"]
    assert strip["typed_config"]["mutations"] == [
        {"remove_on_match": {"key_matcher": {"prefix": "x-gateway-"}}},
        {"remove_on_match": {"key_matcher": {"prefix": "x-kvsteer-"}}},
        {"remove": "test-epp-endpoint-selection"},
        {"remove": "x-data-parallel-host-port"},
        {"remove": "x-data-parallel-rank"},
        {"remove": "x-encoder-hosts-ports"},
        {"remove": "x-kv-cache-source-host-port"},
        {"remove": "x-mirror-cluster"},
        {"remove": "x-prefiller-host-port"},
    ]


@pytest.mark.parametrize("text", [ONE_POOL, THREE_POOLS])
def test_only_metadata_chooses_a_host(text: str) -> None:
    sources = [
        node["override_host_sources"] for node in walk(bootstrap(settings(text))) if _is_override(node)
    ]
    assert len(sources) == len(settings(text).pools)
    key = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}
    assert all(source == [{"metadata": key}] for source in sources)


def _is_override(node: Any) -> bool:
    return isinstance(node, dict) and "override_host_sources" in node


def test_no_route_takes_its_cluster_from_a_header() -> None:
    for text in (ONE_POOL, THREE_POOLS):
        assert "cluster_header" not in render(settings(text))


def test_the_gateway_gets_only_the_headers_it_reads_or_owns() -> None:
    patterns = ext_proc(settings())["forward_rules"]["allowed_headers"]["patterns"]
    exact = {pattern["exact"] for pattern in patterns if "exact" in pattern}
    assert exact == {":path", ":method", "content-encoding", "x-request-id"}
    assert {pattern["prefix"] for pattern in patterns if "prefix" in pattern} == {"x-gateway-", "x-kvsteer-"}


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("x-gateway-destination-endpoint", True),
        ("x-gateway-pool", True),
        ("x-kvsteer-expected-hit", True),
        ("content-type", True),
        ("content-length", True),
        ("retry-after", True),
        ("x-envoy-retry-on", False),
        ("authorization", False),
        ("host", False),
        (":path", False),
        ("x-mygateway-a", False),
    ],
)
def test_the_gateway_may_change_its_own_headers_only(header: str, *, allowed: bool) -> None:
    rules = ext_proc(settings())["mutation_rules"]
    assert rules["disallow_all"] is True
    assert bool(re.fullmatch(rules["allow_expression"]["regex"], header)) is allowed


@pytest.mark.parametrize("selects", [False, True])
def test_with_tracing_it_gets_and_may_change_traceparent_too(selects: bool) -> None:
    tracing = {"endpoint": "http://127.0.0.1:4318/v1/traces"}
    traced = ext_proc(settings(tracing=tracing, requests={"test_selection": selects}))
    plain = ext_proc(settings(requests={"test_selection": selects}))
    allowed = [rules["mutation_rules"]["allow_expression"]["regex"] for rules in (plain, traced)]
    assert [bool(re.fullmatch(regex, "traceparent")) for regex in allowed] == [False, True]
    assert all(re.fullmatch(regex, "x-gateway-pool") for regex in allowed)
    assert not any(re.fullmatch(regex, "authorization") for regex in allowed)
    assert {"exact": "traceparent"} in traced["forward_rules"]["allowed_headers"]["patterns"]


# ---- failing open ----


def test_a_dead_gateway_is_an_error_where_the_settings_ask_for_it() -> None:
    assert ext_proc(settings(envoy={"failure_mode": "close"}))["failure_mode_allow"] is False


def test_engines_are_spoken_with_as_their_pool_says() -> None:
    text = """
pools:
  - {name: a, models: [llama], replicas: ["10.0.0.1:8000"], app_protocol: h2c}
  - {name: b, replicas: ["10.0.0.2:8000"]}
"""
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    over_h2c, over_http = (clusters(settings(text))[f"kvsteer_pool_{name}"] for name in "ab")
    assert over_h2c["typed_extension_protocol_options"][kind]["explicit_http_config"] == {
        "http2_protocol_options": {}
    }
    assert "typed_extension_protocol_options" not in over_http
    picked = clusters(by_address(text))["kvsteer_pool_a_picked"]["typed_extension_protocol_options"][kind]
    assert picked["explicit_http_config"] == {"http2_protocol_options": {}}


@pytest.mark.parametrize("source", ["kubernetes: {service: vllm}", "inference_pool: {name: vllm}"])
def test_what_a_mesh_finds_by_itself_needs_an_eds_folder_only_for_an_envoy_of_our_own(source: str) -> None:
    found = settings(f"pools: [{{discovery: {{{source}}}}}]\n")
    with pytest.raises(ConfigError, match=r"pool default: .* set envoy\.eds_dir"):
        bootstrap(found)
    assert clusters(found.model_copy(update={"envoy": EnvoySettings(eds_dir="/eds")}))


def test_a_dead_or_slow_gateway_is_passed_by() -> None:
    config = ext_proc(settings(envoy={"message_timeout": "300ms"}))
    assert config["failure_mode_allow"] is True
    assert config["message_timeout"] == "0.3s"
    gateways = clusters(settings())["kvsteer_gateways"]
    assert gateways["common_lb_config"] == {
        "healthy_panic_threshold": {"value": 0},
        "update_merge_window": "0s",
    }
    assert gateways["outlier_detection"]["max_ejection_percent"] == 100
    (check,) = gateways["health_checks"]
    assert check["grpc_health_check"] == {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"}
    assert check["no_traffic_interval"] == check["interval"] == "0.25s"


def test_envoy_waits_for_as_long_as_requests_may_wait_in_the_gateway() -> None:
    text = """
pools:
  - {name: a, models: [m], replicas: ["10.0.0.1:8000"], late_binding: {enabled: true, longest_wait: 20m}}
  - {name: b, replicas: ["10.0.0.2:8000"], late_binding: on}
"""
    late = settings(text, envoy={"message_timeout": "500ms"})
    assert ext_proc(late)["max_message_timeout"] == "1205.5s", (
        "5 s to read a large body, and the longest wait"
    )
    assert manager(late)["stream_idle_timeout"] == "1206.5s", (
        "600 s by default, and a second beyond the longest wait"
    )
    assert ext_proc(settings())["max_message_timeout"] == "6s", "large bodies are read beside"
    assert manager(settings())["stream_idle_timeout"] == "600s"
    off = settings('pools: [{replicas: ["10.0.0.1:8000"], late_binding: off}]\nreading: {above: 1GiB}')
    assert "max_message_timeout" not in ext_proc(off)


def test_late_binding_needs_a_policy_that_says_what_waiting_is_worth() -> None:
    with pytest.raises(ConfigError, match="write policy: charged_cost, or late_binding: off"):
        settings('pools: [{replicas: ["10.0.0.1:8000"], policy: least_tokens, late_binding: on}]')


def test_a_stream_of_a_dead_gateway_is_given_to_another() -> None:
    service = ext_proc(settings())["grpc_service"]
    assert service["envoy_grpc"] == {"cluster_name": "kvsteer_gateways"}
    assert service["timeout"] == "0s"
    assert service["retry_policy"]["num_retries"] == 2
    assert "connect-failure" in service["retry_policy"]["retry_on"]


def test_the_request_body_comes_whole_and_nothing_of_the_response() -> None:
    off = settings(feedback={"source": "off"})
    assert ext_proc(off)["processing_mode"] == {
        "request_header_mode": "SEND",
        "request_body_mode": "BUFFERED",
        "request_trailer_mode": "SKIP",
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SKIP",
    }
    names = [entry["name"] for entry in manager(off)["http_filters"]]
    assert names == ["envoy.filters.http.ext_proc", "envoy.filters.http.router"]


def test_feedback_adds_one_message_at_the_end_of_a_response() -> None:
    config = ext_proc(settings())
    assert config["processing_mode"]["response_trailer_mode"] == "SEND"
    assert config["metadata_options"]["forwarding_namespaces"] == {
        "untyped": ["envoy.lb.subset_hint"],
        "typed": ["envoy.ai.token_usage"],
    }
    names = [entry["name"] for entry in manager(settings())["http_filters"]]
    assert names[1] == "envoy.filters.http.ai_protocol_manager"


def test_headers_alone_can_tell_too_and_then_nobody_reads_usage() -> None:
    of = settings(feedback={"source": "headers"})
    mode = ext_proc(of)["processing_mode"]
    assert (mode["response_header_mode"], mode["response_trailer_mode"]) == ("SEND", "SKIP")
    assert "upstream.address" in ext_proc(of)["response_attributes"]
    assert ext_proc(of)["metadata_options"]["forwarding_namespaces"] == {
        "untyped": ["envoy.lb.subset_hint", "envoy.lb"]
    }
    assert len(manager(of)["http_filters"]) == 2


def test_by_the_access_log_envoy_reads_responses_and_sends_nothing_of_them_to_the_exchange() -> None:
    of = settings(feedback={"source": "access_log"})
    assert (
        ext_proc(of)["processing_mode"] == ext_proc(settings(feedback={"source": "off"}))["processing_mode"]
    )
    assert "response_attributes" not in ext_proc(of)
    reader = manager(of)["http_filters"][1]["typed_config"]["response_handling"]["token_usage"]
    assert reader["usage_signal"] == "USAGE_SIGNAL_UNSPECIFIED"
    assert manager(of)["access_log"]


@pytest.mark.parametrize(
    ("changes", "spared"),
    [
        ({}, True),
        ({"envoy": {"gateways": ["10.0.0.1:9002"]}}, True),
        ({"envoy": {"gateways": ["10.0.0.1:9002", "10.0.0.2:9002"]}}, False),  # each has breakers of its own
        ({"envoy": {"gateways": ["gateways.llm:9002"]}}, False),  # a name may stand for several
        ({"workers": 2}, False),
        ({"feedback": {"source": "access_log"}}, False),
        ({"feedback": {"source": "off"}}, False),
    ],
)
def test_one_gateway_alone_is_not_sent_entries_of_what_it_was_told(
    changes: dict[str, Any], spared: bool
) -> None:
    of = settings(**changes)
    matcher = {"filter": "kvsteer", "path": [{"key": "told"}], "value": {"bool_match": False}}
    untold = {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": True}}
    wanted = {"or_filter": {"filters": [untold, {"response_flag_filter": {}}]}} if spared else None
    assert {str(log.get("filter")) for log in manager(of)["access_log"]} == {str(wanted)}


def test_the_access_log_can_be_no_source_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="access_log is false"):
        settings(feedback={"source": "access_log"}, envoy={"access_log": False})


def test_bodies_come_in_pieces_with_what_is_needed_to_read_them() -> None:
    config = ext_proc(settings(feedback={"source": "body"}))
    mode = config["processing_mode"]
    assert (mode["response_header_mode"], mode["response_body_mode"]) == ("SEND", "STREAMED")
    assert mode["response_trailer_mode"] == "SKIP"
    assert config["failure_mode_allow"] is True
    assert config["allow_content_length_header"] is True
    forwarded = [pattern.get("exact") for pattern in config["forward_rules"]["allowed_headers"]["patterns"]]
    assert {":status", "content-type", "content-encoding"} <= set(forwarded)


def test_full_duplex_needs_trailers_and_keeps_the_length_that_the_client_told() -> None:
    config = ext_proc(settings(envoy={"request_body_mode": "full_duplex", "retries": 0}))
    mode = config["processing_mode"]
    assert (mode["request_body_mode"], mode["request_trailer_mode"]) == ("FULL_DUPLEX_STREAMED", "SEND")
    assert config["allow_content_length_header"] is True


def test_full_duplex_and_retries_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="set `retries: 0`"):
        settings(envoy={"request_body_mode": "full_duplex"})


@pytest.mark.parametrize("limit", ["first_byte", "silence"])
def test_full_duplex_and_limits_that_need_a_retry_policy_are_refused_together(limit: str) -> None:
    text = f'pools: [{{replicas: ["10.0.0.1:8000"], timeouts: {{{limit}: 10s}}}}]\n'
    with pytest.raises(
        ConfigError, match=r"pools\[0\]\.timeouts.*use timeouts\.total and envoy\.idle_timeout"
    ):
        settings(text, envoy={"request_body_mode": "full_duplex", "retries": 0})
    settings(text, envoy={"retries": 0})


def test_full_duplex_never_has_a_retry_policy_on_any_route() -> None:
    text = 'pools: [{replicas: ["10.0.0.1:8000"], timeouts: {total: 1h}}]\n'
    duplex: dict[str, Any] = {"request_body_mode": "full_duplex", "retries": 0}
    for steering in ("override_host", "original_dst"):
        of = settings(text, envoy={**duplex, "steering": steering}, requests={"fallbacks": 0})
        assert "retry_policy" not in str(virtual_host(of))


def test_conformance_tests_may_name_endpoints_and_nobody_else() -> None:
    of = settings(requests={"test_selection": True})
    forwarded = ext_proc(of)["forward_rules"]["allowed_headers"]["patterns"]
    (strip,) = manager(of)["early_header_mutation_extensions"]
    assert {"exact": "test-epp-endpoint-selection"} in forwarded
    assert {"remove": "test-epp-endpoint-selection"} not in strip["typed_config"]["mutations"]
    assert {"exact": "test-epp-endpoint-selection"} not in ext_proc(settings())["forward_rules"][
        "allowed_headers"
    ]["patterns"]


# ---- pools and routes ----


def test_limits_of_time_are_each_pools_own() -> None:
    text = """
pools:
  - {name: slow, models: [big], replicas: ["10.0.0.1:8000"], timeouts: {first_byte: 30s, silence: 10s, total: 1h}}
  - {name: rest, replicas: ["10.0.0.2:8000"]}
"""
    rest, slow = (route["route"] for route in virtual_host(settings(text))["routes"])
    assert slow["retry_policy"]["per_try_timeout"] == "30s"
    assert slow["retry_policy"]["per_try_idle_timeout"] == "10s"
    assert slow["max_stream_duration"] == {"max_stream_duration": "3600s"}
    assert not {"per_try_timeout", "per_try_idle_timeout"} & set(rest["retry_policy"])
    assert "max_stream_duration" not in rest


def test_a_limit_without_retries_tries_once() -> None:
    pool = {"replicas": ["10.0.0.1:8000"], "timeouts": {"silence": "10s"}}
    (route,) = virtual_host(settings("", pools=[pool], envoy={"retries": 0}))["routes"]
    assert route["route"]["retry_policy"]["num_retries"] == 0
    assert route["route"]["retry_policy"]["per_try_idle_timeout"] == "10s"


def test_one_pool_needs_no_route_matching() -> None:
    (route,) = virtual_host(settings())["routes"]
    assert route["match"] == {"prefix": "/"}
    assert route["route"]["cluster"] == "kvsteer_pool_default"


def test_several_pools_are_told_by_the_gateways_header_and_the_first_takes_the_rest() -> None:
    routes = virtual_host(settings(THREE_POOLS))["routes"]
    assert [route["route"]["cluster"] for route in routes] == [
        "kvsteer_pool_n",
        "kvsteer_pool_rest",
        "kvsteer_pool_chat",
    ]
    assert routes[0]["match"] == {
        "prefix": "/",
        "headers": [{"name": "x-gateway-pool", "string_match": {"exact": "n"}}],
    }
    assert routes[2]["match"] == {"prefix": "/"}
    assert set(clusters(settings(THREE_POOLS))) == {
        "kvsteer_pool_chat",
        "kvsteer_pool_n",
        "kvsteer_pool_rest",
        "kvsteer_gateways",
    }


def test_a_header_with_the_model_chooses_the_pool_after_the_gateways_word() -> None:
    pools = [
        {"name": "chat", "models": ["llama", "llama-8b"], "replicas": ["10.0.0.1:8000"]},
        {"name": "n", "models": ["qwen"], "replicas": ["10.0.0.2:8000"]},
        {"name": "rest", "replicas": ["10.0.0.3:8000"]},
    ]
    routes = virtual_host(settings("", pools=pools, envoy={"model_header": "x-model"}))["routes"]

    def told(header: str, value: str, pool: str) -> tuple[Any, str]:
        return [{"name": header, "string_match": {"exact": value}}], f"kvsteer_pool_{pool}"

    assert [(route["match"].get("headers"), route["route"]["cluster"]) for route in routes] == [
        told("x-gateway-pool", "chat", "chat"),
        told("x-gateway-pool", "n", "n"),
        told("x-gateway-pool", "rest", "rest"),
        told("x-model", "llama", "chat"),
        told("x-model", "llama-8b", "chat"),
        told("x-model", "qwen", "n"),
        ([{"name": "x-model", "present_match": True}], "kvsteer_pool_rest"),
        (None, "kvsteer_pool_chat"),
    ]


def test_with_one_pool_a_header_with_the_model_chooses_nothing() -> None:
    assert len(virtual_host(settings(envoy={"model_header": "x-model"}))["routes"]) == 1


@pytest.mark.parametrize(
    "name", ["x-gateway-model", "x-kvsteer-model", "x-envoy-model", "X-Model", ":path", "a b"]
)
def test_a_header_that_clients_can_not_send_is_refused_for_the_model(name: str) -> None:
    with pytest.raises(ConfigError, match=r"envoy\.model_header"):
        settings(envoy={"model_header": name})


def test_a_response_may_take_as_long_as_it_is_not_silent() -> None:
    of = settings(envoy={"idle_timeout": "90s"})
    assert virtual_host(of)["routes"][0]["route"]["timeout"] == "0s"
    assert manager(of)["stream_idle_timeout"] == "90s"


def test_the_body_limit_is_the_gateways_own() -> None:
    assert virtual_host(settings(limits={"body": "4MiB"}))["request_body_buffer_limit"] == 4 * 1024 * 1024


def test_a_host_name_among_the_replicas_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match="replica engine-1:8000: is a host name, which Envoy can't steer to"
    ):
        eds_text("a", ["10.0.0.1:8000", "engine-1:8000"])


# ---- steering by address ----


def by_address(text: str = ONE_POOL, **envoy: Any) -> GatewaySettings:
    return settings(text, envoy={"steering": "original_dst", **envoy}, requests={"fallbacks": 0})


def bounds(cluster: Any) -> list[tuple[str, int, int]]:
    """What an ORIGINAL_DST cluster may reach: address, bits, port."""
    (options,) = cluster["typed_extension_protocol_options"].values()
    rbac, codec = options["http_filters"]
    assert codec["name"] == "envoy.filters.http.upstream_codec"
    (policy,) = rbac["typed_config"]["rules"]["policies"].values()
    found = []
    for permission in policy["permissions"]:
        inner = permission["matcher"]["typed_config"]
        ip, ports = inner["upstream_ip"], inner["upstream_port_range"]
        assert ports["end"] == ports["start"] + 1
        found.append((ip["address_prefix"], ip["prefix_len"], ports["start"]))
    return found


def test_an_address_in_a_header_leads_to_the_pools_replicas_and_nowhere_else() -> None:
    picked = clusters(by_address())["kvsteer_pool_default_picked"]
    assert picked["type"] == "ORIGINAL_DST"
    assert picked["original_dst_lb_config"] == {
        "use_http_header": True,
        "http_header_name": "x-gateway-destination-endpoint",
    }
    assert bounds(picked) == [("10.0.0.1", 32, 8000), ("10.0.0.2", 32, 8000)]
    assert bounds(clusters(by_address(THREE_POOLS))["kvsteer_pool_n_picked"]) == [("fd00::2", 128, 8000)]
    wide = by_address(reachable=["10.0.0.0/8:8000", "[fd00::/8]:9000"])
    assert bounds(clusters(wide)["kvsteer_pool_default_picked"]) == [
        ("10.0.0.0", 8, 8000),
        ("fd00::", 8, 9000),
    ]


def test_only_what_the_gateway_placed_goes_by_address_and_the_rest_is_balanced() -> None:
    destination = {"name": "x-gateway-destination-endpoint", "present_match": True}
    first, rest = virtual_host(by_address())["routes"]
    assert first["match"] == {"prefix": "/", "headers": [destination]}
    assert first["route"] == {"cluster": "kvsteer_pool_default_picked", "timeout": "0s"}
    assert (rest["match"], rest["route"]["cluster"]) == ({"prefix": "/"}, "kvsteer_pool_default")
    assert rest["route"]["retry_policy"]["num_retries"] == 2
    (policy,) = clusters(by_address())["kvsteer_pool_default"]["load_balancing_policy"]["policies"]
    assert policy["typed_extension_config"]["name"] == "envoy.load_balancing_policies.least_request"
    assert ext_proc(by_address())["route_cache_action"] == "CLEAR", (
        "or the header comes too late for the routes"
    )


def test_several_pools_are_told_apart_by_address_too() -> None:
    routes = virtual_host(by_address(THREE_POOLS))["routes"]
    assert [route["route"]["cluster"] for route in routes] == [
        "kvsteer_pool_chat_picked",
        "kvsteer_pool_n_picked",
        "kvsteer_pool_rest_picked",
        "kvsteer_pool_n",
        "kvsteer_pool_rest",
        "kvsteer_pool_chat",
    ]
    assert {"name": "x-gateway-pool", "string_match": {"exact": "n"}} in routes[1]["match"]["headers"]


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        ({"envoy": {"steering": "original_dst"}}, "set requests.fallbacks to 0"),
        ({"envoy": {"reachable": ["10.0.0.0/8:8000"]}}, "reachable bounds steering: original_dst alone"),
    ],
)
def test_what_could_not_work_by_address_is_refused(groups: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        settings(**groups)


@pytest.mark.parametrize(
    "network",
    [
        "10.0.0.1/8:8000",
        "10.0.0.0/33:80",
        "10.0.0.0/8",
        "host:80",
        "fd00::/8:80",
        "[10.0.0.0/8]:80",
        "10.0.0.0/8:0",
    ],
)
def test_what_is_no_network_is_refused(network: str) -> None:
    with pytest.raises(
        ConfigError, match=r"envoy\.reachable.*(is not a network and a port|has no such port)"
    ):
        by_address(reachable=[network])


def test_found_replicas_need_a_bound_that_is_told() -> None:
    text = "pools: [{discovery: {file: {path: /etc/replicas.yaml}}}]\n"
    with pytest.raises(ConfigError, match=r"needs envoy\.reachable"):
        by_address(text, eds_dir="/eds")
    by_address(text, eds_dir="/eds", reachable=["10.0.0.0/8:8000"])


# ---- answers of Envoy's own ----


def _mapped(details: str) -> Any:
    """The mapper for a response's details, found as Envoy finds it: in order, first match."""
    for mapper in manager(settings())["local_reply_config"]["mappers"]:
        expression = mapper["filter"]["extension_filter"]["typed_config"]["expression"]
        python = expression.replace("||", " or ").replace("response.code_details", "details")
        if eval(python.replace("startsWith", "startswith"), {"details": details}):
            return mapper["body_format_override"]["json_format"]["error"]
    return None


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ("request_payload_too_large", "payload_too_large"),
        ("no_healthy_upstream", "upstream_unavailable"),
        ("upstream_reset_before_response_started{connection_termination}", "upstream_unavailable"),
        ("stream_idle_timeout", "timeout"),
        ("response_timeout", "timeout"),
        ("ext_proc_error_gRPC_error_14{}", "gateway_error"),
    ],
)
def test_envoys_own_errors_are_json_as_openai_clients_read_it(details: str, code: str) -> None:
    error = _mapped(details)
    assert error["code"] == code
    assert set(error) == {"message", "type", "code"}


def test_the_gateways_own_answers_are_left_as_they_are() -> None:
    assert "body_format" not in manager(settings())["local_reply_config"]
    assert _mapped("model_not_found") is None
    assert _mapped("via_upstream") is None


# ---- every setting does something ----

CHANGED: dict[str, Any] = {
    "listen": "[::]:8081",
    "admin": "[::1]:9902",
    "gateways": ["10.0.0.9:50051", "gateway-2:50051"],
    "eds_dir": "/etc/envoy/eds",
    "fallback": "random",
    "failure_mode": "close",
    "model_header": "x-model",
    "steering": "original_dst",
    "reachable": ["10.0.0.0/8:8000"],
    "request_body_mode": "full_duplex",
    "message_timeout": "2s",
    "idle_timeout": "30s",
    "connect_timeout": "2s",
    "access_log": False,
    "retries": 0,
    "concurrent": 2048,
}


def test_every_setting_of_envoy_is_tried() -> None:
    """TLS has tests of its own (test_envoyconfig_reach.py)."""
    assert {*CHANGED, "tls"} == set(EnvoySettings.model_fields)


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_every_setting_of_envoy_has_an_effect(name: str) -> None:
    needs: dict[str, Any] = {"request_body_mode": {"retries": 0}, "reachable": {"steering": "original_dst"}}
    beside, requests = needs.get(name, {}), {"fallbacks": 0}
    changed = settings(THREE_POOLS, envoy={name: CHANGED[name], **beside}, requests=requests)
    assert bootstrap(changed) != bootstrap(settings(THREE_POOLS, envoy=beside, requests=requests))


@pytest.mark.parametrize(
    ("fallback", "policy"),
    [
        ("least_request", "least_request.v3.LeastRequest"),
        ("round_robin", "round_robin.v3.RoundRobin"),
        ("random", "random.v3.Random"),
    ],
)
def test_the_fallback_is_envoys_policy_of_that_name(fallback: str, policy: str) -> None:
    text = render(settings(envoy={"fallback": fallback}))
    assert f"load_balancing_policies.{policy}" in text


def test_addresses_are_where_they_belong() -> None:
    tree = bootstrap(settings(envoy={"listen": "[::]:8081", "admin": "[::1]:9902"}))
    (listener,) = tree["static_resources"]["listeners"]
    socket = {"address": "::", "port_value": 8081, "ipv4_compat": True}
    assert listener["address"] == {"socket_address": socket}
    assert tree["admin"]["address"] == {"socket_address": {"address": "::1", "port_value": 9902}}


def _gateway_sockets(of: GatewaySettings) -> list[tuple[str, int]]:
    (group,) = clusters(of)["kvsteer_gateways"]["load_assignment"]["endpoints"]
    sockets = [entry["endpoint"]["address"]["socket_address"] for entry in group["lb_endpoints"]]
    return [(socket["address"], socket["port_value"]) for socket in sockets]


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("0.0.0.0:50051", ("127.0.0.1", 50051)),
        ("[::]:50052", ("::1", 50052)),
        ("10.1.2.3:50053", ("10.1.2.3", 50053)),
    ],
)
def test_without_gateways_named_this_one_is_asked(listens: str, asked: tuple[str, int]) -> None:
    assert _gateway_sockets(settings(grpc={"address": listens})) == [asked]


def test_without_gateways_named_a_port_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"grpc\.address: has port 0"):
        bootstrap(settings(grpc={"address": "127.0.0.1:0"}))


def test_gateways_may_be_host_names() -> None:
    of = settings(envoy={"gateways": ["gateway-1:50051", "10.0.0.2:50051"]})
    assert _gateway_sockets(of) == [("gateway-1", 50051), ("10.0.0.2", 50051)]
    assert clusters(of)["kvsteer_gateways"]["type"] == "STRICT_DNS"
    assert clusters(settings())["kvsteer_gateways"]["type"] == "STATIC"


def test_the_circuit_breakers_are_raised_everywhere() -> None:
    for cluster in clusters(settings(envoy={"concurrent": 5000})).values():
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        threshold.pop("retry_budget", None)
        assert threshold == dict.fromkeys(
            ("max_connections", "max_pending_requests", "max_requests", "max_retries"), 5000
        )


def test_retries_go_to_another_replica_and_can_be_turned_off() -> None:
    policy = virtual_host(settings(envoy={"retries": 3}))["routes"][0]["route"]["retry_policy"]
    assert policy["num_retries"] == 3
    assert policy["retry_host_predicate"][0]["name"] == "envoy.retry_host_predicates.previous_hosts"
    assert "retry_policy" not in virtual_host(settings(envoy={"retries": 0}))["routes"][0]["route"]


def test_the_replica_is_named_to_the_client_unless_turned_off() -> None:
    assert virtual_host(settings())["response_headers_to_add"] == [
        {
            "header": {"key": "x-kvsteer-replica", "value": "%UPSTREAM_REMOTE_ADDRESS%"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
    ]
    assert "response_headers_to_add" not in virtual_host(settings(requests={"replica_header": ""}))


# ---- YAML ----


@pytest.mark.parametrize(
    "word", ["n", "y", "Y", "on", "Off", "no", "yes", "TRUE", "null", "~", "", "1", "1e3", "0x1"]
)
def test_words_that_parsers_take_for_something_else_are_quoted(word: str) -> None:
    assert to_yaml({"key": word}) == f'key: "{word}"\n'


@given(st.text(LETTERS, max_size=20))
def test_every_string_comes_back_from_yaml(text: str) -> None:
    assert yaml.safe_load(to_yaml({"key": text})) == {"key": text}


@pytest.mark.parametrize("text", [ONE_POOL, THREE_POOLS])
def test_the_rendered_bootstrap_is_the_tree(text: str) -> None:
    of = settings(text)
    assert read_yaml(render(of)) == bootstrap(of)


@pytest.mark.parametrize(("value", "text"), [(0.0, "0s"), (1.0, "1s"), (0.25, "0.25s"), (600.0, "600s")])
def test_durations_are_written_as_protobufs_json(value: float, text: str) -> None:
    assert seconds(value) == text


# ---- EDS ----


def test_an_eds_cluster_watches_its_own_file() -> None:
    cluster = clusters(settings(envoy={"eds_dir": "/etc/envoy/eds"}))["kvsteer_pool_default"]
    source = cluster["eds_cluster_config"]["eds_config"]["path_config_source"]
    assert source == {"path": "/etc/envoy/eds/default.yaml", "watched_directory": {"path": "/etc/envoy/eds"}}
    assert "load_assignment" not in cluster


def test_an_eds_file_names_the_cluster_and_every_replica() -> None:
    document = yaml.safe_load(eds_document(settings(THREE_POOLS).pools[1]))
    (resource,) = document["resources"]
    assert resource["@type"] == "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    assert resource["cluster_name"] == "kvsteer_pool_n"
    (entry,) = resource["endpoints"][0]["lb_endpoints"]
    assert entry["endpoint"]["address"] == {"socket_address": {"address": "fd00::2", "port_value": 8000}}


def _version(text: str) -> str:
    version = yaml.safe_load(text)["version_info"]
    assert isinstance(version, str)
    return version


def test_the_version_changes_exactly_when_the_replicas_do() -> None:
    first = eds_text("a", ["10.0.0.1:8000", "10.0.0.2:8000"])
    assert eds_text("a", ["10.0.0.2:8000", "10.0.0.1:8000"]) == first
    assert _version(eds_text("a", ["10.0.0.1:8000"])) != _version(first)


def test_a_pool_may_be_empty_for_a_while() -> None:
    (resource,) = yaml.safe_load(eds_text("a", []))["resources"]
    assert resource["endpoints"] == [{"lb_endpoints": []}]


def test_replicas_that_only_compute_prompts_are_none_that_envoy_balances_over() -> None:
    """While no gateway answers they would get whole requests (docs/prefill-decode.md)."""
    text = """
pools:
  - prefill: {enabled: true}
    replicas:
      - {address: "10.0.0.1:8000", role: prefill}
      - {address: "10.0.0.2:8000", role: decode}
      - {address: "10.0.0.3:8000", role: both}
"""
    answering = [("10.0.0.2", 8000), ("10.0.0.3", 8000)]
    (group,) = clusters(settings(text))["kvsteer_pool_default"]["load_assignment"]["endpoints"]
    assert [_place(entry) for entry in group["lb_endpoints"]] == answering
    (resource,) = yaml.safe_load(eds_document(settings(text).pools[0]))["resources"]
    assert [_place(entry) for entry in resource["endpoints"][0]["lb_endpoints"]] == answering


def _place(entry: Any) -> tuple[str, int]:
    socket = entry["endpoint"]["address"]["socket_address"]
    return socket["address"], socket["port_value"]


def test_an_eds_file_is_replaced_only_when_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "as-needed"
    assert write_eds(folder, "a", "one") is True
    first = (folder / "a.yaml").stat()
    assert write_eds(folder, "a", "one") is False
    assert (folder / "a.yaml").stat().st_ino == first.st_ino
    assert write_eds(folder, "a", "two") is True
    assert (folder / "a.yaml").read_text() == "two"
    assert first.st_mode & 0o777 == 0o644
    assert [path.name for path in folder.iterdir()] == ["a.yaml"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_eds(tmp_path, "a", "one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_eds(tmp_path, "a", "two")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.yaml": "one"}


def test_a_model_of_several_versions_has_one_route_by_the_clients_header_that_of_most_weight() -> None:
    settings = parse(
        """
pools:
  - {name: old, models: [m], version: v1, weight: 5, replicas: ["10.0.0.1:1"]}
  - {name: new, models: [m], version: v2, weight: 95, replicas: ["10.0.0.2:1"]}
  - {name: rest, replicas: ["10.0.0.3:1"]}
aliases: {gpt-4: m}
envoy: {model_header: x-model}
""",
        "here",
    )
    found = routes.route_config(settings)["virtual_hosts"][0]["routes"]
    by_model = [
        (header["string_match"]["exact"], route["route"]["cluster"])
        for route in found
        for header in route["match"].get("headers", [])
        if header["name"] == "x-model" and "string_match" in header
    ]
    assert by_model == [("gpt-4", "kvsteer_pool_new"), ("m", "kvsteer_pool_new")]
