"""As much of the Kubernetes API as discovery needs: list in pages, watch, and words for what goes wrong.

The token and the CA are those of the pod's service account. Both are read again for every request: the kubelet
renews a token long before it expires, and a CA may be rotated. The token goes over https only, or to this machine
(a `kubectl proxy`), and is in no log and no error.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from extproc.errors import ConfigError
from extproc.io.discovery.base import SourceFailed
from extproc.io.discovery.selectors import check_name
from extproc.io.regular import read_regular
from extproc.io.trust import trust
from extproc.urls import plain_url, without_user

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: What a bearer token may consist of (RFC 6750, 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: Objects in one page of a list.
_PAGE = 250
#: Largest page, and longest line of a watch, in bytes. etcd keeps no object above 1.5 MiB; JSON may double it.
_LARGEST_PAGE = 32 * 2**20
_LONGEST_LINE = 4 * 2**20
#: Seconds the server is asked to keep a watch open.
_WATCH = 240
#: Longest silence of a watch, in seconds, before it is opened anew: a server sends a bookmark every minute.
_QUIET = 90.0

_REASONS = {401: "denied", 403: "denied", 404: "not_found", 429: "busy"}
_HINTS = {
    401: "its token is not accepted; check token_file",
    403: "the service account may not list and watch; apply envoy/kubernetes/rbac.yaml in that namespace",
    404: "it has no such resource; check the API server's URL and version",
    429: "it is busy",
}


class Expired(Exception):
    """What was seen last is too long ago for the server (410 Gone). Raised by `KubeApi`; list anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is and who asks."""

    #: https://HOST:PORT, or http:// on this machine.
    url: str
    namespace: str
    #: File of the bearer token; empty for none.
    token_file: str = ""
    #: File of the CA's certificates; empty for the system's.
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    kind: str
    thing: Mapping[str, Any]


def in_cluster(
    namespace: str = "", environment: Mapping[str, str] = os.environ, folder: str = _ACCOUNT
) -> Access:
    """The access every pod has, by its service account; `namespace` is its own unless given.

    Raises:
        ConfigError: this is no pod, or one without a service account.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "discovery.kubernetes: this is no pod of a cluster; set api to the API server's URL"
        )
    try:
        with open(f"{folder}/namespace", encoding="ascii", errors="replace") as file:
            own = file.read(256).strip()
    except OSError:
        own = ""
    if not (namespace or own):
        raise ConfigError(f"discovery.kubernetes: {folder}/namespace can't be read; set namespace")
    return Access(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=check_name(namespace or own, "the namespace"),
        token_file=f"{folder}/token",
        ca_file=f"{folder}/ca.crt",
    )


