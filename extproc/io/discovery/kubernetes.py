"""Endpoints of a Kubernetes cluster, by list and watch: the EndpointSlices of a service, or pods by label.

    list (in pages) -> watch from its resource version -> events ... -> the server ends it -> watch from the last
      ^                      |           |                 |
      |                      |           |                 cut off, quiet: watch again from the last version
      +--- 410 Gone ---------+-----------+                 a line that can't be read: list anew, the set stays

A bookmark moves the resource version on, so that a quiet watch can be resumed as well.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from extproc.core.membership import LIMIT, TOO_MANY, Endpoint
from extproc.io.discovery.base import Failed, Found, SourceFailed, backoff
from extproc.io.discovery.kube_api import Access, Event, Expired, KubeApi, in_cluster
from extproc.io.discovery.kube_objects import Family, Parsed, Parser, one_family, pod_parser, slice_parser
from extproc.io.discovery.selectors import check_name, check_selector

__all__ = ["Access", "KubernetesSource", "Resource", "in_cluster", "pods", "service_slices"]

_log = structlog.get_logger("kvsteer.discovery")

#: After these a watch goes on where it was; after any other, what is known is listed anew.
_RESUMABLE = frozenset({"connect", "broken", "timeout", "busy", "status_5xx", "credentials", "denied", "tls"})
#: A watch that ends sooner, in seconds, and without an event counts as a failure: it must not be opened in a rush.
_SHORT = 1.0


@dataclass(frozen=True, slots=True)
class Resource:
    """What is listed and watched, and how its objects are read."""

    path: str
    selector: str
    parse: Parser


def service_slices(service: str, namespace: str, port: str = "", family: Family = "any") -> Resource:
    """The EndpointSlices of a service. `port` is a name or number in them; empty where there is only one.

    Raises:
        ConfigError: a name is none.
    """
    path = f"/apis/discovery.k8s.io/v1/namespaces/{check_name(namespace, 'the namespace')}/endpointslices"
    selector = f"kubernetes.io/service-name={check_name(service, 'the service')}"
    return Resource(path, selector, slice_parser(port, family))


def pods(selector: str, namespace: str, port: str = "", family: Family = "any") -> Resource:
    """Pods by label. `port` is a number, or the name of a container's port; empty where there is only one.

    Raises:
        ConfigError: the selector is none or empty, or the namespace is none.
    """
    path = f"/api/v1/namespaces/{check_name(namespace, 'the namespace')}/pods"
    return Resource(path, check_selector(selector), pod_parser(port, family))


class KubernetesSource:
    """Lists and watches one kind of objects in one namespace.

    Args:
        api: the API server.
        resource: what to watch.
        limit: most objects kept; far more than their endpoints are no use.
    """

    name = "kubernetes"

    def __init__(self, api: KubeApi, resource: Resource, *, limit: int = LIMIT) -> None:
        self._api = api
        self._resource = resource
        self._limit = limit
        self._objects: dict[str, Parsed] = {}
        #: Resource version up to which `_objects` is known; "" when it must be listed.
        self._version = ""
        self._failures = 0
        self._warned = False

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """The set after each change, each bookmark and each time the watch is opened."""
        async with self._api:
            while True:
                try:
                    async with aclosing(self._round()) as sets:
                        async for found in sets:
                            yield found
                except Expired:
                    self._version = ""
                    self._failures += 1
                except SourceFailed as error:
                    self._failures += 1
                    if error.reason not in _RESUMABLE:
                        self._version = ""
                    if self._failures > 1 or not self._version:  # a watch may be cut once without a word
                        yield error.said
                if self._failures:
                    await asyncio.sleep(backoff(self._failures))

    async def _round(self) -> AsyncGenerator[Found, None]:
        """List if need be, then watch until the watch ends."""
        if not self._version:
            await self._list()
            yield self._found()
        loop = asyncio.get_running_loop()
        began, heard = loop.time(), False
        resource = self._resource
        async with aclosing(self._api.watch(resource.path, resource.selector, self._version)) as batches:
            async for events in batches:
                self._apply(events)
                if events:
                    heard, self._failures = True, 0
                yield self._found()
        if heard or loop.time() - began >= _SHORT:
            self._failures = 0
        else:
            self._failures += 1

    async def _list(self) -> None:
        objects: dict[str, Parsed] = {}
        version = ""
        async with aclosing(self._api.pages(self._resource.path, self._resource.selector)) as pages:
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

    def _parse(self, thing: Any) -> Parsed:
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

    def _found(self) -> Found:
        """The set as it is now.

        Raises:
            SourceFailed: `no_port`, if there are endpoints but none has the port.
        """
        endpoints: tuple[Endpoint, ...] = tuple(
            one_family(endpoint for parsed in self._objects.values() for endpoint in parsed.endpoints)
        )
        portless = sum(parsed.portless for parsed in self._objects.values())
        if portless and not endpoints:
            detail = f"{self._resource.path}: nothing selected has the port; set port to a name or a number"
            raise SourceFailed("no_port", detail)
        if portless and not self._warned:
            _log.warning("some of what is selected has no such port and is left out", count=portless)
        self._warned = bool(portless)
        return Found(endpoints)


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
