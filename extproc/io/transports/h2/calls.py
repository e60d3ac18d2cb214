"""Calls: a request's stream read as gRPC by its method."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from extproc.core.scattered import Pieces
from extproc.io.transports.h2 import grpc
from extproc.io.transports.h2.headers import Head, answer
from extproc.io.transports.h2.limits import Refusals
from extproc.io.transports.h2.sending import Sender
from extproc.io.transports.h2.streams import Stream

#: Bytes of a request that is no gRPC, read before it is refused whether it ended or not.
_READ_ANYWAY: Final = 65_536
#: Bytes of a `traceparent` that are kept: the form of today has 55.
_TRACE: Final = 64
_prefix: Final = grpc.PREFIX.unpack_from
_REFUSAL: Final = b"This port speaks gRPC: POST with content-type application/grpc.\n"


class Timer(Protocol):
    """Something that can be called off."""

    def cancel(self) -> None:
        """It shall not happen."""
        ...


Later = Callable[[float, Callable[[], None]], Timer]


class Terms:
    """What all calls of a server have in common.

    Args:
        server: what the methods' classes work for; nothing here looks at it.
        most: bytes of a message.
        refusals: told of messages that are refused.
        later: calls something after so many seconds.
    """

    __slots__ = ("later", "most", "refusals", "server")

    def __init__(self, server: Any, most: int, refusals: Refusals, later: Later) -> None:
        self.server, self.most, self.refusals, self.later = server, most, refusals, later


class Call:
    """One gRPC call: reads its stream, and answers. What a method does is a class made from this one.

    A stream of ext_proc is one for each request, so nothing stands between a call and its method.

    Attributes:
        done: whether it is over.
        terms: as its server has them.
        trace: `traceparent` in its metadata, not checked; "" for none.
    """

    __slots__ = ("_assembly", "_connection", "_lent", "_stream", "_timer", "done", "terms", "trace")

    def __init__(self, connection: Sender, stream: Stream, terms: Terms, trace: str = "") -> None:
        self._connection = connection
        self._stream = stream
        self._assembly: grpc.Assembly | None = None
        self.done = False
        self._lent = 0  # bytes of large messages that were not freed
        self._timer: Timer | None = None
        self.terms = terms
        self.trace = trace

    # -- what a method does --------------------------------------------------------------------------------

    @property
    def large(self) -> int:
        """Messages of more bytes that came in pieces are given to `message_large`; the stream holds them until it
        frees them.
        """
        return grpc.NEVER

    def begin(self) -> None:
        """The call begins; it may end here already."""

    def message(self, data: bytes) -> None:
        """The next message."""

    def message_large(self, pieces: Pieces) -> None:
        """The next message, above `large` bytes; who sets that has this too."""

    def half_closed(self) -> None:
        """The client has sent all."""

    def over(self) -> None:
        """The call is over, whoever ended it. Called exactly once, and nothing after it."""

    def end(self) -> None:
        """The server stops: a call that lasts ends here."""

    # -- what the client says ------------------------------------------------------------------------------

    def data(self, data: bytes, at: int, stop: int) -> int:
        """The next bytes of the body, `data[at:stop]`; returns how many are held until more come."""
        try:
            assembly, begin = self._assembly, at + 5
            if assembly is None and begin <= stop:
                flag, size = _prefix(data, at)
                if size == stop - begin and not flag and size <= self.terms.most:  # the usual case
                    self.message(data[begin:stop])
                    return 0
            elif assembly is not None and assembly.goes_on(data, at, stop):
                return assembly.held + self._lent
            return self._assemble(data, at, stop)
        except Exception:  # a fault of a method costs its own call, no other
            self.finish(grpc.INTERNAL, "internal error")
            return 0

    def wanted(self, data: bytes, at: int) -> int:
        """Bytes of the message that begins at `at`, its prefix included; 0 where none does that could be taken."""
        if self._assembly is not None:
            return 0
        flag, size = _prefix(data, at)
        return 0 if flag or size > min(self.terms.most, self.large) else grpc.PREFIX_SIZE + size

    def take(self, parts: list[memoryview]) -> None:
        """A message in parts, its prefix included."""
        parts[0] = parts[0][grpc.PREFIX_SIZE :]
        try:
            self.message(b"".join(parts))
        except Exception:  # as in `data`
            self.finish(grpc.INTERNAL, "internal error")

    def _assemble(self, data: bytes, at: int, stop: int) -> int:
        assembly = self._assembly
        if assembly is None:
            assembly = self._assembly = grpc.Assembly(self.terms.most, self.large, self._freed)
        messages, refused = assembly.feed(data, at, stop)
        for message in messages:
            if self.done:
                return 0
            if isinstance(message, Pieces):
                self._lent += message.size
                self.message_large(message)
            else:
                self.message(message)
        if refused is not None:
            self.terms.refusals.add("message")
            self.finish(*refused)
            return 0
        if not assembly.held:
            self._assembly = None
        return 0 if self.done else assembly.held + self._lent

    def _freed(self, size: int) -> None:
        """A large message is needed no more: its bytes count no more, and others may come."""
        self._lent -= size
        if not self.done:
            held = self._assembly.held if self._assembly is not None else 0
            self._connection.holds(self._stream, held + self._lent)

    def ended(self) -> None:
        """The client has sent all."""
        if self._assembly is not None:
            self.finish(grpc.INTERNAL, "the request ended within a message")
        else:
            self.half_closed()

    def lost(self) -> None:
        """The client has left."""
        self.done = True
        if self._timer is not None or self._assembly is not None:
            self._drop()
        self.over()

    def ends_in(self, seconds: float) -> None:
        """The client waits no longer than that."""
        self._timer = self.terms.later(seconds, self._expire)

    def _expire(self) -> None:
        self.finish(grpc.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    # -- what we say ---------------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Answer with a message."""
        if not self.done:
            self._connection.message(self._stream, message)

    def finish(self, status: int = grpc.OK, text: str = "") -> None:
        """End the call with a status; a call that is over stays as it ended."""
        if self.done:
            return
        self.done = True
        stream = self._stream
        block = grpc.trailers(status, text) if status else grpc.TRAILERS_OK
        if not stream.answered:
            block = grpc.HEADERS + block
        self._connection.finish(stream, block)
        if self._timer is not None or self._assembly is not None:
            self._drop()
        self.over()

    def _drop(self) -> None:
        self._assembly = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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

    def wanted(self, _data: bytes, _at: int) -> int:
        """Nothing."""
        return 0

    def take(self, parts: list[memoryview]) -> None:
        """Never called, as nothing is wanted."""

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

    __slots__ = ("fault", "http", "method", "timeout")

    def __init__(self, method: type[Call], asked: grpc.Ask) -> None:
        self.method, self.timeout = method, asked.timeout
        self.http, self.fault = asked.http, asked.fault


