"""A server's connection without a socket: frames written by hand go in, frames that come out are read."""

import struct
from dataclasses import dataclass, field
from typing import Any

from extproc.core.scattered import Pieces
from extproc.io.transports.h2 import frames, grpc
from extproc.io.transports.h2.calls import Call, Router, Terms, Unary
from extproc.io.transports.h2.connection import Connection
from extproc.io.transports.h2.headers import literal
from extproc.io.transports.h2.limits import Limits, Refusals
from extproc.io.transports.h2.sending import Shared

POST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test/Echo"),
    (b":authority", b"here"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


def block(*fields: tuple[bytes, bytes]) -> bytes:
    return b"".join(literal(*pair) for pair in fields)


def request(path: bytes = b"/test/Echo", **extra: bytes) -> bytes:
    """The block of a good request."""
    fields = [(name, path if name == b":path" else value) for name, value in POST]
    return block(*fields, *((name.replace("_", "-").encode(), value) for name, value in extra.items()))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def headers(stream: int, data: bytes | None = None, *, end: bool = False, more: bool = False) -> bytes:
    flags = (frames.END_STREAM if end else 0) | (0 if more else frames.END_HEADERS)
    return frame(frames.HEADERS, flags, stream, request() if data is None else data)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if end else 0, stream, payload)


def message(payload: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(frames.SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def split(raw: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each frame; the bytes must be whole frames."""
    made, at = [], 0
    while at < len(raw):
        word, flags, stream = struct.unpack_from(">IBI", raw, at)
        stop = at + 9 + (word >> 8)
        assert stop <= len(raw), "half a frame was written"
        made.append((word & 0xFF, flags, stream, raw[at + 9 : stop]))
        at = stop
    return made


class Echo(Call):
    """A method that sends back each message; the world's `events` are what it saw of all calls."""

    large = 100

    def begin(self) -> None:
        self.world.handlers.append(self)
        self.times_over = 0

    @property
    def world(self) -> "World":
        world: World = self.terms.server
        return world

    def message_large(self, pieces: Pieces) -> None:
        whole = pieces.whole()
        pieces.free()
        self.message(whole)

    def message(self, data: bytes) -> None:
        self.world.events.append(("message", data))
        self.send(data)

    def half_closed(self) -> None:
        self.world.events.append(("half_closed",))
        self.finish()

    def over(self) -> None:
        self.times_over += 1
        assert self.times_over == 1, "a call was over twice"
        self.world.events.append(("over",))


@dataclass
class World:
    """A connection that has echo methods behind it.

    Attributes:
        events: what the methods saw.
        handlers: one for each call of /test/Echo.
        now: the clock.
    """

    limits: Limits = field(default_factory=Limits)
    most: int = 2**20
    greet: bool = True
    events: list[tuple[Any, ...]] = field(default_factory=list)
    handlers: list[Echo] = field(default_factory=list)
    timers: list[tuple[float, Any]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.shared = Shared(self.limits, lambda: self.now)
        methods = {
            b"/test/Echo": Echo,
            b"/test/Once": Upper,
            b"/test/Silent": Silent,
            b"/test/Whole": Whole,
        }
        refusals: Refusals = self.shared.refusals
        self.shared.accept = Router(methods, Terms(self, self.most, refusals, self._later)).accept
        self.connection = Connection(self.shared)
        if self.greet:
            self.say(frames.PREFACE + settings() + frames.SETTINGS_ACK)

    def _later(self, seconds: float, what: Any) -> Any:
        self.timers.append((seconds, what))
        return Off()

    def say(self, raw: bytes) -> list[tuple[int, int, int, bytes]]:
        """Give bytes to the connection; the frames it answers with."""
        self.connection.receive(raw)
        return split(self.connection.take())

    def goaway(self, raw: bytes) -> int | None:
        """The code of the GOAWAY that these bytes bring; None when the connection goes on."""
        said = self.say(raw)
        codes = [
            struct.unpack_from(">I", payload, 4)[0] for kind, _, _, payload in said if kind == frames.GOAWAY
        ]
        assert self.connection.closed == bool(codes)
        return codes[-1] if codes else None

    def reset(self, raw: bytes) -> dict[int, int]:
        """Stream -> code of each RST_STREAM that these bytes bring; the connection must go on."""
        said = self.say(raw)
        assert not self.connection.closed, f"the connection ended: {self.connection.fault}"
        return {
            stream: struct.unpack(">I", payload)[0]
            for kind, _, stream, payload in said
            if kind == frames.RST_STREAM
        }

    def alive(self) -> bool:
        """Whether a PING is answered."""
        return (frames.PING, 1, 0, b"8 bytes.") in self.say(frame(frames.PING, 0, 0, b"8 bytes."))


class Off:
    """A timer that can be called off."""

    def cancel(self) -> None:
        pass


class Silent(Echo):
    """Answers nothing, ever."""

    def message(self, data: bytes) -> None:
        self.world.events.append(("message", data))

    def half_closed(self) -> None:
        self.world.events.append(("half_closed",))


class Whole(Echo):
    """Takes no message in pieces, as the gateway where bodies are of usual size; fails with one that says so."""

    large = grpc.NEVER

    def message(self, data: bytes) -> None:
        if data.endswith(b"fail"):
            raise ValueError("as it was told to")
        super().message(data)


class Upper(Unary):
    """Says it louder."""

    def answer(self, request: bytes) -> bytes:
        return request.upper()


__all__ = ["World", "block", "data", "frame", "grpc", "headers", "message", "request", "settings", "split"]
