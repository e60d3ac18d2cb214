"""Settings of the server that Envoy reaches: its address, its transport, and its bounds against abuse."""

import ipaddress
import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from extproc.quantities import Address, Duration, Number, Size, Whole
from extproc.settings.base import Settings, form

#: A DNS name, its first label perhaps a star.
_NAME = re.compile(
    r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)


class TlsSettings(Settings):
    """TLS on the ext_proc port. Changed files are read again without a restart."""

    cert_file: str = Field(
        default="",
        description="PEM of the certificate chain; empty speaks plain HTTP/2. What Envoy needs is under `envoy.tls`",
    )
    key_file: str = Field(default="", description="PEM of its key")
    self_signed: bool = Field(
        default=False,
        description="whether the gateway makes a key and a certificate at each start, kept in memory, instead of "
        "reading files: for data planes that insist on TLS and check nothing",
    )
    names: list[str] = Field(
        default_factory=list,
        description="with self_signed: DNS names and IP addresses in it; empty for the host's name and localhost",
    )
    client_ca_file: str = Field(
        default="", description="PEM of who signs clients' certificates; empty lets clients come without one"
    )

    @property
    def on(self) -> bool:
        """Whether TLS is spoken."""
        return bool(self.cert_file) or self.self_signed

    @field_validator("names")
    @classmethod
    def _are_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not (_NAME.fullmatch(name) or _is_ip(name)) or len(name) > 253:
                raise ValueError(f"holds {name[:260]!r}, which is neither a DNS name nor an IP address")
        return names

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together; set both or neither")
        if self.self_signed and self.cert_file:
            raise ValueError("self_signed and cert_file are both given; remove one")
        if self.names and not self.self_signed:
            raise ValueError("names are of self_signed certificates; set `self_signed: true`, or remove them")
        if self.client_ca_file and not self.on:
            raise ValueError("client_ca_file needs TLS; set cert_file and key_file, or self_signed")
        return self


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


class AbuseSettings(Settings):
    """Bounds on what one peer may make the fast transport hold or do; each is counted where it is hit."""

    connections: Whole = Field(default=1000, ge=1, le=100_000, description="most connections at once")
    streams: Whole = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="most streams on one connection, as it is told in SETTINGS; above it REFUSED_STREAM",
    )
    header_block: Size = Field(
        default=32 * 1024, ge=1024, le=2**20, description="largest header block as it is sent"
    )
    header_list: Size = Field(
        default=64 * 1024, ge=1024, le=2**20, description="largest header block once decoded"
    )
    continuations: Whole = Field(
        default=32, ge=0, le=1024, description="most CONTINUATION frames of one block"
    )
    resets: Number = Field(
        default=100.0,
        gt=0,
        le=1e6,
        description="streams a second that a peer may reset before they are answered, or make us reset; "
        "ten times as many at once",
    )
    control: Number = Field(
        default=50.0,
        gt=0,
        le=1e6,
        description="PING, SETTINGS and GOAWAY frames a second, and answers to those we sent none of; "
        "ten times as many at once",
    )
    empty: Number = Field(
        default=50.0,
        gt=0,
        le=1e6,
        description="frames a second that carry nothing; ten times as many at once",
    )
    connection_buffered: Size = Field(
        default=128 * 2**20,
        ge=2**20,
        le=2**36,
        description="unfinished messages of one connection: above it windows stay shut, at twice it streams end",
    )
    buffered: Size = Field(
        default=256 * 2**20, ge=2**20, le=2**38, description="the same for all connections together"
    )
    output: Size = Field(
        default=64 * 2**20, ge=2**16, le=2**34, description="answers that one peer leaves unread"
    )
    handshake: Duration = Field(
        default=10.0, ge=0.1, le=300, description="longest time until a connection speaks HTTP/2"
    )
    stalled: Duration = Field(
        default=30.0,
        ge=0.1,
        le=3600,
        description="longest time for which a peer may read nothing of answers that wait for it",
    )
    idle: Duration = Field(
        default=7200.0, ge=1, le=604_800, description="a connection without a stream for so long is closed"
    )


class GrpcSettings(Settings):
    """Where Envoy reaches the gateway."""

    address: Address = Field(default="0.0.0.0:50051", description="where the ext_proc server listens")
    transport: Literal["fast", "grpcio"] = Field(
        default="fast",
        description="which implementation serves ext_proc: kvsteer's own HTTP/2, or the gRPC library",
    )
    socket: str = Field(
        default="",
        pattern=r"^(|/.{1,95})$",
        json_schema_extra=form("an absolute path of at most 96 characters, or nothing"),
        description="path of a unix socket to listen on instead of `address`, with `transport: fast` only",
    )
    drain: Duration = Field(
        default=30.0, ge=0, le=3600, description="longest wait for open streams when the gateway stops"
    )
    drain_notice: Duration = Field(
        default=1.5,
        ge=0,
        le=60,
        description="how long health says NOT_SERVING before new streams are refused",
    )
    limits: AbuseSettings = Field(default_factory=AbuseSettings, description="bounds of the fast transport")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS of the ext_proc port")

    @model_validator(mode="after")
    def _fast_only(self) -> Self:
        if self.transport != "fast" and self.socket:
            raise ValueError("socket needs `transport: fast`")
        return self
