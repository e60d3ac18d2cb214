"""What serves ext_proc. One file each behind `Transport`; only these import grpc."""

from collections.abc import Callable
from typing import Protocol

#: One serialized message, several, or none.
Answer = bytes | tuple[bytes, ...] | None


class Session(Protocol):
    """One ext_proc stream, as a transport sees it."""

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        """Take in one serialized message: the answer, whether to close with OK, whether it may end here."""
        ...

    def end(self) -> None:
        """The stream is over. Called exactly once."""
        ...


SessionFactory = Callable[[], Session]


class Transport(Protocol):
    """A gRPC server for `envoy.service.ext_proc.v3.ExternalProcessor` and `grpc.health.v1.Health`."""

    port: int

    async def start(self) -> None:
        """Bind and serve. Raises OSError when the address can't be had."""
        ...

    def set_ready(self, ready: bool) -> None:
        """What health checks answer for everything but liveness."""
        ...

    async def stop(self, grace: float) -> None:
        """End every stream with OK where it stands, waiting up to `grace` seconds for those undecided."""
        ...
