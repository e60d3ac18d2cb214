"""One connection of the fast transport: from the socket to `h2.connection` and back, within time limits."""

import asyncio
import socket
import struct
import sys
from typing import Any, Final, Protocol

from extproc.io.transports.h2.connection import Connection
from extproc.io.transports.h2.errors import (
    ENHANCE_YOUR_CALM,
    SETTINGS_TIMEOUT,
    ConnectionFault,
)
from extproc.io.transports.h2.sending import Shared

#: A read of more bytes ends a connection's turn. After one that filled its buffer (uvloop's has 256,000 bytes, TLS
#: leaves less of them) libuv reads on, 32 times in a row, 8 MiB; after a smaller one it looks at others by itself.
#: To stop reading and to begin again costs two system calls.
_MUCH: Final = 192 * 1024


class Owner(Protocol):
    """The server, as a connection sees it."""

    shared: Shared
    handshake: float
    stalled: float

    def left(self, wire: "Wire") -> None:
        """A connection is gone."""
        ...


class Wire(asyncio.Protocol):
    """One connection. What is to be written goes out once for all that one read brought, or once a loop turn."""

    def __init__(self, owner: Owner) -> None:
        self.connection = Connection(owner.shared, self._soon)
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._scheduled = self._behind = self._full = False
        self._next: asyncio.Handle | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._given = self._taken = 0
        self._output = owner.shared.limits.output
        self._quiet = 0
        self._seen = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, unless TLS chose another protocol: then part with TLS' own good-bye.

        Those who only look whether TLS answers, as Envoy's TCP health checks do, agree on no protocol. A reset would
        overtake TLS 1.2's last message of the handshake, and the gateway would look dead to them.
        """
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self.connection.closed = True
            self._transport.close()
            return
        self._handshake = self._loop.call_later(self._owner.handshake, self._late)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take in, and write what that brought."""
        connection = self.connection
        connection.receive(data)
        if connection.out:
            self.flush()
        if (connection.behind or len(data) > _MUCH) and not self._behind:
            self._wait_for_turn()

    def pause_writing(self) -> None:
        """The peer does not read: then it is not read either, and not forever."""
        self._watch()
        self._full = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._stall is not None:
            self._stall.cancel()
        self._full = False
        self._read_or_not()
        if self._behind:
            self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        """Every stream is lost."""
        for timer in (self._handshake, self._stall, self._next):
            if timer is not None:
                timer.cancel()
        self.connection.lost()
        self._owner.left(self)

    def flush(self) -> None:
        """Write what waits."""
        self._scheduled = False
        connection, transport = self.connection, self._transport
        if transport.is_closing():
            connection.out.clear()
            return
        if connection.out:
            data = connection.take()
            self._given += len(data)
            transport.write(data)
        if connection.closed:
            transport.close()
        elif transport.get_write_buffer_size() > self._output:
            self._owner.shared.refusals.add("output")
            transport.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, most: int) -> None:
        """Called at even times: close after `most` of them without a stream."""
        if self._transport is None:
            return  # TLS is being agreed on, with a limit of its own
        last = self.connection.streams.last
        if self.connection.streams.open or last != self._seen:
            self._seen, self._quiet = last, 0
            return
        self._quiet += 1
        if self._quiet >= most:
            self._owner.shared.refusals.add("idle")
            self.connection.leave()

    def _wait_for_turn(self) -> None:
        """More came than one turn deals with: others are served first, and nothing is read meanwhile."""
        self._behind = True
        self._read_or_not()
        self._schedule()

    def _turn(self) -> None:
        self._next = None
        if self._full:
            return  # the peer has to read first
        connection = self.connection
        connection.receive()
        if connection.out:
            self.flush()
        if connection.behind:
            self._schedule()
        else:
            self._behind = False
            self._read_or_not()

    def _schedule(self) -> None:
        if self._next is None:
            self._next = self._loop.call_soon(self._turn)

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._full or self._behind:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _soon(self) -> None:
        if not self._scheduled and self._transport is not None:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def _watch(self) -> None:
        self._taken = self._progress()
        self._stall = self._loop.call_later(self._owner.stalled, self._stalled)

    def _progress(self) -> int:
        """Grows whenever the peer takes bytes: those its machine has acknowledged, else those that left ours.

        The system passes bytes on in large pieces only, so what left says little of a slow reader on TCP.
        """
        acknowledged = _acknowledged(self._transport.get_extra_info("socket"))
        if acknowledged is not None:
            return acknowledged
        left: int = self._given - self._transport.get_write_buffer_size()
        return left

    def _stalled(self) -> None:
        if self._progress() > self._taken:
            self._watch()  # slow, but it reads
            return
        self._owner.shared.refusals.add("stalled")
        self._transport.abort()

    def _late(self) -> None:
        if not self.connection.ready and not self.connection.closed:
            self._owner.shared.refusals.add("handshake")
            code = SETTINGS_TIMEOUT if self.connection.greeted else ENHANCE_YOUR_CALM
            self.connection.fail(ConnectionFault(code, "no HTTP/2 handshake in time"))


#: Where `tcpi_bytes_acked` is in Linux' `struct tcp_info` (linux/tcp.h, since Linux 4.1): 64 bits.
_BYTES_ACKED: Final = 120


def _acknowledged(connected: Any) -> int | None:
    """Bytes that a TCP peer has acknowledged; None where the system does not tell."""
    if not sys.platform.startswith("linux") or connected.family == socket.AF_UNIX:
        return None
    told = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
    if len(told) < _BYTES_ACKED + 8:
        return None
    return int(struct.unpack_from("=Q", told, _BYTES_ACKED)[0])
