"""A replica's metrics, fetched within bounds of time and size; a failure is a word from a closed list."""

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from typing import Protocol

import structlog
from yarl import URL

from extproc.core.encoding import decode
from extproc.errors import ConfigError, TooLarge, Unreadable
from extproc.io.http_get import GetFailed, Getter
from extproc.io.regular import read_regular
from extproc.io.trust import trust
from extproc.urls import plain_url, without_user

_log = structlog.get_logger("kvsteer.scrape")

#: Largest answer read, in bytes, sent and expanded alike; vLLM's has 0.07 MB for each data-parallel rank.
MAX_ANSWER = 4 * 2**20
#: Seconds between two looks at a token file; the kubelet renews a token minutes before it expires.
_TOKEN_CHECK = 5.0
#: Status codes that tell an operator what to mend; any other is told by its class.
_TELLING = frozenset({401, 403, 404, 429, 500, 502, 503, 504})

#: What a bearer token may consist of (RFC 6750, 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class ScrapeFailed(Exception):
    """A scrape gave no sample. Raised within the collector, which tells the reason on.

    `reason` is one of `connect` (refused, unreachable, no such name), `tls`, `timeout`, `broken` (cut off, or
    not HTTP), `too_large`, `status_NNN` or `status_Nxx`, `unparsable`, `internal`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ScrapeSettings(Protocol):
    """The settings a scrape needs; `MetricsSettings` of a pool has them."""

    @property
    def interval(self) -> float:
        """Seconds between two scrapes of a replica."""

    @property
    def timeout(self) -> float:
        """Longest wait for one scrape, in seconds."""

    @property
    def token(self) -> str:
        """Bearer token; `env:NAME` takes it from the environment; empty for none."""

    @property
    def token_file(self) -> str:
        """File with the bearer token, read anew when it changes; empty for none."""

    @property
    def ca_file(self) -> str:
        """CA certificates to trust for https, in PEM; empty for the system's."""


class Bearer:
    """The value of the authorization header. A file is looked at again every few seconds.

    `name` is the setting of the file, for messages.

    Raises:
        ConfigError: the token can't be had, or has characters no token has; the message never shows it.
    """

    def __init__(
        self,
        token: str,
        token_file: str,
        clock: Callable[[], float],
        name: str = "metrics.token_file",
    ) -> None:
        self._file = token_file
        self._name = name
        self._clock = clock
        self._changed: int | None = None
        self._look_at = clock() + _TOKEN_CHECK
        self._value = self._from_file() if token_file else _checked(_from_setting(token), "metrics.token")

    def header(self) -> str | None:
        """`Bearer ...`, or None when there is no token."""
        if self._file and self._clock() >= self._look_at:
            self._look_at = self._clock() + _TOKEN_CHECK
            self._renew()
        return f"Bearer {self._value}" if self._value else None

    def _renew(self) -> None:
        """Take over a changed file; one that can't be read for the moment leaves the last token in use."""
        try:
            changed = os.stat(self._file).st_mtime_ns
            if changed != self._changed:
                self._value = self._from_file()
                self._changed = changed
        except (OSError, ConfigError):
            _log.warning("token file can't be read; the last token stays in use", file=self._file)

    def _from_file(self) -> str:
        try:
            token = read_regular(self._file, 65536).decode("ascii", "replace").strip()
        except OSError as error:
            raise ConfigError(f"{self._name}: {self._file} can't be read ({error.strerror})") from None
        return _checked(token, f"{self._name}: {self._file}")


def _from_setting(token: str) -> str:
    name = token.removeprefix("env:")
    if name == token:
        return token
    if name not in os.environ:
        raise ConfigError(f"metrics.token: the environment has no {name}; set it, or name a token_file")
    return os.environ[name]


def _checked(token: str, where: str) -> str:
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where} holds no bearer token; it may have letters, digits and -._~+/ only")
    return token


def check_url(url: str) -> URL:
    """An http or https URL with a host and no user; a secret belongs into token or token_file.

    Raises:
        ConfigError: it is none.
    """
    parsed = plain_url(url)
    if parsed is None:
        raise ConfigError(
            f"metrics: {without_user(url)!r} is no URL; write for example http://10.0.0.1:8000/metrics"
        )
    return parsed


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Verifies servers against a file of CA certificates, or against the system's.

    Raises:
        ConfigError: the file can't be read or has no certificate.
    """
    try:
        if ca_file:
            read_regular(ca_file, 1)  # TLS itself would wait for a FIFO's writer
        return trust(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"metrics.ca_file: {ca_file} is no PEM file of certificates ({error})") from None


class Scraper:
    """Makes the scrape of each replica, all with the same deadline, token and CA.

    Args:
        settings: deadline, token and CA.
        clock: seconds, monotonic.
        limit: largest body, in bytes.
        gzip: whether to ask for compressed answers. Off, as packing 60 KB takes the engine's own event loop
            1.5 ms each time, and its network carries far more than this; a packed answer is read anyway.
    """

    def __init__(
        self,
        settings: ScrapeSettings,
        clock: Callable[[], float],
        *,
        limit: int = MAX_ANSWER,
        gzip: bool = False,
    ) -> None:
        self.settings = settings
        self.bearer = Bearer(settings.token, settings.token_file, clock)
        self.limit = limit
        self._tls = tls_context(settings.ca_file)
        self._headers = {
            "user-agent": "kvsteer",
            "accept": "text/plain, application/json",
            "accept-encoding": "gzip" if gzip else "identity",
        }

    def of(self, url: URL) -> "Scrape":
        """The scrape of one URL."""
        return Scrape(self, Getter(url, self._tls, self.limit, self._headers))


class Scrape:
    """The scrape of one replica, over a connection of its own that is kept between two scrapes."""

    def __init__(self, scraper: Scraper, getter: Getter) -> None:
        self._scraper = scraper
        self._getter = getter

    async def fetch(self) -> bytes:
        """The body of a 200 answer.

        Raises:
            ScrapeFailed: for everything else, at the latest after the deadline.
        """
        deadline = asyncio.get_running_loop().time() + self._scraper.settings.timeout
        try:
            answer = await self._getter.get(self._scraper.bearer.header(), deadline)
        except GetFailed as error:
            raise ScrapeFailed(error.reason) from None
        if answer.status != 200:
            raise ScrapeFailed(_status_reason(answer.status))
        return expand(answer.body, answer.headers.get("content-encoding", ""), self._scraper.limit)

    def close(self) -> None:
        """Drop the connection, at once."""
        self._getter.close()


def _status_reason(status: int) -> str:
    return f"status_{status}" if status in _TELLING else f"status_{status // 100}xx"


def expand(body: bytes, encoding: str, limit: int) -> bytes:
    """A body without its content encoding, at most `limit` bytes.

    Raises:
        ScrapeFailed: `too_large` above the limit, `broken` for other encodings and spoilt data.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        raise ScrapeFailed("broken")
    return _gunzip(body, limit)


def _gunzip(body: bytes, limit: int) -> bytes:
    """Bounded in size and in members: thousands of empty ones are cheap to send and dear to open."""
    try:
        return decode(body, "gzip", limit)
    except TooLarge:
        raise ScrapeFailed("too_large") from None
    except Unreadable:
        raise ScrapeFailed("broken") from None
