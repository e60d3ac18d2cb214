"""The fast transport: HTTP/2 and gRPC in plain Python (`h2/`) on the event loop, one callback for all of a read."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from extproc.core.scattered import Pieces
from extproc.io import clock
from extproc.io.transports import Answer, Session, SessionFactory, services
from extproc.io.transports.doors import Door
from extproc.io.transports.h2 import grpc
from extproc.io.transports.h2.calls import Call, Router, Terms
from extproc.io.transports.h2.limits import Limits
from extproc.io.transports.h2.sending import Sender, Shared
from extproc.io.transports.health import SERVICE as EXT_PROC_SERVICE
from extproc.io.transports.health import HealthBook
from extproc.io.transports.tls import Certificates, TlsSource
from extproc.io.transports.wire import Wire

_log = structlog.get_logger("kvsteer")
_PROCESS: Final = f"/{EXT_PROC_SERVICE}/Process".encode()
#: Seconds between looks at idle connections and certificates.
_SWEEP: Final = 1.0
#: Seconds in which peers may say that they have read that no more streams are wanted.
_NOTICE: Final = 1.0
#: Seconds between two lines in the log about one thing.
_SAY_AGAIN: Final = 60.0
#: Seconds in which peers may read what was written to them before a stop closes their connections.
_GOODBYE: Final = 1.0
#: Messages that may wait on one stream for an answer that comes later.
_KEPT: Final = 16


class FastTransport:
    """Serves sessions on one address.

    Args:
        address: host:port, port 0 takes a free one; or `unix:` and a path.
        sessions: makes the session of a new stream.
        max_message: largest message taken, bytes.
        max_streams: most streams at once; further ones are refused with RESOURCE_EXHAUSTED.
        on_log: given each message of Envoy's gRPC access log; must not raise.
        limits: against abuse.
        connections: most connections at once.
        handshake: seconds in which a connection must have spoken HTTP/2.
        stalled: seconds for which a peer may leave what was written to it unread.
        idle: seconds without a stream after which a connection is closed.
        tls: certificates; None speaks plain HTTP/2.
        large: messages above so many bytes are given to sessions in pieces.
    """

    def __init__(
        self,
        address: str,
        sessions: SessionFactory,
        *,
        max_message: int,
        max_streams: int,
        on_log: Callable[[bytes], None] = lambda _data: None,
        limits: Limits | None = None,
        connections: int = 1000,
        handshake: float = 10.0,
        stalled: float = 30.0,
        idle: float = 7200.0,
        tls: TlsSource | None = None,
        large: int = grpc.NEVER,
    ) -> None:
        self.port = 0
        self.handshake = handshake
        self.stalled = stalled
        self.large = large
        self._sessions = sessions
        self.stopping = False
        self._address = address
        self.max_streams = max_streams
        self.on_log = on_log
        self._connections = connections
        self._idle = idle
        self._tls = tls
        self.health = HealthBook()
        self._wires: set[Wire] = set()
        self.open = self.undecided = 0
        self._settled, self._empty, self._heard = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._unheard: set[Sender] = set()
        self._door: Door | None = None
        self._told_at = -_SAY_AGAIN
        self._sweeper: asyncio.Task[None] | None = None
        self._certificates: Certificates | None = None
        self.shared = Shared(limits or Limits(), clock.monotonic)
        self.shared.left = self._no_more
        terms = Terms(self, max_message, self.shared.refusals, self._later)
        self.shared.accept = Router({_PROCESS: _Exchange, **services.METHODS}, terms).accept

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind and serve. Raises OSError when the address can't be had or certificates can't be read."""
        if self._tls is not None:
            self._certificates = Certificates(self._tls, _log.error)
        door = Door(self._address, self._welcome, self.left, self.shared.refusals, self._no_room)
        self.port = await door.open(
            self._certificates.context if self._certificates else None, self.handshake
        )
        self._door = door
        self._sweeper = asyncio.create_task(self._sweep())

    def set_ready(self, ready: bool) -> None:
        """What health checks answer for everything but liveness."""
        self.health.set_ready(ready)

    async def stop(self, grace: float) -> None:
        """End every stream with OK where it stands, waiting up to `grace` seconds for those undecided."""
        self.stopping = True
        self.health.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._door is not None:
            self._door.close()
        until = clock.monotonic() + grace
        await self._say_goodbye(min(grace, _NOTICE))
        if self.undecided:
            self._settled.clear()
            await _within(self._settled, until - clock.monotonic())
        for call in self._calls():
            call.end()
        for wire in list(self._wires):
            wire.connection.leave()
        if self._wires:
            await _within(self._empty, _GOODBYE)
        if self._door is not None:
            self._door.drop()
        for wire in list(self._wires):
            wire.abort()

    async def _say_goodbye(self, seconds: float) -> None:
        """Ask for no more streams, and serve those on their way until each peer has read that (section 6.8)."""
        for wire in list(self._wires):
            connection = wire.connection
            connection.drain()
            if connection.greeted and not (connection.final or connection.closed):
                self._unheard.add(connection)
        if self._unheard:
            self._heard.clear()
            await _within(self._heard, seconds)

    def _no_more(self, connection: Sender) -> None:
        self._unheard.discard(connection)
        if not self._unheard:
            self._heard.set()

    @property
    def connected(self) -> int:
        """Connections now."""
        return len(self._wires)

    # -- connections ---------------------------------------------------------------------------------------

    def _welcome(self) -> Wire | None:
        """A connection came, that may have to agree on TLS yet; None: there are too many."""
        if len(self._wires) >= self._connections:
            self.shared.refusals.add("connections")
            return None
        wire = Wire(self)
        self._wires.add(wire)
        self._empty.clear()
        return wire

    def _no_room(self, why: str) -> None:
        now = clock.monotonic()
        if now - self._told_at >= _SAY_AGAIN:
            self._told_at = now
            _log.error(why)

    def left(self, wire: Wire) -> None:
        """A connection is gone."""
        self._wires.discard(wire)
        self._no_more(wire.connection)
        if not self._wires:
            self._empty.set()

    async def _sweep(self) -> None:
        most = max(1, round(self._idle / _SWEEP))
        while True:
            await asyncio.sleep(_SWEEP)
            if self._certificates is not None:
                self._certificates.look()
            for wire in list(self._wires):
                wire.sweep(most)

    # -- calls ---------------------------------------------------------------------------------------------

    def _calls(self) -> list[Call]:
        """All calls there are."""
        streams = [stream for wire in self._wires for stream in wire.connection.streams.open.values()]
        return [stream.receiver for stream in streams if isinstance(stream.receiver, Call)]

    def settled(self) -> None:
        """While the server stops: one more stream may end where it stands."""
        if not self.undecided:
            self._settled.set()

    @staticmethod
    def _later(seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, what)


