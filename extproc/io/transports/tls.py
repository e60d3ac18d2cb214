"""TLS for every transport: where certificates come from, and those of files read again when the files change."""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from extproc.io.regular import read_regular
from extproc.io.transports import self_signed


@dataclass(frozen=True, slots=True)
class Pems:
    """What TLS is served with, in PEM; never to be logged.

    Attributes:
        cert: the server's certificate chain.
        key: its key.
        client_ca: who signs clients' certificates; empty lets clients come without one.
    """

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes = b""


class TlsSource(Protocol):
    """Where certificates come from."""

    def state(self) -> object:
        """Changes when they do. Raises OSError."""

    def pems(self) -> Pems:
        """As they are now. Raises OSError."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files.

    Attributes:
        cert: the server's certificate chain.
        key: its key.
        client_ca: who signs clients' certificates; empty lets clients come without one.
    """

    cert: str
    key: str
    client_ca: str = ""

    def state(self) -> object:
        """Changes when a file does. Raises OSError."""
        return _changes(self.cert, self.key, self.client_ca)

    def pems(self) -> Pems:
        """The files' content. Raises OSError."""
        return Pems(read_regular(self.cert), read_regular(self.key), _content(self.client_ca))


class SelfSigned:
    """A certificate of the gateway's own making, kept in memory alone and made anew at each start.

    Args:
        names: DNS names and IP addresses in it, at least one.
        client_ca: file of who signs clients' certificates; empty lets clients come without one.
    """

    def __init__(self, names: Sequence[str], client_ca: str = "") -> None:
        self._cert, self._key = self_signed.make(names)
        self._client_ca = client_ca

    def state(self) -> object:
        """Changes when the file does. Raises OSError."""
        return _changes(self._client_ca)

    def pems(self) -> Pems:
        """What was made, and the file's content. Raises OSError."""
        return Pems(self._cert, self._key, _content(self._client_ca))


class Certificates:
    """What new connections are served with.

    Args:
        source: where it comes from.
        told: given a sentence when changed files can't be used, once for each reason; the ones before stay in use.

    Attributes:
        pems: those in use.
        context: for listeners of Python's own; each handshake goes on with the newest certificates.

    Raises:
        OSError, ssl.SSLError: the files can't be read at the start, or used.
    """

    def __init__(self, source: TlsSource, told: Callable[[str], None] = lambda _why: None) -> None:
        self._source = source
        self._told = told
        self._said = ""
        self._state = source.state()
        self.pems = source.pems()
        self._current = _context(self.pems)
        self.context = _context(self.pems)
        self.context.sni_callback = self._choose

    def look(self) -> None:
        """Read again what changed."""
        try:
            state = self._source.state()
            if state != self._state:
                pems = self._source.pems()
                self._current, self.pems = _context(pems), pems
                self._state = state
            self._said = ""
        except OSError as error:  # ssl.SSLError is one
            why = f"certificates changed and can't be used: {error}; the ones before stay in use"
            if why != self._said:
                self._said = why
                self._told(why)

    def _choose(self, chosen: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        chosen.context = self._current


def _context(pems: Pems) -> ssl.SSLContext:
    """Raises OSError, of which ssl.SSLError is one, where they can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9113, section 9.2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    with _as_file(pems.key + b"\n" + pems.cert) as path:
        context.load_cert_chain(path, password="")  # else one with a passphrase would ask at the terminal
    context.set_alpn_protocols(["h2"])
    if pems.client_ca:
        try:
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "replace"))
        except ValueError as error:
            raise ssl.SSLError(f"the clients' CA is no PEM ({error})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path of this content, for what reads files alone: in memory where the system can, else its owner's alone."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("pem"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as named:
            named.write(content)
            named.flush()
            yield named.name


def _content(path: str) -> bytes:
    return read_regular(path) if path else b""


def _changes(*paths: str) -> tuple[tuple[int, int], ...]:
    stats = [Path(path).stat() for path in paths if path]
    return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)
