"""The page's own files, and the rules by which browsers keep it to itself."""

from importlib.resources import files
from typing import Final

from aiohttp import web

#: What browsers let the page do: files and data of this origin, nothing inline, in nobody's frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # a new gateway has a new page
}
_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Files:
    """Reads the package's files once, at the start, and serves those alone."""

    def __init__(self) -> None:
        self._bodies = {
            entry.name: entry.read_bytes()
            for entry in (files(__package__) / "static").iterdir()
            if entry.name.rpartition(".")[2] in _TYPES
        }

    def routes(self) -> list[web.RouteDef]:
        """Routes for the admin port: / and /page/NAME."""
        return [
            web.get("/", self._on_page),
            *(web.get(f"/page/{name}", self._on_file) for name in self.names),
        ]

    @property
    def names(self) -> list[str]:
        """Names of the files beside the page."""
        return sorted(name for name in self._bodies if name != "index.html")

    async def _on_page(self, _request: web.Request) -> web.Response:
        return self._answer("index.html")

    async def _on_file(self, request: web.Request) -> web.Response:
        return self._answer(request.path.rpartition("/")[2])

    def _answer(self, name: str) -> web.Response:
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=self._bodies[name], content_type=kind, charset="utf-8", headers=_HEADERS)
