"""TLS for the fast transport: certificates read again when their files change, without a restart."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


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

    def state(self) -> tuple[tuple[int, int], ...]:
        """Changes when a file does. Raises OSError."""
        stats = [Path(path).stat() for path in (self.cert, self.key, self.client_ca) if path]
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)


class Certificates:
    """The context for new connections.

    Args:
        files: what to read.
        told: given a sentence when changed files can't be used, once for each reason; the ones before stay in use.

    Raises:
        OSError, ssl.SSLError: the files can't be read at the start.
    """

    def __init__(self, files: TlsFiles, told: Callable[[str], None] = lambda _why: None) -> None:
        self._files = files
        self._told = told
        self._said = ""
        self._state = files.state()
        self._current = self._context()
        #: Given to the listener; each handshake goes on with the newest certificates.
        self.context = self._context()
        self.context.sni_callback = self._choose

    def look(self) -> None:
        """Read the files again if they changed."""
        try:
            state = self._files.state()
            if state != self._state:
                self._current = self._context()
                self._state = state
            self._said = ""
        except (OSError, ssl.SSLError) as error:
            why = f"certificates changed and can't be used: {error}; the ones before stay in use"
            if why != self._said:
                self._said = why
                self._told(why)

    def _choose(self, chosen: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        chosen.context = self._current

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9113, section 9.2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(self._files.cert, self._files.key)
        context.set_alpn_protocols(["h2"])
        if self._files.client_ca:
            context.load_verify_locations(self._files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
