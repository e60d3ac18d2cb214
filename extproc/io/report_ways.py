"""The ways a reporter has to gateways: HTTP to one of them, or Redis to all."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Protocol

import aiohttp
import orjson
from yarl import URL

from extproc.config import RedisSettings
from extproc.errors import ConfigError
from extproc.io import clock
from extproc.io.discovery.base import SourceFailed
from extproc.io.report_board import ReportBoard
from extproc.io.scrape import Bearer
from extproc.io.trust import trust
from extproc.urls import plain_url, without_user

#: Most bytes read of an answer.
_MOST = 4096
#: Status -> why and how to mend it.
_HINTS = {
    401: "the token is missing or wrong; check --gateway-token-file against the gateway's admin.report_token_file",
    403: "the gateway takes no report from here",
    404: "no pool of the gateway has this replica; check the ip:port, or wait until it is discovered",
    409: "the gateway scrapes this replica; set telemetry to push or both for its pool",
    413: "the report is too large",
    429: "reports come too fast; raise --interval",
}
#: What to do about an answer that no gateway gives.
_WHICH = "--gateway is the URL of a gateway's admin.address, by default port 9095"
_BROKEN = f"what answers there breaks off or speaks no HTTP, as a gateway's grpc.address does; {_WHICH}"
#: Statuses that proxies give by themselves -> how to mend it.
_PROXY = {
    401: "a proxy before the gateway wants other credentials; check --gateway-token-file, or let /report pass there",
    403: "a proxy before the gateway takes no report from here; let /report pass there",
    407: "a proxy before the gateway wants credentials; reach the gateway without it",
    413: "a proxy before the gateway takes no body of this size; let 64 KiB pass there",
    429: "a proxy before the gateway finds that reports come too fast; raise --interval, or let /report pass there",
    502: "a proxy there can't reach the gateway; does the gateway run?",
    503: "a proxy there can't reach the gateway; does the gateway run?",
    504: "a proxy there had no answer of the gateway in time; does the gateway run?",
}


class WayFailed(Exception):
    """A report did not arrive. Raised within the reporter, which tells it and tries again.

    `reason` is a short word, `detail` a sentence that says how to mend it and holds no credential.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Way(Protocol):
    """One way to one or more gateways."""

    @property
    def name(self) -> str:
        """What it is called in logs; without a credential."""

    async def send(self, replica: str, report: bytes) -> None:
        """Deliver a report within a deadline. Raises WayFailed."""

    async def close(self) -> None:
        """Close its connections."""


class HttpWay:
    """Posts to one gateway's admin port.

    Args:
        url: of the admin port.
        bearer: the token; None for none.
        tls: how an https gateway is verified.
        deadline: longest wait for one report, in seconds.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(self, url: str, bearer: Bearer | None, tls: ssl.SSLContext, deadline: float) -> None:
        self._url = _gateway_url(url)
        self._bearer = bearer
        self._tls = tls
        self._deadline = deadline
        self._session: aiohttp.ClientSession | None = None
        self.name = str(self._url.origin())

    async def send(self, replica: str, report: bytes) -> None:
        """Post a report. Raises WayFailed."""
        try:
            async with asyncio.timeout(self._deadline):
                status, said = await self._post(report)
        except TimeoutError:
            raise WayFailed("timeout", f"no answer within {self._deadline:g} s") from None
        except aiohttp.ClientConnectorCertificateError:
            raise WayFailed("tls", "the gateway can't be verified; check --gateway-ca-file") from None
        except aiohttp.ClientSSLError:
            raise WayFailed(
                "tls", "what answers there speaks no TLS; is it http:// to the gateway?"
            ) from None
        except aiohttp.ClientConnectorError:
            raise WayFailed("connect", "nobody listens there; is it the gateway's admin port?") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise WayFailed("broken", _BROKEN) from None
        if said is None:
            raise WayFailed(*_no_gateway(status))
        if status != 200:
            raise WayFailed(f"status_{status}", _HINTS.get(status) or said or "look into the gateway's log")

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, report: bytes) -> tuple[int, str | None]:
        """The status, and what the gateway says beside it; None when it is no gateway that answers."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {"content-type": "application/json", "user-agent": "kvsteer"}
        token = self._bearer.header() if self._bearer else None
        if token:
            headers["authorization"] = token
        tls = self._tls if self._url.scheme == "https" else True
        async with self._session.post(
            self._url, data=report, headers=headers, ssl=tls, allow_redirects=False
        ) as answer:
            return answer.status, _said(await answer.content.read(_MOST))


def in_options(detail: str) -> str:
    """A sentence about Redis that names a gateway's settings, with this command's options instead."""
    return detail.replace("redis.url", "--redis").replace("redis.deadline", "--deadline")


class RedisWay:
    """Leaves reports in Redis, where every gateway of the pool reads them.

    Args:
        settings: where Redis is, its prefix and deadline.
        pool: name of the pool.
    """

    name = "redis"

    def __init__(self, settings: RedisSettings, pool: str) -> None:
        self._board = ReportBoard(settings, pool)

    async def send(self, replica: str, report: bytes) -> None:
        """Leave a report. Raises WayFailed."""
        try:
            await self._board.put(replica, report)
        except SourceFailed as error:
            raise WayFailed(error.reason, in_options(error.detail)) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._board.close()


def gateway_ways(urls: Iterable[str], token_file: str, ca_file: str, deadline: float) -> list[HttpWay]:
    """A way to each gateway.

    Args:
        urls: of their admin ports.
        token_file: file of the token they want; empty for none.
        ca_file: CA certificates for https; empty for the system's.
        deadline: longest wait for one report, in seconds.

    Raises:
        ConfigError: a URL, the token or the certificates can't be used.
    """
    bearer = Bearer("", token_file, clock.monotonic, "--gateway-token-file") if token_file else None
    try:
        tls = trust(ca_file)
    except OSError:  # ssl.SSLError is one
        raise ConfigError(f"--gateway-ca-file: {ca_file} is no PEM file of certificates") from None
    return [HttpWay(url, bearer, tls, deadline) for url in urls]


def _gateway_url(url: str) -> URL:
    parsed = plain_url(url)
    if parsed is None or parsed.query_string:
        raise ConfigError(
            f"--gateway {without_user(url)!r} is no URL; write for example http://10.0.1.1:9095"
        )
    return parsed.with_path(parsed.path.rstrip("/") + "/report")


def _said(body: bytes) -> str | None:
    """What a gateway says of a report, "" for nothing; None for an answer that no gateway gives to one."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return None
    if not isinstance(answer, dict) or "result" not in answer:
        return None
    said = answer.get("error", "")
    return said[:200] if isinstance(said, str) else ""


def _no_gateway(status: int) -> tuple[str, str]:
    """What to say of somebody else's answer: another server's, or that of a proxy before the gateway."""
    if status in _PROXY:
        return f"status_{status}", _PROXY[status]
    return "no_gateway", f"what answers there (with status {status}) takes no reports; {_WHICH}"
