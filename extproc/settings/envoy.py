"""What `kvsteer envoy-config` is told about Envoy."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.addresses import parse_address, parse_network
from extproc.quantities import Address, Duration, Whole
from extproc.settings.base import Settings, form


class EnvoyTlsSettings(Settings):
    """How Envoy speaks TLS with gateways whose `grpc.tls` is on. Paths are where Envoy runs."""

    ca_file: str = Field(default="", description="PEM of who signed the gateways' certificates")
    server_name: str = Field(
        default="",
        pattern=r"^(|[A-Za-z0-9.:-]{1,253})$",
        json_schema_extra=form("a host name or an IP address, or nothing"),
        description="what the gateways' certificates must be made out to, also asked for by SNI; empty takes any "
        "that this CA signed",
    )
    cert_file: str = Field(
        default="", description="PEM of Envoy's own certificate, for gateways with `grpc.tls.client_ca_file`"
    )
    key_file: str = Field(default="", description="PEM of its key")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together; set both or neither")
        return self


class EnvoySettings(Settings):
    """What `kvsteer envoy-config` writes into Envoy's bootstrap."""

    listen: Address = Field(default="0.0.0.0:8080", description="where clients reach Envoy")
    admin: Address = Field(default="127.0.0.1:9901", description="Envoy's admin port")
    gateways: list[Address] = Field(
        default_factory=list, description="gateways Envoy may ask; empty for this one on loopback"
    )
    eds_dir: str = Field(
        default="", description="folder (absolute path) of the EDS files Envoy watches; empty for none"
    )
    fallback: Literal["least_request", "round_robin", "random"] = Field(
        default="least_request", description="Envoy's own balancing while no gateway answers"
    )
    model_header: str = Field(
        default="",
        pattern=r"^(|[a-z0-9][a-z0-9-]{0,63})$",
        json_schema_extra=form("a header's name in lower case, or nothing"),
        description=(
            "request header in which clients name their model, such as x-model: chooses the pool while no gateway "
            "answers; empty for none"
        ),
    )
    steering: Literal["override_host", "original_dst"] = Field(
        default="override_host",
        description=(
            "how Envoy is made to use the replica that was chosen: override_host reads metadata and keeps to the "
            "pool's replicas; original_dst, for Envoys without that policy, goes to the address in a header, needs "
            "`requests.fallbacks: 0` and does not try another replica when one refuses"
        ),
    )
    reachable: list[str] = Field(
        default_factory=list,
        description="with `steering: original_dst`: where Envoy may go at most, such as 10.0.0.0/8:8000; empty for "
        "the pools' replicas",
    )
    request_body_mode: Literal["buffered", "full_duplex"] = Field(
        default="buffered",
        description=(
            "how request bodies come to the gateway: buffered leaves them with Envoy, full_duplex sends them through "
            "the gateway and needs `retries: 0` and no `timeouts.first_byte` or `silence`, since Envoy 1.40 else "
            "sends bodies that end by trailers twice"
        ),
    )
    message_timeout: Duration = Field(
        default=1.0, ge=0.05, le=60, description="longest wait for one answer of the gateway"
    )
    idle_timeout: Duration = Field(
        default=600.0, ge=1, le=86400, description="longest silence within a response"
    )
    connect_timeout: Duration = Field(
        default=1.0, ge=0.05, le=60, description="longest wait for a replica's connection"
    )
    failure_mode: Literal["open", "close"] = Field(
        default="open",
        description=(
            "requests while no gateway answers: open has Envoy balance them itself; close answers them with an "
            "error, and answers that are on their way then can be cut"
        ),
    )
    access_log: bool = Field(
        default=True,
        description="Envoy tells every gateway how requests ended, in batches: what breakers live on",
    )
    retries: Whole = Field(
        default=2,
        ge=0,
        le=5,
        description="further replicas Envoy tries when one refuses the connection or answers 503",
    )
    concurrent: Whole = Field(
        default=100_000,
        ge=1024,
        le=10_000_000,
        description="most connections, requests and gateway streams at once (circuit breakers)",
    )

    tls: EnvoyTlsSettings = Field(
        default_factory=EnvoyTlsSettings, description="TLS from Envoy to the gateways"
    )

    @field_validator("listen", "admin")
    @classmethod
    def _is_ip(cls, address: str) -> str:
        if not parse_address(address).is_ip:
            raise ValueError("is a host name; Envoy listens on IP addresses, such as 127.0.0.1 or 0.0.0.0")
        return address

    @field_validator("model_header")
    @classmethod
    def _is_the_clients(cls, name: str) -> str:
        if name.startswith(("x-gateway-", "x-kvsteer-", "x-envoy-")):
            raise ValueError("is a header that clients can't send; name another, such as x-model")
        return name

    @field_validator("gateways")
    @classmethod
    def _have_ports(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            if parse_address(address).port == 0:
                raise ValueError(f"holds {address}, which has port 0; write the gateway's port")
        return addresses

    @field_validator("reachable")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        return [str(parse_network(network)) for network in networks]

    @field_validator("eds_dir")
    @classmethod
    def _is_absolute(cls, folder: str) -> str:
        if folder and not folder.startswith("/"):
            raise ValueError("is not absolute; Envoy and the gateway must find the same folder")
        return folder

    @model_validator(mode="after")
    def _bounds_what_can_be_reached(self) -> Self:
        if self.reachable and self.steering != "original_dst":
            raise ValueError(
                "reachable bounds steering: original_dst alone; override_host keeps to the pool's replicas; remove it"
            )
        return self

    @model_validator(mode="after")
    def _sends_bodies_once(self) -> Self:
        if self.request_body_mode == "full_duplex" and self.retries:
            raise ValueError(
                "request_body_mode: full_duplex and retries don't go together, as Envoy 1.40 would send bodies that "
                "end by trailers twice; set `retries: 0`, or `request_body_mode: buffered`"
            )
        return self
