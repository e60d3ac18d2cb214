"""What the fast transport serves beside ext_proc: Envoy's access log, health watches, reflection."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from extproc.io.transports import reflection
from extproc.io.transports.h2.calls import Call
from extproc.io.transports.health import HealthBook


class Endable(Protocol):
    """A call that lasts."""

    def end(self) -> None:
        """The server stops."""
        ...


class Server(Protocol):
    """Who ends lasting calls when it stops."""

    def began(self, running: Endable) -> None:
        """End it when everything has to end."""
        ...

    def ended(self, running: Endable) -> None:
        """No longer."""
        ...


class Logs:
    """Envoy's access log: messages one way, an empty one at the end."""

    __slots__ = ("_call", "_on_log", "_server")

    def __init__(self, server: Server, call: Call, on_log: Callable[[bytes], None]) -> None:
        self._server, self._call, self._on_log = server, call, on_log
        server.began(self)

    def message(self, data: bytes) -> None:
        """Pass it on."""
        self._on_log(data)

    def half_closed(self) -> None:
        """Say thanks."""
        self._call.send(b"")
        self._call.finish()

    def end(self) -> None:
        """The server stops."""
        self.half_closed()

    def over(self) -> None:
        """Nothing more is told."""
        self._server.ended(self)


class Reflection:
    """Server reflection: an answer to each message."""

    __slots__ = ("_call", "_server")

    def __init__(self, server: Server, call: Call) -> None:
        self._server, self._call = server, call
        server.began(self)

    def message(self, data: bytes) -> None:
        """Answer."""
        self._call.send(reflection.answer(data))

    def half_closed(self) -> None:
        """All was asked."""
        self._call.finish()

    def end(self) -> None:
        """The server stops."""
        self._call.finish()

    def over(self) -> None:
        """Nothing more is told."""
        self._server.ended(self)


class Watch:
    """A health watch: the status now, then each change."""

    __slots__ = ("_call", "_health", "_request", "_task")

    def __init__(self, health: HealthBook, call: Call) -> None:
        self._health, self._call = health, call
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
        async for answer in self._health.watch(self._request):
            self._call.send(answer)
        self._task = None
        self._call.finish()