class _Exchange(Call):
    """A stream of ext_proc: a session, and the answer it may owe."""

    __slots__ = ("_before", "_kept", "_server", "_session", "_undecided")

    @property
    def large(self) -> int:
        """As the server was told."""
        return self._server.large

    def begin(self) -> None:
        """Make the session, unless there are too many."""
        server: FastTransport = self.terms.server
        self._server = server
        self._session: Session | None
        if server.open >= server.max_streams:
            self._session = None
            self.finish(grpc.RESOURCE_EXHAUSTED, "too many open streams")
            return
        self._session = session = server._sessions()
        if self.trace:
            session.called_by(self.trace)
        server.open += 1
        server.undecided += 1
        self._undecided = True
        #: Messages that came while an answer is owed; None while none is.
        self._kept: deque[bytes | Pieces] | None = None

    def message(self, data: bytes) -> None:
        """Answer a message, or keep it."""
        if self._kept is not None:
            self._keep(data)
            return
        session = self._session
        answer, close, settled = session.receive(data)  # type: ignore[union-attr]  # as the call goes on
        if not settled and not close and session.held:  # type: ignore[union-attr]
            self._hold(answer)
            return
        if answer is not None:
            if isinstance(answer, bytes):
                self._connection.message(self._stream, answer)
            else:
                self._send(answer)
        if settled:
            server = self._server
            if self._undecided:
                self._undecided = False
                server.undecided -= 1
            if server.stopping:
                server.settled()
                close = True
        if close:
            self.finish()

    def message_large(self, pieces: Pieces) -> None:
        """The same for a message in pieces."""
        if self._kept is not None:
            self._keep(pieces)
            return
        session = self._session
        answer, close, settled = session.receive_large(pieces)  # type: ignore[union-attr]
        if not settled and not close and session.held:  # type: ignore[union-attr]
            self._hold(answer)
            return
        self._send(answer)
        if settled and self._undecided:
            self._decided()
        if close or (settled and self._server.stopping):
            self.finish()

    #: The client has sent all: the exchange is over.
    half_closed = Call.finish

    def over(self) -> None:
        """Release everything."""
        session = self._session
        if session is None:
            return  # it was refused
        self._server.open -= 1
        if self._undecided:
            self._decided()
        session.end()

    def _decided(self) -> None:
        self._undecided = False
        server = self._server
        server.undecided -= 1
        if server.stopping:
            server.settled()

    def end(self) -> None:
        """The server stops."""
        if self._undecided and self._session is not None:
            self._send(self._session.rescue())
        self.finish()

    def _keep(self, data: bytes | Pieces) -> None:
        assert self._kept is not None
        if len(self._kept) >= _KEPT:
            self.finish(grpc.RESOURCE_EXHAUSTED, "too many messages before an answer")
            return
        self._kept.append(data)

    def _hold(self, before: Answer) -> None:
        """Send what goes before the answer that is owed; what is pushed in this turn comes after it."""
        self._kept = deque()
        pushed: list[tuple[Answer, bool]] = []
        self._before: list[tuple[Answer, bool]] | None = pushed
        self._session.answer_by(self._push)  # type: ignore[union-attr]
        self._before = None
        self._send(before)
        for answer, close in pushed:
            self._give(answer, close)

    def _push(self, answer: Answer, close: bool) -> None:
        if self._before is not None:
            self._before.append((answer, close))
        elif self._kept is not None:
            self._give(answer, close)

    def _give(self, answer: Answer, close: bool) -> None:
        """Send the answer that was owed, then deal with what came meanwhile."""
        kept, self._kept = self._kept or deque(), None
        self._send(answer)
        if self._undecided:
            self._decided()
        if close or self._server.stopping:
            self.finish()
        for message in kept:
            if self.done:
                return
            if isinstance(message, Pieces):
                self.message_large(message)
            else:
                self.message(message)  # kept again when one of them is to be answered later

    def _send(self, answer: Answer) -> None:
        if answer is not None:
            for part in (answer,) if isinstance(answer, bytes) else answer:
                self.send(part)


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
