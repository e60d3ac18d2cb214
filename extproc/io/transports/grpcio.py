"""The reference transport: grpc.aio with raw bytes in and out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from extproc.core.scattered import Pieces
from extproc.io.transports import Answer, Session, SessionFactory, reflection
from extproc.io.transports.grpc_tuning import OPTIONS, WINDOW, helpers_give_way
from extproc.io.transports.grpcio_tls import credentials
from extproc.io.transports.health import SERVICE as EXT_PROC_SERVICE
from extproc.io.transports.health import HealthBook
from extproc.io.transports.tls import TlsSource

_log = structlog.get_logger("kvsteer")
_ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"

#: Envoy may ping an idle connection as often as it likes: by default grpc answers pings closer than five
#: minutes with GOAWAY too_many_pings, which cuts running responses.
_OPTIONS = [
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),  # a second gateway on the port is a mistake to be told of
    ("grpc.max_metadata_size", 65536),
]


class GrpcioTransport:
    """Serves sessions on one address.

    Args:
        address: host:port; port 0 takes a free one.
        sessions: makes the session of a new stream.
        max_message: largest message taken, bytes.
        max_streams: most streams at once; further ones are refused with RESOURCE_EXHAUSTED.
        on_log: given each message of Envoy's gRPC access log; must not raise.
        tls: certificates; None speaks plain HTTP/2.
        large: messages above so many bytes are given to sessions as large ones.
    """

    def __init__(
        self,
        address: str,
        sessions: SessionFactory,
        *,
        max_message: int,
        max_streams: int,
        on_log: Callable[[bytes], None] = lambda _data: None,
        tls: TlsSource | None = None,
        large: int = 2**31,
    ) -> None:
        self.port = 0
        self._address = address
        self._sessions = sessions
        self._max_streams = max_streams
        self._large = large
        self._on_log = on_log
        self._tls = tls
        self._options = [
            *_OPTIONS,
            *OPTIONS,
            WINDOW,
            ("grpc.max_receive_message_length", max_message),
            ("grpc.max_send_message_length", max_message),
        ]
        self._health = HealthBook()
        self._undecided: set[asyncio.Task[Any]] = set()
        self._open: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._server: Any = None

    async def start(self) -> None:
        """Bind and serve. Raises OSError when the address can't be had or certificates can't be read."""
        with helpers_give_way():  # gRPC starts its threads here
            self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    EXT_PROC_SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
                ),
                grpc.method_handlers_generic_handler(
                    _ACCESS_LOG, {"StreamAccessLogs": grpc.stream_unary_rpc_method_handler(self._logs)}
                ),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health",
                    {
                        "Check": grpc.unary_unary_rpc_method_handler(self._check),
                        "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
                    },
                ),
                *_reflection(self._reflect),
            )
        )
        try:
            self.port = self._listen()
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise OSError(f"can't listen on {self._address}; is another process using it?")
        await self._server.start()

    def _listen(self) -> int:
        if self._tls is None:
            return int(self._server.add_insecure_port(self._address))
        return int(self._server.add_secure_port(self._address, credentials(self._tls, _log.error)))

    def set_ready(self, ready: bool) -> None:
        """What health checks answer for everything but liveness."""
        self._health.set_ready(ready)

    async def stop(self, grace: float) -> None:
        """End every stream with OK where it stands, waiting up to `grace` seconds for those undecided."""
        self._stopping = True
        self._health.close()
        stopped = asyncio.ensure_future(self._server.stop(grace + 1))
        if self._undecided:
            await asyncio.wait(self._undecided, timeout=grace)
        for task in self._open:
            task.cancel()  # its handler turns this into a normal return
        await stopped

    async def _process(self, _requests: object, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self._max_streams:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many open streams")
        self._open.add(task)
        self._undecided.add(task)
        session = self._sessions()
        for name, value in context.invocation_metadata() or ():
            if name == "traceparent":
                session.called_by(value)
        try:
            await self._converse(session, context, task)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            if task in self._undecided:
                await _write(context, session.rescue())
        finally:
            self._open.discard(task)
            self._undecided.discard(task)
            session.end()

    async def _converse(self, session: Session, context: Any, task: "asyncio.Task[Any]") -> None:
        receive, large = session.receive, self._large
        reading: asyncio.Task[Any] | None = None
        while (data := await (reading or context.read())) is not grpc.aio.EOF:
            reading = None
            if len(data) <= large:
                answer, close, settled = receive(data)
            else:
                answer, close, settled = session.receive_large(Pieces([data]))
                del data  # kept by the session, as long as it is needed
            if not settled and session.held:
                reading, settled = await _answered_later(session, answer, context), True
                close = reading is None
            elif isinstance(answer, tuple):
                for part in answer:
                    await context.write(part)
            elif answer is not None:
                await context.write(answer)
            if close:
                return
            if settled:
                self._undecided.discard(task)
                if self._stopping:
                    return

    async def _logs(self, _messages: object, context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                self._on_log(data)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._open.discard(task)
        return b""

    async def _reflect(self, _requests: object, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                await context.write(reflection.answer(data))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._open.discard(task)

    async def _check(self, request: bytes, context: Any) -> bytes:
        answer = self._health.check(request)
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        assert answer is not None
        return answer

    async def _watch(self, request: bytes, context: Any) -> None:
        write: Callable[[bytes], Awaitable[None]] = context.write
        async for answer in self._health.watch(request):
            await write(answer)


def _reflection(method: Any) -> list[Any]:
    made = []
    for path in reflection.PATHS:
        _, service, name = path.split("/")
        handlers = {name: grpc.stream_stream_rpc_method_handler(method)}
        made.append(grpc.method_handlers_generic_handler(service, handlers))
    return made


async def _write(context: Any, answer: Answer) -> None:
    if isinstance(answer, tuple):
        for part in answer:
            await context.write(part)
    elif answer is not None:
        await context.write(answer)


async def _answered_later(session: Session, before: Answer, context: Any) -> "asyncio.Task[Any] | None":
    """Send what goes before the answer that is owed, then that when it comes, in one task: a stream has one writer.

    Returns:
        The read that is under way; None when the stream is to end, or did.
    """
    owed: asyncio.Future[tuple[Answer, bool]] = asyncio.get_running_loop().create_future()

    def push(answer: Answer, close: bool) -> None:
        if not owed.done():
            owed.set_result((answer, close))

    session.answer_by(push)
    reading = asyncio.ensure_future(context.read())
    goes_on = False
    try:
        await _write(context, before)
        await asyncio.wait((reading, owed), return_when=asyncio.FIRST_COMPLETED)
        if owed.done() or reading.result() is not grpc.aio.EOF:
            answer, close = await owed
            await _write(context, answer)
            goes_on = not close
    finally:
        if not goes_on:
            owed.cancel()
            reading.cancel()
    return reading if goes_on else None