class KubeApi:
    """A client of one API server; use it as a context manager.

    Args:
        access: where it is and who asks.
        deadline: longest wait for the answer to a request, in seconds; a page of a list included.
        quiet: longest silence of a watch, in seconds.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(self, access: Access, *, deadline: float = 10.0, quiet: float = _QUIET) -> None:
        self._url = _checked_url(access.url)
        self._access = access
        self._deadline = deadline
        self._quiet = quiet
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "KubeApi":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._deadline),
            connector=aiohttp.TCPConnector(limit=4),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "kvsteer", "accept": "application/json"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def pages(self, path: str, which: Mapping[str, str]) -> AsyncGenerator[tuple[list[Any], str], None]:
        """A list in pages: objects, and the resource version to watch from (the same in each page).

        Args:
            path: of the resource.
            which: `labelSelector` or `fieldSelector`.

        Raises:
            SourceFailed: it can't be had.
            Expired: it changed too much while it was read.
        """
        query = {**which, "limit": str(_PAGE)}
        while True:
            page = await self._page(path, query)
            try:
                items, meta = page["items"] or [], page["metadata"]
                version, more = str(meta["resourceVersion"]), meta.get("continue")
            except (KeyError, TypeError, AttributeError):
                raise SourceFailed("unreadable", f"{path}: what the API server answers is no list") from None
            yield items, version
            if not more:
                return
            query["continue"] = str(more)

    async def watch(
        self, path: str, which: Mapping[str, str], version: str, seconds: int | None = None
    ) -> AsyncGenerator[list[Event], None]:
        """What happens after a resource version, as it comes; an empty batch first, once the server agreed.

        Ends when the server ends it, which it does every few minutes, or after so many `seconds` as are asked for.

        Raises:
            SourceFailed: it broke; `unreadable` if something in it could not be read.
            Expired: the version is too old.
        """
        query = {
            **which,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH if seconds is None else seconds),
        }
        quiet = self._quiet if seconds is None else min(self._quiet, seconds + 1.0)
        async with self._answer(path, query) as response:
            yield []
            rest = b""
            async for data in self._chunks(path, response, quiet):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    raise SourceFailed("too_large", f"{path}: a line of the watch has no end")
                if events := [_event(path, line) for line in lines if line.strip()]:
                    yield events

    async def _chunks(
        self, path: str, response: aiohttp.ClientResponse, quiet: float
    ) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                async with _worded(path), asyncio.timeout(quiet):
                    data = await response.content.readany()
            except SourceFailed as error:
                if error.reason == "timeout":
                    return  # a quiet watch may be a dead one; the next begins where this one ends
                raise
            if not data:
                return
            yield data

    async def _page(self, path: str, query: Mapping[str, str]) -> Any:
        async with self._answer(path, query) as response, _worded(path), asyncio.timeout(self._deadline):
            body = await _whole(response, path)
        try:
            return await asyncio.to_thread(orjson.loads, body)
        except orjson.JSONDecodeError:
            raise SourceFailed("unreadable", f"{path}: what the API server answers is no JSON") from None

    @asynccontextmanager
    async def _answer(
        self, path: str, query: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A 200 answer, its body not read yet."""
        assert self._session is not None, "use it as a context manager"
        headers, tls = await asyncio.to_thread(self._credentials)
        url = self._url.with_path(self._url.path.rstrip("/") + path).with_query(query)
        async with _worded(path), asyncio.timeout(self._deadline):
            response = await self._session.get(url, headers=headers, ssl=tls, allow_redirects=False)
        try:
            _check_status(path, response.status)
            yield response
        finally:
            response.close()

    def _credentials(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        """The authorization header and what the server is verified with, both as the files are now."""
        secure = self._url.scheme == "https"
        headers: dict[str, str] = {}
        if self._access.token_file and (secure or _is_here(self._url)):
            headers["authorization"] = f"Bearer {_token(self._access.token_file)}"
        try:
            if secure and self._access.ca_file:
                read_regular(self._access.ca_file, 1)  # TLS itself would wait for a FIFO's writer
            return headers, trust(self._access.ca_file) if secure else True
        except OSError:  # ssl.SSLError is one
            detail = f"{self._access.ca_file} is no file of CA certificates; check ca_file"
            raise SourceFailed("credentials", detail) from None


def _token(path: str) -> str:
    try:
        token = read_regular(path, 65536).decode("ascii", "replace").strip()
    except OSError as error:
        raise SourceFailed(
            "credentials", f"{path}: can't be read ({error.strerror}); check token_file"
        ) from None
    if not _TOKEN.fullmatch(token):
        raise SourceFailed("credentials", f"{path}: holds no bearer token; check token_file")
    return token


def _checked_url(url: str) -> URL:
    parsed = plain_url(url)
    if parsed is None or parsed.query_string:
        raise ConfigError(
            f"discovery.kubernetes: {without_user(url)!r} is no URL; write for example https://10.96.0.1:443"
        )
    return parsed


def _is_here(url: URL) -> bool:
    return url.host in ("127.0.0.1", "::1", "localhost")


def _check_status(path: str, status: int) -> None:
    if status == 200:
        return
    if status == 410:
        raise Expired
    reason = _REASONS.get(status, f"status_{status // 100}xx")
    hint = _HINTS.get(status, "look into its log")
    raise SourceFailed(reason, f"{path}: the API server answers {status}: {hint}")


@asynccontextmanager
async def _worded(path: str) -> AsyncGenerator[None, None]:
    """Word the failures of a request. The client's own texts are not passed on."""
    try:
        yield
    except TimeoutError:
        raise SourceFailed("timeout", f"{path}: the API server does not answer in time") from None
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError):
        raise SourceFailed("tls", f"{path}: the API server can't be verified; check ca_file") from None
    except aiohttp.ClientConnectorError:
        raise SourceFailed("connect", f"{path}: the API server can't be reached; check its address") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise SourceFailed("broken", f"{path}: the API server's answer broke off or is no HTTP") from None


async def _whole(response: aiohttp.ClientResponse, path: str) -> bytes:
    parts: list[bytes] = []
    left = _LARGEST_PAGE
    while data := await response.content.readany():
        left -= len(data)
        if left < 0:
            raise SourceFailed(
                "too_large", f"{path}: a page of the list is larger than {_LARGEST_PAGE} bytes"
            )
        parts.append(data)
    return b"".join(parts)


def _event(path: str, line: bytes) -> Event:
    try:
        event = orjson.loads(line)
        kind, thing = event["type"], event["object"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise SourceFailed("unreadable", f"{path}: a line of the watch is no event") from None
    if kind == "ERROR" and isinstance(thing, dict) and thing.get("code") == 410:
        raise Expired
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(thing, dict):
        raise SourceFailed("unreadable", f"{path}: the watch ended with an error or an unknown event")
    return Event(kind, thing)
