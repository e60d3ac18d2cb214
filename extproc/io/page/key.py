"""Who may give orders on the admin port: `admin.token_file` has the word that they know.

Without it, commands may, as whoever reaches the port always could, and web pages may not: a browser would carry an
order for any page that is open in it. With it, every order must bear the token, also those of the live page, whose
operator types it in. No other page knows it, and none of another origin can send the header.
"""

import hmac
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from extproc.errors import ConfigError
from extproc.io.scrape import Bearer

_NOT_OURS: Final = "orders are not taken from web pages; set admin.token_file to take those of the live page"
_ELSEWHERE: Final = (
    "orders are taken from this gateway's own page alone, and this one is of another host; a proxy in between must "
    "pass on the Host header that the browser sent"
)
_UNKNOWN: Final = (
    "the token is missing or wrong; it is that of admin.token_file: commands read it from the file that "
    "KVSTEER_TOKEN_FILE names, others send it as `authorization: Bearer TOKEN`"
)


class OrderKey:
    """Looks at every order before it is taken.

    Args:
        token_file: file of the token; read anew when it changes. Empty for none.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the file is empty, or can't be read.
    """

    def __init__(self, token_file: str, clock: Callable[[], float]) -> None:
        self._bearer = Bearer("", token_file, clock, "admin.token_file") if token_file else None
        if self._bearer is not None and self._bearer.header() is None:
            raise ConfigError(f"admin.token_file: {token_file} is empty; write the token into it")

    @property
    def is_set(self) -> bool:
        """Whether there is a token, so that the page may give orders."""
        return self._bearer is not None

    def routes(self) -> list[web.RouteDef]:
        """Where the page asks whether a token is right."""
        return self.guard([web.post("/page/token", _right)])

    def guard(self, routes: list[web.RouteDef]) -> list[web.RouteDef]:
        """The routes with all that take POST behind the token."""
        return [
            web.RouteDef(route.method, route.path, self._guarded(route.handler), route.kwargs)
            if route.method == "POST"
            else route
            for route in routes
        ]

    def _guarded(self, handler: Any) -> Handler:
        async def look(request: web.Request) -> web.StreamResponse:
            refusal = self._refusal(request)
            answer: web.StreamResponse = refusal if refusal is not None else await handler(request)
            return answer

        return look

    def _refusal(self, request: web.Request) -> web.Response | None:
        origin = request.headers.get("origin")
        if origin is not None and not self.is_set:
            return _refused(403, _NOT_OURS)
        if origin is not None and urlsplit(origin).netloc != request.host:
            return _refused(403, _ELSEWHERE)
        if self._bearer is None or self._knows(request.headers.get("authorization", "")):
            return None
        return _refused(401, _UNKNOWN, {"www-authenticate": "Bearer"})

    def _knows(self, given: str) -> bool:
        assert self._bearer is not None
        wanted = self._bearer.header()
        return wanted is not None and hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), wanted.encode()
        )


async def _right(_request: web.Request) -> web.Response:
    return web.Response(body=b'{"right":true}', content_type="application/json")


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps({"error": why}), status=status, content_type="application/json", headers=headers
    )
