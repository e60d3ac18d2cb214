"""What serves ext_proc. One file each behind `Transport`; only these import grpc."""

from collections.abc import Callable
from typing import Protocol

from extproc.core.scattered import Pieces

#: One serialized message, several, or none.
Answer = bytes | tuple[bytes, ...] | None

#: A way to answer later: given the answer, and whether to close with OK after it. Called on the event loop; returns
#: at once and never raises.
Push = Callable[[Answer, bool], None]


class Session(Protocol):
    """One ext_proc stream, as a transport sees it.

    Nearly every message is answered at once, by what `receive` returns. A session may also keep a request waiting:
    then what `receive` returned (it is sent as always) is not yet the answer, `held` is True, and the transport calls
    `answer_by` before it sends that or does anything else. The session pushes the answer by it, once, when it can.
    Until then the transport

    * goes on reading, so that it notices when the stream ends (`end` then comes as always), but a message that comes
      is kept and given to `receive` after the answer was sent;
    * counts the stream among those that may not end yet; after the answer it may, without harm.

    What is pushed when the stream is over is dropped.

    Attributes:
        held: whether an answer is owed that comes later. Worth a look only after `receive` said neither to close nor
            that the stream may end, which is once in a request's life where nothing is held.
    """

    held: bool

    def called_by(self, trace: str) -> None:
        """The stream's own `traceparent` (gRPC metadata); called before its first message, where there is one."""
        ...

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        """Take in one serialized message: the answer, whether to close with OK, whether it may end here."""
        ...

    def receive_large(self, pieces: Pieces) -> tuple[Answer, bool, bool]:
        """As `receive`, of a message above the size from which a transport does not put the pieces together.

        The session frees them once it needs them no more, which may be long after this returns.
        """
        ...

    def answer_by(self, push: Push) -> None:
        """The way to give the answer that is owed. Called once for it, in the same turn of the event loop as the
        `receive` after which `held` was True.
        """
        ...

    def rescue(self) -> Answer:
        """What must be sent before a stream that is undecided may close with OK: bytes that nobody else has."""
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
