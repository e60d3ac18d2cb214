"""Several gateways on one machine, by one configuration: what each of them is told.

Worker 0 listens where the configuration says; worker N on the N-th port after it, for Envoy and for its admin port.
Each has a listener of its own because Envoy balances over addresses: a shared port would spread connections, of which
Envoy keeps few, and leave workers idle.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from extproc.addresses import HostPort, parse_address
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.settings import GatewaySettings

#: Environment variables by which a parent tells a worker its number, and the Redis that was started for all.
WORKER, WORKER_REDIS = "KVSTEER_WORKER", "KVSTEER_WORKER_REDIS"


def worker_number(environment: Mapping[str, str]) -> int | None:
    """Which worker this process is; None when it is none."""
    text = environment.get(WORKER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


def worker_settings(settings: "GatewaySettings", number: int, redis_url: str = "") -> "GatewaySettings":
    """The settings of one worker.

    Args:
        settings: of all of them.
        number: from 0.
        redis_url: the Redis to share through where the settings name none.
    """
    changes: dict[str, object] = {
        "workers": 1,
        "gateway_id": f"{settings.gateway_id}-{number}" if settings.gateway_id else "",
        "grpc": settings.grpc.model_copy(update={"address": str(_shifted(settings.grpc.address, number))}),
        "admin": settings.admin.model_copy(update={"address": str(_shifted(settings.admin.address, number))}),
    }
    if redis_url and not settings.redis.url:
        changes["redis"] = settings.redis.model_copy(update={"url": redis_url})
    return settings.model_copy(update=changes)


def listeners(settings: "GatewaySettings") -> list[HostPort]:
    """Where Envoy reaches each worker; hosts as configured, 0.0.0.0 included."""
    return [_shifted(settings.grpc.address, number) for number in range(settings.workers)]


def check_workers(settings: "GatewaySettings") -> str:
    """What keeps the workers from having a port each, in a sentence that says how to mend it; "" for nothing."""
    grpc, admin = parse_address(settings.grpc.address), parse_address(settings.admin.address)
    count = settings.workers
    for name, address in (("grpc.address", grpc), ("admin.address", admin)):
        if address.port and address.port + count - 1 > 65535:
            return f"{name}: {count} workers need ports up to {address.port + count - 1}; begin lower"
    if grpc.port and admin.port and abs(grpc.port - admin.port) < count and count > 1:
        return (
            f"grpc.address and admin.address are {abs(grpc.port - admin.port)} ports apart, and each of {count} "
            f"workers takes one of both; put them at least {count} apart"
        )
    return ""


def _shifted(address: str, number: int) -> HostPort:
    host, port = parse_address(address)
    return HostPort(host, port + number if port else 0)


def with_workers(settings: "GatewaySettings", count: int | None) -> "GatewaySettings":
    """The settings with another number of workers; None leaves it as it is.

    Raises:
        ConfigError: they can't have a port each.
    """
    if count is None:
        return settings
    changed = settings.model_copy(update={"workers": count})
    if wrong := check_workers(changed):
        raise ConfigError(f"--workers {count}: {wrong}")
    return changed
