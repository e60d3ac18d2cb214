"""Where reporters beside engines post what they see: `POST /report` on the admin port.

What anybody may cost a gateway here is bounded: who has no token is answered before the body is read, bodies are
small, few are read at once, each within a deadline, and a replica's reports are looked at some twenty times a second
at most. Nothing that was sent is logged or repeated, but a field's name.
"""

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from extproc.core.report import LARGEST, BadReport, read_report
from extproc.errors import ConfigError
from extproc.io.intake import NOT_PUSHED, OLDER, TAKEN, TOO_MANY, UNKNOWN, Intake
from extproc.io.scrape import Bearer

#: Reports that are read at once.
_PLACES = 64
#: Seconds a body may take.
_DEADLINE = 2.0

#: Result -> status and what to say.
_ANSWERS = {
    TAKEN: (200, ""),
    OLDER: (200, "a newer sample is known"),
    UNKNOWN: (
        404,
        "no pool has this replica; report the ip:port that the gateway knows, once it is discovered",
    ),
    NOT_PUSHED: (409, "this gateway scrapes the replica; set telemetry to push or both for its pool"),
    TOO_MANY: (429, "reports of this replica come too fast; one each 100 ms is the most"),
}


class ReportDesk:
    """Takes reports over HTTP.

    Args:
        intake: where they go.
        token_file: file of the token that each must carry; empty for none.
        clock: seconds, monotonic.
        count: called with a word for each report: what became of it.

    Raises:
        ConfigError: the token can't be had.
    """

    def __init__(
        self, intake: Intake, token_file: str, clock: Callable[[], float], count: Callable[[str], None]
    ) -> None:
        self._intake = intake
        self._clock = clock
        self._count = count
        self._reading = 0
        self._bearer = Bearer("", token_file, clock, "admin.report_token_file") if token_file else None
        if self._bearer is not None and self._bearer.header() is None:
            raise ConfigError(f"admin.report_token_file: {token_file} is empty; write the token into it")

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port."""
        return [web.post("/report", self._on_report)]

    async def _on_report(self, request: web.Request) -> web.Response:
        arrived = self._clock()  # before the body: what it takes to come counts as age
        refusal = self._refusal(request)
        if refusal is not None:
            return self._answer(*refusal)
        self._reading += 1
        try:
            async with asyncio.timeout(_DEADLINE):
                body = await _bounded(request)
        except TimeoutError:
            return self._answer("refused", 408, f"the report took longer than {_DEADLINE:g} s")
        finally:
            self._reading -= 1
        if body is None:
            return self._answer("too_large", 413, f"a report has at most {LARGEST} bytes")
        try:
            report = read_report(body, arrived)
        except BadReport as error:
            return self._answer("refused", 400, str(error))
        result = self._intake.reported(report, "http", self._clock())
        return self._answer(result, *_ANSWERS[result])

    def _refusal(self, request: web.Request) -> tuple[str, int, str] | None:
        """Why a request is refused before its body is read."""
        if "Origin" in request.headers:  # browsers send it with every such call from another page
            return "denied", 403, "reports are not taken from web pages"
        if not self._may_report(request.headers.get("authorization", "")):
            return (
                "denied",
                401,
                "the bearer token is missing or wrong; it is that of admin.report_token_file",
            )
        if request.content_type != "application/json":
            return "refused", 415, "a report is application/json"
        if (request.content_length or 0) > LARGEST:
            return "too_large", 413, f"a report has at most {LARGEST} bytes"
        if self._reading >= _PLACES:
            return "busy", 503, "too many reports at once; try again"
        return None

    def _may_report(self, given: str) -> bool:
        if self._bearer is None:
            return True
        wanted = self._bearer.header()
        return wanted is not None and hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), wanted.encode()
        )

    def _answer(self, result: str, status: int, why: str) -> web.Response:
        self._count(result)
        body: dict[str, Any] = {"result": result} | (
            {"error" if status >= 400 else "why": why} if why else {}
        )
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        return web.Response(
            body=orjson.dumps(body), status=status, content_type="application/json", headers=headers
        )


async def _bounded(request: web.Request) -> bytes | None:
    """The body, or None as soon as it is too large."""
    parts: list[bytes] = []
    left = LARGEST
    async for part in request.content.iter_any():
        left -= len(part)
        if left < 0:
            return None
        parts.append(part)
    return b"".join(parts)
