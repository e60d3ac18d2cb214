"""The transport that the settings name; each is imported only where it is used."""

import os
import socket
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from extproc.config import GrpcSettings, LimitSettings
from extproc.io.transports import SessionFactory, Transport
from extproc.settings.grpc import TlsSettings

if TYPE_CHECKING:
    from extproc.io.transports.tls import TlsSource

#: Room in a message for headers and attributes beside the largest body.
_MESSAGE_ROOM = 2**20


def build(
    settings: GrpcSettings,
    limits: LimitSettings,
    sessions: SessionFactory,
    on_log: Callable[[bytes], None],
    registry: CollectorRegistry,
    *,
    large: int,
) -> Transport:
    """The transport, not yet listening; its metrics, where it has some, go to `registry`.

    Messages above `large` bytes are given to sessions as such.
    """
    most = limits.body + _MESSAGE_ROOM
    if settings.transport == "fast":
        return _fast(settings, most, limits.streams, sessions, on_log, registry, large)
    # Read when grpc is imported. What a gateway starts is another program, for which gRPC need not be ready. When it
    # is, it stops its threads and starts others, which do not give way any more (grpc_tuning.py).
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from extproc.io.transports.grpcio import GrpcioTransport

    return GrpcioTransport(
        settings.address, sessions, max_message=most, max_streams=limits.streams, on_log=on_log,
        tls=_certificates(settings.tls), large=large,
    )  # fmt: skip


def _certificates(tls: TlsSettings) -> "TlsSource | None":
    """Where certificates come from; None where none are asked for."""
    if not tls.on:
        return None
    from extproc.io.transports.tls import SelfSigned, TlsFiles

    if tls.self_signed:
        return SelfSigned(tls.names or _own_names(), tls.client_ca_file)
    return TlsFiles(tls.cert_file, tls.key_file, tls.client_ca_file)


def _own_names() -> list[str]:
    host = socket.gethostname()
    return [host, "localhost"] if host.isascii() and 0 < len(host) <= 253 else ["localhost"]


def _fast(
    settings: GrpcSettings,
    most: int,
    streams: int,
    sessions: SessionFactory,
    on_log: Callable[[bytes], None],
    registry: CollectorRegistry,
    large: int,
) -> Transport:
    from extproc.io.transports.fast import FastTransport
    from extproc.io.transports.h2.limits import Limits
    from extproc.io.transports.metrics import TransportMetrics

    bounds = settings.limits
    names = [field.name for field in fields(Limits) if field.name in type(bounds).model_fields]
    made = FastTransport(
        f"unix:{settings.socket}" if settings.socket else settings.address,
        sessions,
        max_message=most,
        max_streams=streams,
        on_log=on_log,
        limits=Limits(**{name: getattr(bounds, name) for name in names}),
        connections=bounds.connections,
        handshake=bounds.handshake,
        stalled=bounds.stalled,
        idle=bounds.idle,
        tls=_certificates(settings.tls),
        large=large,
    )
    registry.register(TransportMetrics(made))
    return made
