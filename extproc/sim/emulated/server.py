"""The emulated engine as a server: a listening socket, its connections, and what restarts and stops do."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

from extproc.addresses import HostPort
from extproc.sim.emulated.api import Api
from extproc.sim.emulated.faults import BadControl, Control, Faults
from extproc.sim.emulated.life import Life
from extproc.sim.emulated.ranks import Ranks
from extproc.sim.emulated.settings import EngineSettings

#: Seconds an idle connection is kept. Longer than Envoy's pools keep theirs in tests, so that it is
#: never this side that closes one just as a request comes.
_KEEPALIVE = 3600.0
#: Connections the kernel queues; 1,500 clients may come at once.
_BACKLOG = 4096
#: Longest wait, in seconds, for a port to be free again after its own listener was closed.
_REBIND_DEADLINE = 5.0
#: Seconds that a handler whose sequences have ended gets to write the rest of its answer.
_LAST_WORDS = 0.05


class EmulatedEngine:
    """One emulated replica.

    ```
    async with EmulatedEngine(EngineSettings(name="r1")) as engine:
        ...  # http://{engine.address}
    ```
    """

    def __init__(
        self, settings: EngineSettings | None = None, control: Control | Mapping[str, Any] | None = None
    ) -> None:
        """`control` holds faults that are on from the start."""
        self.settings = settings or EngineSettings()
        self.faults = Faults()
        #: Set while the engine takes connections.
        self.up = asyncio.Event()
        #: Restarts so far.
        self.restarts = 0
        self._first = control
        self._api = Api(self)
        self._ranks: Ranks | None = None
        self._address: HostPort | None = None
        self._http: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self._frozen: str | None = None

    @property
    def life(self) -> Life:
        """The scheduler and the counters since the last start, of the first rank; raises like `ranks`."""
        return self.ranks.first

    @property
    def ranks(self) -> Ranks:
        """Schedulers and counters since the last start, of each data-parallel rank.

        Raises:
            RuntimeError: the engine was never started.
        """
        if self._ranks is None:
            raise RuntimeError("the engine is not started; use `async with` or `await engine.start()`")
        return self._ranks

    @property
    def address(self) -> str:
        """Where it listens, `host:port`.

        Raises:
            RuntimeError: the engine was never started.
        """
        if self._address is None:
            raise RuntimeError("the engine is not started; use `async with` or `await engine.start()`")
        return str(self._address)

    @property
    def port(self) -> int:
        """The port it listens on; raises like `address`."""
        return int(self.address.rpartition(":")[2])

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address can't be bound.
        """
        sock = _bind(self.settings.host, self.settings.port)
        host, port = sock.getsockname()[:2]
        self._address = HostPort(host, port)
        self._http = web.Server(
            self._api.handle,
            request_factory=self._make_request,
            handler_cancellation=True,  # a client that goes away frees its blocks
            access_log=None,
            auto_decompress=False,  # the bytes as received are what is hashed
            keepalive_timeout=_KEEPALIVE,
        )
        self._ranks = Ranks(self.settings)
        await self._listen(sock)
        if self._first:
            self.control(self._first)

    async def stop(self) -> None:
        """Take no more connections, give running responses `stop_timeout` seconds, then close everything."""
        if self._restarting:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        if self._dropping:
            self._dropping.cancel()
        self._close_listener()
        if self._http is None or self._ranks is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ranks.idle(), self.settings.stop_timeout)
        await self._http.shutdown(_LAST_WORDS)
        await self._api.close()
        self._ranks.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def control(self, change: Control | Mapping[str, Any]) -> dict[str, Any]:
        """Switch faults on and off, as POST /_control does; the state after it.

        Raises:
            BadControl: an unknown key, a value out of range, or a restart during a restart.
        """
        if not isinstance(change, Control):
            change = Control.read(orjson.dumps(dict(change)))
        if change.restart and self._restarting and not self._restarting.done():
            raise BadControl("restart: one is under way; wait until it is over")
        self.faults.apply(change)
        for life in self.ranks.lives:
            life.scheduler.slow = self.faults.slow
        if "drop_cache" in change.model_fields_set:
            self._drop_cache(now=change.drop_cache is not None)
        if "freeze_metrics" in change.model_fields_set:
            self._frozen = self.ranks.metrics() if self.faults.freeze_metrics else None
        if change.restart:
            self._restarting = asyncio.create_task(self._restart(change.restart.down))
        return self.state()

    def state(self) -> dict[str, Any]:
        """Faults that are on, and how often the engine was restarted."""
        return {"name": self.settings.name, "restarts": self.restarts, "faults": self.faults.state()}

    def truth(self) -> dict[str, Any]:
        """The engine's own books, as GET /_truth shows them."""
        return {"name": self.settings.name, "restarts": self.restarts, **self.ranks.truth()}

    def metrics(self) -> str:
        """The text of /metrics, perhaps a frozen one."""
        return self.ranks.metrics() if self._frozen is None else self._frozen

    # -- inside ----------------------------------------------------------------------------------------------

    def _make_request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        loop, limit = asyncio.get_running_loop(), self.settings.max_body
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=limit)

    async def _listen(self, sock: socket.socket) -> None:
        assert self._http is not None
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._http, sock=sock, backlog=_BACKLOG)
        self.up.set()

    def _close_listener(self) -> None:
        self.up.clear()
        if self._listener:
            self._listener.close()
            self._listener = None

    async def _restart(self, down: float) -> None:
        self._close_listener()
        self.ranks.close()
        assert self._http is not None
        for connection in self._http.connections:
            if connection.transport is not None:
                connection.transport.abort()
        # Bound but not listening, the port stays ours and connections to it are refused.
        sock = await self._bind_again()
        try:
            await asyncio.sleep(down)
            self._ranks = Ranks(self.settings, self.faults.slow)
            self.restarts += 1
            self._api.restarted()
            if self._frozen is not None:
                self._frozen = self._ranks.metrics()
            await self._listen(sock)
        except BaseException:
            sock.close()
            raise

    async def _bind_again(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REBIND_DEADLINE
        while True:
            try:
                return _bind(self.settings.host, self.port)
            except OSError as error:
                # The loop may close the old listener only in its next turn.
                if error.errno != errno.EADDRINUSE or loop.time() > deadline:
                    raise
                await asyncio.sleep(0.001)

    def _drop_cache(self, now: bool) -> None:
        if self._dropping:
            self._dropping.cancel()
            self._dropping = None
        if now:
            for life in self.ranks.lives:
                life.scheduler.pool.drop()
        if self.faults.drop_cache_every:
            loop = asyncio.get_running_loop()
            self._dropping = loop.call_later(self.faults.drop_cache_every, self._drop_cache, True)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
