"""The transport that the settings name; each is imported only where it is used."""

from collections.abc import Callable
from dataclasses import fields

from prometheus_client import CollectorRegistry

from extproc.config import GrpcSettings, LimitSettings
from extproc.io.transports import SessionFactory, Transport

#: Room in a message for headers and attributes beside the largest body.
_MESSAGE_ROOM = 2**20


def build(
    settings: GrpcSettings,
    limits: LimitSettings,
    sessions: SessionFactory,
    on_log: Callable[[bytes], None],
    registry: CollectorRegistry,
) -> Transport:
    """The transport, not yet listening; its metrics, where it has some, go to `registry`."""
    most = limits.body + _MESSAGE_ROOM
    if settings.transport == "fast":
        return _fast(settings, most, limits.streams, sessions, on_log, registry)
    from extproc.io.transports.grpcio import GrpcioTransport

    return GrpcioTransport(
        settings.address, sessions, max_message=most, max_streams=limits.streams, on_log=on_log
    )


def _fast(
    settings: GrpcSettings,
    most: int,
    streams: int,
    sessions: SessionFactory,
    on_log: Callable[[bytes], None],
    registry: CollectorRegistry,
) -> Transport:
    from extproc.io.transports.fast import FastTransport
    from extproc.io.transports.h2.limits import Limits
    from extproc.io.transports.metrics import TransportMetrics
    from extproc.io.transports.tls import TlsFiles

    tls, bounds = settings.tls, settings.limits
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
        tls=TlsFiles(tls.cert_file, tls.key_file, tls.client_ca_file) if tls.cert_file else None,
    )
    registry.register(TransportMetrics(made))
    return made
