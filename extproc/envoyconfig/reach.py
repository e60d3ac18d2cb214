"""How Envoy reaches the gateways: their addresses or unix sockets, and TLS to them."""

import ipaddress
from dataclasses import dataclass

from extproc.addresses import HostPort, parse_address
from extproc.config import GatewaySettings
from extproc.envoyconfig.names import Tree, typed
from extproc.errors import ConfigError
from extproc.settings.envoy import EnvoyTlsSettings
from extproc.settings.grpc import TlsSettings
from extproc.workers import listeners

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on


@dataclass(frozen=True, slots=True)
class Place:
    """Where one gateway is.

    Attributes:
        address: Envoy's core.v3.Address.
        named: whether it has a host name, which has to be resolved.
    """

    address: Tree
    named: bool = False


def places(settings: GatewaySettings) -> list[Place]:
    """Where all the gateways are: as `envoy.gateways` says, else this one, by its socket or on loopback.

    Raises:
        ConfigError: `envoy.gateways` is empty and `grpc.address` leaves the port to chance.
    """
    if settings.envoy.gateways:
        return [_place(parse_address(address)) for address in settings.envoy.gateways]
    if settings.grpc.socket:
        return [Place({"pipe": {"path": settings.grpc.socket}})]
    if parse_address(settings.grpc.address).port == 0:
        raise ConfigError(
            "grpc.address: has port 0, so Envoy can't be told where the gateway is; "
            "write a port, or list gateways under envoy.gateways"
        )
    return [_place(HostPort(_LOOPBACK.get(host, host), port)) for host, port in listeners(settings)]


def _place(where: HostPort) -> Place:
    return Place({"socket_address": {"address": where.host, "port_value": where.port}}, named=not where.is_ip)


def security(settings: GatewaySettings) -> Tree:
    """What a cluster of gateways needs to speak TLS; nothing when they speak none.

    Raises:
        ConfigError: Envoy would trust any gateway, or the gateways would refuse Envoy.
    """
    if not settings.grpc.tls.on:
        return {}
    ours = settings.envoy.tls
    if settings.grpc.tls.client_ca_file and not ours.cert_file:
        raise ConfigError(
            "envoy.tls.cert_file: is missing while grpc.tls.client_ca_file asks clients for a certificate; "
            "name Envoy's certificate and key"
        )
    context: Tree = {
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            **_validation(settings.grpc.tls, ours),
            **_certificate(ours.cert_file, ours.key_file),
        }
    }
    if ours.server_name and not _is_ip(ours.server_name):
        context["sni"] = ours.server_name
    kind = "extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    socket = {"name": "envoy.transport_sockets.tls", "typed_config": typed(kind, **context)}
    return {"transport_socket": socket}


def _validation(theirs: TlsSettings, ours: EnvoyTlsSettings) -> Tree:
    """What the gateways' certificates are checked by; nothing for those that gateways make themselves, as nothing
    could be."""
    if ours.ca_file:
        checked = {"trusted_ca": {"filename": ours.ca_file}, **_name_check(ours.server_name)}
        return {"validation_context": checked}
    if theirs.self_signed:
        return {}
    raise ConfigError(
        "envoy.tls.ca_file: is missing while grpc.tls is on, so Envoy would take anybody for the gateway; "
        "name the PEM of who signed grpc.tls.cert_file"
    )


def _certificate(cert_file: str, key_file: str) -> Tree:
    if not cert_file:
        return {}
    pair = {"certificate_chain": {"filename": cert_file}, "private_key": {"filename": key_file}}
    return {"tls_certificates": [pair]}


def _name_check(name: str) -> Tree:
    """The name that the gateway's certificate must hold; without one any that the CA signed will do."""
    if not name:
        return {}
    kind = "IP_ADDRESS" if _is_ip(name) else "DNS"
    return {"match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": name}}]}


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