class Unknown(Call):
    """The method that nobody has."""

    __slots__ = ()

    def begin(self) -> None:
        """Refuse it."""
        self.finish(grpc.UNIMPLEMENTED, "unknown method")


class Router:
    """Makes the receiver of each request.

    Args:
        methods: the class of its calls, by path.
        terms: what they have in common.
    """

    def __init__(self, methods: Mapping[bytes, type[Call]], terms: Terms) -> None:
        self._methods = methods
        self._terms = terms

    def accept(self, connection: Sender, stream: Stream, head: Head) -> None:
        """As `sending.Accept`."""
        like = head.like or head
        plan: _Plan = like.note or self._plan(like)  # type: ignore[assignment]  # we alone keep anything there
        if plan.http:
            stream.receiver = _NotGrpc(connection, stream, plan.http)
            return
        trace = head.trace[:_TRACE].decode("latin-1") if head.trace else ""
        call = plan.method(connection, stream, self._terms, trace)
        if plan.fault:
            call.finish(grpc.INTERNAL, plan.fault)
            return
        call.begin()
        if not call.done:
            stream.receiver = call
            if plan.timeout is not None:
                call.ends_in(plan.timeout)

    def _plan(self, head: Head) -> _Plan:
        asked = grpc.ask(head)
        method = Call if asked.fault else self._methods.get(asked.path, Unknown)
        plan = head.note = _Plan(method, asked)
        return plan


class Unary(Call):
    """A method with one message each way: its class says what the answer is."""

    __slots__ = ("_request",)

    def begin(self) -> None:
        """Nothing was asked yet."""
        self._request: bytes | None = None

    def answer(self, request: bytes) -> bytes | grpc.Refused:
        """The answer to a message, or why there is none."""
        raise NotImplementedError

    def message(self, data: bytes) -> None:
        """The request; a second one is a fault of the client."""
        if self._request is not None:
            self.finish(grpc.UNIMPLEMENTED, "one message only")
        self._request = data

    def half_closed(self) -> None:
        """Answer."""
        if self._request is None:
            self.finish(grpc.UNIMPLEMENTED, "a message is missing")
            return
        made = self.answer(self._request)
        if isinstance(made, grpc.Refused):
            self.finish(*made)
            return
        self.send(made)
        self.finish()
