"""A small Kubernetes API server over real HTTP: objects by path, versions, selectors, watches, 410, outages."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web

from extproc.io.discovery import Failed, Found, Source
from tests.integration.patience import patient

Thing = dict[str, Any]


class Following:
    """Follows a source for the length of a block and keeps what it said."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.said: list[Found | Failed] = []

    async def __aenter__(self) -> "Following":
        self.task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _follow(self) -> None:
        async with aclosing(self.source.watch()) as answers:
            async for answer in answers:
                self.said.append(answer)

    @property
    def found(self) -> dict[str, bool]:
        """Address -> terminating, of the last set."""
        sets = [said for said in self.said if isinstance(said, Found)]
        return {e.address: e.terminating for e in sets[-1].endpoints} if sets else {}

    @property
    def reasons(self) -> list[str]:
        return [said.reason for said in self.said if isinstance(said, Failed)]

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(30)):
            while not happened():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.005)


class KubeServer:
    """Keeps objects and tells watchers of changes.

    Attributes:
        down: whether every request is cut off without an answer.
        refused: path -> status that is answered instead.
        asked: ("list" or "watch", path, query) of each request.
    """

    def __init__(self) -> None:
        self.port = 0
        self.down = False
        self.refused: dict[str, int] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.version = 100
        self._oldest = 100
        self._things: dict[str, dict[str, Thing]] = {}
        #: (version, path, before, after) of each change.
        self._history: list[tuple[int, str, Thing | None, Thing | None]] = []
        self._changed = asyncio.Event()
        self._watches: list[web.Request] = []

    def put(self, path: str, thing: Thing) -> None:
        """Create an object, or replace it."""
        before = self._things.setdefault(path, {}).get(thing["metadata"]["name"])
        self._change(path, before, json.loads(json.dumps(thing)))

    def delete(self, path: str, name: str) -> None:
        self._change(path, self._things[path][name], None)

    def forget(self) -> None:
        """What was before now is gone: a watch from there is answered with 410."""
        self._oldest = self.version

    def cut(self) -> None:
        """Break every open watch."""
        for request in self._watches:
            if request.transport is not None:
                request.transport.abort()

    def count(self, kind: str, path: str) -> int:
        return sum((asked, at) == (kind, path) for asked, at, _ in self.asked)

    @property
    def watching(self) -> list[str]:
        """Paths of the watches that are open."""
        return sorted(request.path for request in self._watches)

    def _change(self, path: str, before: Thing | None, after: Thing | None) -> None:
        self.version += 1
        for thing in (before, after):
            if thing is not None:
                thing["metadata"]["resourceVersion"] = str(self.version)
        if after is not None:
            self._things[path][after["metadata"]["name"]] = after
        elif before is not None:
            del self._things[path][before["metadata"]["name"]]
        self._history.append((self.version, path, before, after))
        self._changed.set()
        self._changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        kind = "watch" if "watch" in query else "list"
        self.asked.append((kind, request.path, query))
        if self.down:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if status := self.refused.get(request.path):
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if kind == "list":
            things = [t for t in self._things.get(request.path, {}).values() if _matches(t, query)]
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": things})
        return await self._watch(request, query)

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        seen = int(query["resourceVersion"])
        if seen < self._oldest:
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        self._watches.append(request)
        try:
            while True:
                changed = self._changed
                for version, path, before, after in list(self._history):
                    event = _event(before, after, query) if path == request.path and version > seen else None
                    if event is not None:
                        await response.write(json.dumps(event).encode() + b"\n")
                seen = self.version
                await changed.wait()
        finally:
            self._watches.remove(request)


def _event(before: Thing | None, after: Thing | None, query: dict[str, str]) -> Thing | None:
    """What a watcher that selects is told of a change: an object that no longer matches is gone for it."""
    was = before is not None and _matches(before, query)
    if after is not None and _matches(after, query):
        return {"type": "MODIFIED" if was else "ADDED", "object": after}
    return {"type": "DELETED", "object": after or before} if was else None


def _matches(thing: Thing, query: dict[str, str]) -> bool:
    meta = thing["metadata"]
    field = query.get("fieldSelector", "")
    if field and field != f"metadata.name={meta['name']}":
        return False
    wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
    return all(meta.get("labels", {}).get(key) == value for key, value in wanted)


@asynccontextmanager
async def kube_server() -> AsyncIterator[KubeServer]:
    """One that listens on loopback."""
    server = KubeServer()
    app = web.Application()
    app.router.add_get("/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()
