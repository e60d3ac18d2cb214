"""Calls: a request's stream read as gRPC and given to the handler of its method."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from extproc.core.scattered import Pieces
from extproc.io.transports.h2 import grpc
from extproc.io.transports.h2.headers import Head, answer
from extproc.io.transports.h2.limits import Refusals
from extproc.io.transports.h2.sending import Sender
from extproc.io.transports.h2.streams import DEAF, Receiver, Stream

#: Bytes of a request that is no gRPC, read before it is refused whether it ended or not.
_READ_ANYWAY: Final = 65_536
#: Bytes of a `traceparent` that are kept: the form of today has 55.
_TRACE: Final = 64
_prefix: Final = grpc.PREFIX.unpack_from
_REFUSAL: Final = b"This port speaks gRPC: POST with content-type application/grpc.\n"


class Handler(Protocol):
    """One call, as the method sees it."""

    def message(self, data: bytes) -> None:
        """The next message.

        A handler may have a number `large`, and a method `message_large(pieces: Pieces)`, which is called instead for
        messages of more bytes than that. Until it frees them, the stream holds them.
        """
        ...

    def half_closed(self) -> None:
        """The client has sent all."""
        ...

    def over(self) -> None:
        """The call is over, whoever ended it. Called exactly once, and nothing after it."""
        ...


class Timer(Protocol):
    """Something that can be called off."""

    def cancel(self) -> None:
        """It shall not happen."""
        ...


Method = Callable[["Call"], Handler]
Later = Callable[[float, Callable[[], None]], Timer]


class Call:
    """One gRPC call. Reads its stream, and answers.

    Attributes:
        trace: `traceparent` in its metadata, not checked; "" for none.
    """

    __slots__ = (
        "_assembly",
        "_connection",
        "_done",
        "_handler",
        "_lent",
        "_most",
        "_refusals",
        "_stream",
        "timer",
        "trace",
    )

    def __init__(
        self, connection: Sender, stream: Stream, most: int, refusals: Refusals, trace: str = ""
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._most = most
        self._refusals = refusals
        self._assembly: grpc.Assembly | None = None
        self._handler: Handler | None = None
        self._done = False
        self._lent = 0  # bytes of large messages that the handler has not freed
        self.timer: Timer | None = None
        self.trace = trace

    def begin(self, method: Method) -> Receiver:
        """Give the call to its method; the method may have ended it already when this returns."""
        handler = method(self)
        if self._done:
            handler.over()
            return DEAF
        self._handler = handler
        return self

    # -- what the client says ------------------------------------------------------------------------------

    def data(self, data: bytes, at: int, stop: int) -> int:
        """The next bytes of the body, `data[at:stop]`; returns how many are held until more come."""
        try:
            assembly = self._assembly
            if assembly is None and stop - at >= 5:
                flag, size = _prefix(data, at)
                begin = at + 5
                if size == stop - begin and not flag and size <= self._most:  # the usual case: one, whole
                    self._handler.message(data[begin:stop])  # type: ignore[union-attr]  # as it lasts
                    return 0
            elif assembly is not None and assembly.goes_on(data, at, stop):
                return assembly.held + self._lent
            return self._assemble(data, at, stop)
        except Exception:  # a fault of a handler costs its own call, no other
            self.finish(grpc.INTERNAL, "internal error")
            return 0

    def _assemble(self, data: bytes, at: int, stop: int) -> int:
        assembly = self._assembly
        if assembly is None:
            large = getattr(self._handler, "large", grpc.NEVER)
            assembly = self._assembly = grpc.Assembly(self._most, large, self._freed)
        messages, refused = assembly.feed(data, at, stop)
        for message in messages:
            if self._handler is None:
                return 0
            if isinstance(message, Pieces):
                self._lent += message.size
                self._handler.message_large(message)  # type: ignore[attr-defined]  # as it has `large`
            else:
                self._handler.message(message)
        if refused is not None:
            self._refusals.add("message")
            self.finish(*refused)
            return 0
        if not assembly.held:
            self._assembly = None
        return assembly.held + self._lent if self._handler is not None else 0

    def _freed(self, size: int) -> None:
        """A large message is needed no more: its bytes count no more, and others may come."""
        self._lent -= size
        if not self._done:
            held = self._assembly.held if self._assembly is not None else 0
            self._connection.holds(self._stream, held + self._lent)

    def ended(self) -> None:
        """The client has sent all."""
        if self._handler is None:
            return
        if self._assembly is not None:
            self.finish(grpc.INTERNAL, "the request ended within a message")
        else:
            self._handler.half_closed()

    def lost(self) -> None:
        """The client has left."""
        self._over()

    def expire(self) -> None:
        """The client's deadline has passed."""
        self.finish(grpc.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    # -- what we say ---------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Answer with a message."""
        if self._done:
            return
        self._connection.message(self._stream, message)

    def finish(self, status: int = grpc.OK, text: str = "") -> None:
        """End the call with a status; a call that is over stays as it ended."""
        if self._done:
            return
        self._done = True
        stream = self._stream
        block = grpc.trailers(status, text) if status else grpc.TRAILERS_OK
        if not stream.answered:
            block = grpc.HEADERS + block
        self._connection.finish(stream, block)
        self._over()

    def _over(self) -> None:
        self._done = True
        handler, self._handler = self._handler, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._assembly = None
        if handler is not None:
            handler.over()


class _NotGrpc:
    """A request that is none of ours: read to its end, then answered in plain HTTP."""

    __slots__ = ("_connection", "_read", "_status", "_stream")

    def __init__(self, connection: Sender, stream: Stream, status: int) -> None:
        self._connection, self._stream, self._status = connection, stream, status
        self._read = 0

    def data(self, _data: bytes, at: int, stop: int) -> int:
        """Thrown away."""
        self._read += stop - at
        if self._read > _READ_ANYWAY:
            self.ended()
        return 0

    def ended(self) -> None:
        """Now the refusal."""
        plain = (b"content-type", b"text/plain")
        connection, stream = self._connection, self._stream
        connection.headers(stream, answer(self._status, plain))
        connection.data(stream, _REFUSAL)
        connection.finish(stream, None)

    def lost(self) -> None:
        """Nothing to release."""


class _Plan:
    """What becomes of every request with one head."""

    __slots__ = ("http", "method", "timeout")

    def __init__(self, method: Method, timeout: float | None, http: int) -> None:
        self.method, self.timeout, self.http = method, timeout, http


def unknown(call: Call) -> Handler:
    """The method that nobody has."""
    call.finish(grpc.UNIMPLEMENTED, "unknown method")
    return IDLE


def _faulty(why: str) -> Method:
    """The method of calls that say something that can't be read."""

    def refuse(call: Call) -> Handler:
        call.finish(grpc.INTERNAL, why)
        return IDLE

    return refuse


class Idle:
    """The handler of a call that needs none."""

    def message(self, _data: bytes) -> None:
        """Ignored."""

    def half_closed(self) -> None:
        """Ignored."""

    def over(self) -> None:
        """Nothing to release."""


IDLE: Final = Idle()


class Router:
    """Makes the receiver of each request.

    Args:
        methods: by path.
        most: bytes of a message.
        refusals: told of messages that are refused.
        later: calls something after so many seconds.
    """

    def __init__(self, methods: Mapping[bytes, Method], most: int, refusals: Refusals, later: Later) -> None:
        self._methods = methods
        self._most = most
        self._refusals = refusals
        self._later = later

    def accept(self, connection: Sender, stream: Stream, head: Head) -> Receiver:
        """As `sending.Accept`."""
        like = head.like or head
        plan: _Plan = like.note or self._plan(like)  # type: ignore[assignment]  # we alone keep anything there
        if plan.http:
            return _NotGrpc(connection, stream, plan.http)
        trace = head.trace[:_TRACE].decode("latin-1") if head.trace else ""
        call = Call(connection, stream, self._most, self._refusals, trace)
        receiver = call.begin(plan.method)
        if plan.timeout is not None and receiver is call:
            call.timer = self._later(plan.timeout, call.expire)
        return receiver

    def _plan(self, head: Head) -> _Plan:
        asked = grpc.ask(head)
        method = _faulty(asked.fault) if asked.fault else self._methods.get(asked.path, unknown)
        plan = head.note = _Plan(method, asked.timeout, asked.http)
        return plan


class Unary:
    """A method with one message each way.

    Args:
        call: the call.
        answer: makes the answer of a message, or says why there is none.
    """

    __slots__ = ("_answer", "_call", "_request")

    def __init__(self, call: Call, answer: Callable[[bytes], bytes | grpc.Refused]) -> None:
        self._call, self._answer = call, answer
        self._request: bytes | None = None

    def message(self, data: bytes) -> None:
        """The request; a second one is a fault of the client."""
        if self._request is not None:
            self._call.finish(grpc.UNIMPLEMENTED, "one message only")
        self._request = data

    def half_closed(self) -> None:
        """Answer."""
        if self._request is None:
            self._call.finish(grpc.UNIMPLEMENTED, "a message is missing")
            return
        made = self._answer(self._request)
        if isinstance(made, grpc.Refused):
            self._call.finish(*made)
            return
        self._call.send(made)
        self._call.finish()

    def over(self) -> None:
        """Nothing to release."""
