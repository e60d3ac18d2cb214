"""The fast transport's listening sockets: what comes in is counted before it has said a word, TLS or not."""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from extproc.addresses import parse_address
from extproc.io.transports.h2.limits import Refusals
from extproc.io.transports.wire import Wire

UNIX: Final = "unix:"
#: Connections that the kernel may hold before they are accepted.
_BACKLOG: Final = 1024
#: Connections taken in one turn of the loop.
_AT_ONCE: Final = 64
#: Seconds without accepting after the system had no file for one more.
_PAUSE: Final = 1.0


class Door:
    """Takes connections in on one address.

    Args:
        address: host:port, port 0 takes a free one; or `unix:` and a path.
        make: the protocol of a new connection; None where there are too many.
        gone: told of a protocol whose connection never came to be.
        refusals: told of handshakes that failed and of connections there was no file for.
        told: given a sentence when the system runs out of files; called at each try, once a second.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[], Wire | None],
        gone: Callable[[Wire], None],
        refusals: Refusals,
        told: Callable[[str], None],
    ) -> None:
        self._address = address
        self._make, self._gone = make, gone
        self._refusals, self._told = refusals, told
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._paused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._file: tuple[str, os.stat_result] | None = None
        self._context: ssl.SSLContext | None = None
        self._handshake = 0.0

    async def open(self, context: ssl.SSLContext | None, handshake: float) -> int:
        """Listen; the port, 0 for a unix socket. Raises OSError when the address can't be had.

        Args:
            context: of TLS; None takes plain connections.
            handshake: seconds in which TLS must be agreed on.
        """
        self._context, self._handshake = context, handshake
        try:
            if self._address.startswith(UNIX):
                self._listen_unix(self._address.removeprefix(UNIX))
            else:
                await self._listen_tcp()
        except OSError as error:
            self.close()
            why = error.strerror or str(error)
            raise OSError(f"can't listen on {self._address}; is another process using it? ({why})") from error
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)
        name = self._listeners[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def close(self) -> None:
        """Take no more in; those that are on their way stay."""
        for timer in self._paused.values():
            timer.cancel()
        self._paused.clear()
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        if self._file is not None:
            _remove(*self._file)
            self._file = None

    def drop(self) -> None:
        """End what has not come to be."""
        for task in self._arriving:
            task.cancel()

    # -- listening -----------------------------------------------------------------------------------------

    async def _listen_tcp(self) -> None:
        where = parse_address(self._address)
        found = await self._loop.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, at in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            self._listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._listen(listener, at)

    def _listen_unix(self, path: str) -> None:
        with _alone(path):
            _clear(path)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listeners.append(listener)
            self._listen(listener, path)
            self._file = path, Path(path).stat()

    @staticmethod
    def _listen(listener: socket.socket, at: object) -> None:
        listener.setblocking(False)
        listener.bind(at)  # type: ignore[arg-type]
        listener.listen(_BACKLOG)

    # -- accepting -----------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listener, error)
                return
            wire = self._make()
            if wire is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._connect(accepted, wire))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _connect(self, accepted: socket.socket, wire: Wire) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = self._handshake if self._context is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: wire,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=limit,
            )
        except BaseException as error:
            self._gone(wire)
            if isinstance(error, OSError | EOFError):  # TLS that failed or took too long, a peer that left
                self._refusals.add("handshake")
                return
            raise

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """No file, no memory: a listener stays readable then, and trying at once again would only burn CPU."""
        self._refusals.add("descriptors")
        self._told(f"can't accept connections: {error.strerror}; raise the limit of open files (ulimit -n)")
        self._loop.remove_reader(listener)
        self._paused[listener] = self._loop.call_later(_PAUSE, self._resume, listener)

    def _resume(self, listener: socket.socket) -> None:
        del self._paused[listener]
        self._loop.add_reader(listener, self._accept, listener)


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """Nobody else who asks here looks at this directory's sockets meanwhile. Raises OSError when somebody does."""
    directory = os.open(Path(path).parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise OSError(errno.EADDRINUSE, "another gateway is starting beside it; try again") from error
    finally:
        os.close(directory)


def _clear(path: str) -> None:
    """Remove a socket that nobody listens on any more. Raises OSError where somebody does."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file is there that is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # left behind by a process that was killed
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except BlockingIOError:  # its backlog is full: it lives
            pass
    raise OSError(errno.EADDRINUSE, "another process listens on it")


def _remove(path: str, ours: os.stat_result) -> None:
    """Remove our socket, unless another one is there by now."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), ours):
            os.unlink(path)
