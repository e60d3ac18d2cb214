"""How Envoy is told to reach the gateways: unix sockets, TLS, and what is refused."""

from typing import Any

import pytest
import yaml

from extproc.config import GatewaySettings, parse
from extproc.envoyconfig import bootstrap
from extproc.errors import ConfigError

TLS = {"cert_file": "/g/cert.pem", "key_file": "/g/key.pem"}


def settings(grpc: dict[str, Any], **envoy: Any) -> GatewaySettings:
    tree = {"pools": [{"replicas": ["10.0.0.1:8000"]}], "grpc": {"transport": "fast", **grpc}, "envoy": envoy}
    return parse(yaml.safe_dump(tree), "test.yaml")


def gateways(of: GatewaySettings) -> list[dict[str, Any]]:
    """The clusters of gateways."""
    found = bootstrap(of)["static_resources"]["clusters"]
    return [cluster for cluster in found if cluster["name"].startswith("kvsteer_gateways")]


def context(of: GatewaySettings) -> dict[str, Any]:
    """What they are told of TLS: the same for each."""
    told = [cluster["transport_socket"]["typed_config"] for cluster in gateways(of)]
    assert all(one == told[0] for one in told)
    found: dict[str, Any] = told[0]
    return found


def test_a_socket_is_named_as_a_pipe() -> None:
    (cluster,) = gateways(settings({"socket": "/run/kvsteer.sock"}))
    (group,) = cluster["load_assignment"]["endpoints"]
    assert group["lb_endpoints"] == [{"endpoint": {"address": {"pipe": {"path": "/run/kvsteer.sock"}}}}]
    assert cluster["type"] == "STATIC"


def test_certificates_that_gateways_make_themselves_are_taken_unseen_unless_a_ca_is_named() -> None:
    told = context(settings({"tls": {"self_signed": True}}))["common_tls_context"]
    assert told == {"alpn_protocols": ["h2"]}
    told = context(settings({"tls": {"self_signed": True}}, tls={"ca_file": "/e/ca.pem"}))
    assert told["common_tls_context"]["validation_context"]["trusted_ca"] == {"filename": "/e/ca.pem"}


def test_gateways_that_are_named_are_asked_where_they_are() -> None:
    (cluster,) = gateways(settings({"socket": "/run/kvsteer.sock"}, gateways=["10.0.0.9:50051"]))
    assert "pipe" not in str(cluster)


@pytest.mark.parametrize("path", ["kvsteer.sock", "/" + "x" * 96])
def test_a_socket_has_an_absolute_path_that_a_kernel_takes(path: str) -> None:
    with pytest.raises(ConfigError, match=r"grpc\.socket"):
        settings({"socket": path})


def test_without_tls_nothing_is_said_of_it() -> None:
    assert "transport_socket" not in str(gateways(settings({}, tls={"ca_file": "/e/ca.pem"})))


def test_every_cluster_of_gateways_speaks_tls_and_trusts_one_ca_alone() -> None:
    of = settings({"tls": TLS}, tls={"ca_file": "/e/ca.pem"}, gateways=["10.0.0.8:1", "10.0.0.9:1"])
    assert len(gateways(of)) == 3  # all of them, and each alone for the access log
    common = {"alpn_protocols": ["h2"], "validation_context": {"trusted_ca": {"filename": "/e/ca.pem"}}}
    assert context(of)["common_tls_context"] == common
    assert "sni" not in context(of)


@pytest.mark.parametrize(
    ("name", "kind", "sni"), [("gw.example", "DNS", "gw.example"), ("10.0.0.9", "IP_ADDRESS", None)]
)
def test_certificates_are_made_out_to_the_name(name: str, kind: str, sni: str | None) -> None:
    told = context(settings({"tls": TLS}, tls={"ca_file": "/e/ca.pem", "server_name": name}))
    validation = told["common_tls_context"]["validation_context"]
    assert validation["match_typed_subject_alt_names"] == [{"san_type": kind, "matcher": {"exact": name}}]
    assert told.get("sni") == sni  # RFC 6066, section 3: no addresses


def test_envoys_own_certificate_is_shown() -> None:
    own = {"ca_file": "/e/ca.pem", "cert_file": "/e/cert.pem", "key_file": "/e/key.pem"}
    told = context(settings({"tls": {**TLS, "client_ca_file": "/g/ca.pem"}}, tls=own))
    pair = {"certificate_chain": {"filename": "/e/cert.pem"}, "private_key": {"filename": "/e/key.pem"}}
    assert told["common_tls_context"]["tls_certificates"] == [pair]


@pytest.mark.parametrize(
    ("grpc", "envoy", "word"),
    [
        (TLS, {}, r"envoy\.tls\.ca_file: is missing"),
        (
            {**TLS, "client_ca_file": "/g/ca.pem"},
            {"ca_file": "/e/ca.pem"},
            r"envoy\.tls\.cert_file: is missing",
        ),
    ],
)
def test_what_would_trust_anybody_or_be_refused_is_said(
    grpc: dict[str, str], envoy: dict[str, str], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        bootstrap(settings({"tls": grpc}, tls=envoy))


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="go together"):
        settings({"tls": TLS}, tls={"ca_file": "/e/ca.pem", "cert_file": "/e/cert.pem"})
