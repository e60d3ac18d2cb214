"""What the fast transport serves beside ext_proc: Envoy's access log, health, reflection."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from extproc.io.transports import reflection
from extproc.io.transports.h2 import grpc
from extproc.io.transports.h2.calls import Call, Unary
from extproc.io.transports.health import HealthBook


class Server(Protocol):
    """What these need of the server.

    Attributes:
        on_log: given each message of the access log.
        health: answers health checks.
    """

    on_log: Callable[[bytes], None]
    health: HealthBook


class Logs(Call):
    """Envoy's access log: messages one way, an empty one at the end."""

    __slots__ = ()

    def message(self, data: bytes) -> None:
        """Pass it on."""
        server: Server = self.terms.server
        server.on_log(data)

    def half_closed(self) -> None:
        """Say thanks."""
        self.send(b"")
        self.finish()

    def end(self) -> None:
        """The server stops."""
        self.half_closed()


class Reflection(Call):
    """Server reflection: an answer to each message."""

    __slots__ = ()

    def message(self, data: bytes) -> None:
        """Answer."""
        self.send(reflection.answer(data))

    def half_closed(self) -> None:
        """All was asked."""
        self.finish()

    def end(self) -> None:
        """The server stops."""
        self.finish()


class Check(Unary):
    """A health check."""

    __slots__ = ()

    def answer(self, request: bytes) -> bytes | grpc.Refused:
        """The status."""
        server: Server = self.terms.server
        return server.health.check(request) or grpc.Refused(grpc.NOT_FOUND, "unknown service")


class Watch(Call):
    """A health watch: the status now, then each change."""

    __slots__ = ("_request", "_task")

    def begin(self) -> None:
        """Nothing is watched yet."""
        self._request = b""
        self._task: asyncio.Task[None] | None = None

    def message(self, data: bytes) -> None:
        """What is watched."""
        self._request = data

    def half_closed(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._tell())

    def over(self) -> None:
        """Nobody listens."""
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        server: Server = self.terms.server
        async for answer in server.health.watch(self._request):
            self.send(answer)
        self._task = None
        self.finish()


#: The class of a method's calls, by its path.
METHODS: Final[dict[bytes, type[Call]]] = {
    b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs": Logs,
    b"/grpc.health.v1.Health/Check": Check,
    b"/grpc.health.v1.Health/Watch": Watch,
    **{path.encode(): Reflection for path in reflection.PATHS},
}
