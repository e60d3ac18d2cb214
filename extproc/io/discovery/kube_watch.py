"""Objects of one kind in one namespace of a Kubernetes cluster, kept as the API server has them.

    list (in pages) -> watch from its resource version -> events ... -> the server ends it -> watch from the last
      ^                      |           |                 |
      |                      |           |                 cut off, quiet: watch again from the last version
      +--- 410 Gone ---------+-----------+                 a line that can't be read: list anew, the set stays
      +--- ended at once, without an event, three times ---+

A bookmark moves the resource version on, so that a quiet watch can be resumed as well.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from extproc.core.membership import LIMIT, TOO_MANY
from extproc.io.discovery.base import Failed, SourceFailed, backoff
from extproc.io.discovery.kube_api import Event, Expired, KubeApi

_T = TypeVar("_T")
_R = TypeVar("_R")

#: After these a watch goes on where it was; after any other, what is known is listed anew.
_RESUMABLE = frozenset({"connect", "broken", "timeout", "busy", "status_5xx", "credentials", "denied", "tls"})
#: A watch that ends sooner, in seconds, and without an event counts as a failure: it must not be opened in a rush.
_SHORT = 1.0
#: After so many such ends in a row something is wrong: it may be another server, or a proxy, that answers.
_EMPTY = 3
#: Seconds of a watch after that: its end shows that watches work again, where nothing changes.
_TRIAL = 2
_HINT = "look whether a proxy answers in the API server's place"


@dataclass(frozen=True, slots=True)
class Resource(Generic[_T]):
    """What is listed and watched, and how its objects are read.

    Attributes:
        path: of the list on the API server.
        query: `labelSelector` or `fieldSelector`.
        parse: an object as JSON -> what is kept of it; may raise what strange JSON makes it raise.
    """

    path: str
    query: Mapping[str, str]
    parse: Callable[[Mapping[str, Any]], _T]


class ListWatch(Generic[_T, _R]):
    """Lists and watches a resource.

    Args:
        api: the API server, open.
        resource: what to watch.
        digest: name -> object, all there are, made into what is told; may raise SourceFailed.
        limit: most objects kept.

    Attributes:
        trouble: why what is told is as old as the last list, though lists come: watches keep failing. Else None.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource[_T],
        digest: Callable[[Mapping[str, _T]], _R],
        *,
        limit: int = LIMIT,
    ) -> None:
        self._api = api
        self._resource = resource
        self._digest = digest
        self._limit = limit
        self._objects: dict[str, _T] = {}
        #: Resource version up to which `_objects` is known; "" when it must be listed.
        self._version = ""
        self._failures = 0
        self.trouble: Failed | None = None

    async def follow(self) -> AsyncGenerator[_R | Failed, None]:
        """What there is after each change, each bookmark and each time the watch is opened; goes on for ever."""
        while True:
            try:
                async with aclosing(self._round()) as told:
                    async for digest in told:
                        yield digest
            except Expired:
                self._failures += 1
                if self._failures >= _EMPTY:
                    yield self._failed(Failed("unreadable", f"{self._resource.path}: always 410; {_HINT}"))
                self._version = ""
            except SourceFailed as error:
                self._failures += 1
                if error.reason not in _RESUMABLE:
                    self._failed(error.said)
                    self._version = ""
                if self._failures > 1 or not self._version:  # a watch may be cut once without a word
                    yield error.said
            if self._failures:
                await asyncio.sleep(backoff(self._failures))

    def _failed(self, said: Failed) -> Failed:
        """Note a failure after which all is listed anew; where watches keep failing, a list does not end it."""
        if self._version and self._failures >= _EMPTY:
            self.trouble = said
        return said

    async def _round(self) -> AsyncGenerator[_R, None]:
        """List if need be, then watch until the watch ends."""
        if not self._version:
            await self._list()
            yield self._digest(self._objects)
        loop = asyncio.get_running_loop()
        began, heard = loop.time(), False
        resource = self._resource
        seconds = _TRIAL if self.trouble else None
        watch = self._api.watch(resource.path, resource.query, self._version, seconds)
        async with aclosing(watch) as batches:
            async for events in batches:
                self._apply(events)
                if events:
                    heard, self._failures, self.trouble = True, 0, None
                yield self._digest(self._objects)
        if heard or loop.time() - began >= _SHORT:
            self._failures = 0
            if self.trouble is not None:
                self.trouble = None
                yield self._digest(self._objects)
        elif self._failures + 1 >= _EMPTY:
            raise SourceFailed(
                "unreadable", f"{resource.path}: watches end at once, without an event; {_HINT}"
            )
        else:
            self._failures += 1

    async def _list(self) -> None:
        objects: dict[str, _T] = {}
        version = ""
        async with aclosing(self._api.pages(self._resource.path, self._resource.query)) as pages:
            async for items, version in pages:  # noqa: B007 - the last one counts
                objects |= {_key(item): self._parse(item) for item in items}
                self._check(len(objects))
        self._objects, self._version = objects, version

    def _apply(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == "DELETED":
                self._objects.pop(_key(event.thing), None)
            elif event.kind != "BOOKMARK":
                self._objects[_key(event.thing)] = self._parse(event.thing)
            self._version = _version(event.thing) or self._version
        self._check(len(self._objects))

    def _parse(self, thing: Any) -> _T:
        try:
            return self._resource.parse(thing)
        except (AttributeError, TypeError, ValueError, KeyError, IndexError):
            raise SourceFailed(
                "unreadable", f"{self._resource.path}: has an object of an unknown form"
            ) from None

    def _check(self, objects: int) -> None:
        if objects > self._limit:
            detail = f"{self._resource.path}: more than {self._limit} objects; narrow the selector"
            raise SourceFailed(TOO_MANY, detail)


def _key(thing: Any) -> str:
    """What tells an object from others of its kind and namespace."""
    try:
        return str(thing["metadata"]["name"])
    except (KeyError, TypeError):
        raise SourceFailed("unreadable", "the API server sent an object without a name") from None


def _version(thing: Mapping[str, Any]) -> str:
    meta = thing.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return version if isinstance(version, str) else ""
