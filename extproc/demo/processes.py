"""Child processes that never outlive us, and ports that are free."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from extproc.errors import KvsteerError

#: Becomes the program after it asked the kernel to be killed when its parent dies, also by kill -9: prctl(2),
#: PR_SET_PDEATHSIG = 1, SIGKILL = 9. A process of its own, since Python code between fork and exec (`preexec_fn`)
#: runs the fork handlers of whatever the parent has loaded; gRPC's, with its threads gone, end the child at times.
_DIES_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
#: Seconds a child has to end after SIGTERM before it is killed.
_PATIENCE = 5.0
#: So many ports below those of connections are for servers; a process sets so many of them aside at a time.
_SPAN, _BLOCK = 10_000, 50


class StackError(KvsteerError):
    """A process of the stack could not be started or died. Its message ends with what the process last said."""


class _Ports:
    """Ports for servers that are started a little later, each given once in the life of this process.

    A port that is free now can be another's before its server listens, or while its server is down for a moment: a
    connection's, which the kernel gives a port to, or another process's that looks for ports as well. So they lie
    below the range of connections' ports, and a process sets blocks of them aside for as long as it lives: a block
    is whose abstract unix socket bears its name (unix(7), Linux alone), which the kernel frees with the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = self._end = 0

    def take(self, count: int) -> int:
        """The first of so many in a row, at most _BLOCK; of what the kernel gives, once no block is left."""
        with self._lock:
            while self._next + count <= self._end or self._set_aside():
                first = self._next
                self._next += count
                if _are_free(first, count):
                    return first
            while True:
                first = _kernels_choice()
                if _are_free(first, count):
                    return first

    def _set_aside(self) -> bool:
        end = _connections_from()
        firsts = range(max(end - _SPAN, 1024), end - _BLOCK + 1, _BLOCK)
        for first in random.SystemRandom().sample(firsts, len(firsts)):
            if _mine(f"\0kvsteer-ports-{first}"):
                self._next, self._end = first, first + _BLOCK
                return True
        return False


def _connections_from() -> int:
    """The first port of those that the kernel gives to connections, 32,768 by default; 0 where it does not say."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _mine(name: str) -> bool:
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(name)
    except OSError:
        mark.close()
        return False
    mark.detach()  # open until this process ends
    return True


def _are_free(first: int, count: int) -> bool:
    with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
        for port in range(first, first + count):
            probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
        return True
    return False


def _kernels_choice() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


_ports = _Ports()


def free_port(count: int = 1) -> int:
    """A TCP port of the loopback address on which nobody listens, and that no other call gives, here or elsewhere.

    Args:
        count: how many in a row are wanted, at most _BLOCK; the first of them is returned.
    """
    return _ports.take(count)


class Child:
    """One process, its output in a file, ended with us however we end.

    Args:
        name: its log in `folder` is called so.
        argv: its command line.
        session: whether it gets a session of its own. Linux shares processors among sessions first (sched(7),
            autogroup): a priority means something among processes of one session only.
    """

    def __init__(self, name: str, argv: Sequence[str], folder: Path, *, session: bool = True) -> None:
        self.name = name
        self._session = session
        self.argv = list(argv)
        self.log = folder / f"{name}.log"
        self._process = self._spawn()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, lines: int = 15) -> str:
        """The last lines of its output."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def restart(self) -> None:
        """Start it again after it ended; its output is appended."""
        self._process = self._spawn()

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if it does not end in time."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()`; raise StackError if it takes longer than `seconds` or the process ends."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running and not ready():  # it may have become so just before it ended
                raise StackError(f"{self.name} ended at its start. It last said:\n{self.said()}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} was not ready after {seconds:.0f} s. It last said:\n{self.said()}"
                )
            time.sleep(0.02)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own command lines
                _bound_to_us(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=self._session,  # or a group: Ctrl-C is ours to pass on, in order
                process_group=None if self._session else 0,
            )


def _bound_to_us(argv: list[str]) -> list[str]:
    """The command line that runs `argv` and ends with us; `argv` itself where the kernel can't."""
    if sys.platform != "linux":
        return argv
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *argv]


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.2):
        return True
    return False


def program(name: str) -> str | None:
    """Path of an executable beside this Python's own, or on PATH."""
    beside = Path(sys.executable).parent / name
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(folder) / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None
