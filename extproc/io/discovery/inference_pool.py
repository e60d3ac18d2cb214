"""Members of an InferencePool (Gateway API Inference Extension, v1), without its controller.

    the pool's object --list, watch--> selector, target ports --> its pods --list, watch--> an endpoint a port and pod

Another selector or other ports begin a new watch of pods; the set of before stays until their list is there. A pool
that is deleted is an empty answer, which is believed after the grace period, so that one that is deleted and created
anew loses nobody; one that never was is a failure.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from extproc.core.membership import LIMIT
from extproc.errors import ConfigError
from extproc.io.discovery.base import Failed, Found, SourceFailed
from extproc.io.discovery.kube_api import KubeApi
from extproc.io.discovery.kube_objects import Family, Parsed, member_parser
from extproc.io.discovery.kube_watch import ListWatch, Resource
from extproc.io.discovery.kubernetes import Endpoints, pods_path
from extproc.io.discovery.selectors import check_name, check_selector, check_subdomain

_log = structlog.get_logger("kvsteer.discovery")

#: Most target ports of a pool (v1's own validation).
_PORTS = 8
_PROTOCOLS = {"http": "http", "kubernetes.io/h2c": "h2c"}
_FAILURE_MODES = {"FailOpen": "open", "FailClose": "close"}

Protocol = Literal["http", "h2c"]
FailureMode = Literal["open", "close"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """What an InferencePool asks for; defaults are the API's.

    Attributes:
        selector: label selector of its pods.
        ports: an endpoint each, 1 to 8.
        protocol: what its engines speak (`appProtocol`).
        failure_mode: what is to happen to requests while no picker answers (`endpointPickerRef.failureMode`).
        picker: name of the picker's Service; "" for none.
    """

    selector: str
    ports: tuple[int, ...]
    protocol: str = "http"
    failure_mode: str = "close"
    picker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySays:
    """What the configuration has Envoy do, to be held against what the pool asks for."""

    protocol: Protocol = "http"
    failure_mode: FailureMode = "open"


def read_pool(thing: Mapping[str, Any]) -> PoolSpec:
    """The spec of an InferencePool v1 as JSON.

    Raises:
        SourceFailed: its selector or its ports can't be used.
        TypeError, KeyError, AttributeError: it is none that the API's validation lets through.
    """
    spec = thing["spec"]
    picker = spec.get("endpointPickerRef") or {}
    return PoolSpec(
        selector=_selector(spec["selector"]["matchLabels"]),
        ports=_ports(spec["targetPorts"]),
        protocol=_PROTOCOLS[spec.get("appProtocol") or "http"],
        failure_mode=_FAILURE_MODES[picker.get("failureMode") or "FailClose"],
        picker=str(picker.get("name") or ""),
    )


def _selector(labels: Mapping[str, str]) -> str:
    try:
        return check_selector(",".join(f"{key}={value}" for key, value in sorted(labels.items())))
    except ConfigError:
        detail = "the InferencePool's selector is empty, which matches every pod, or has labels that are none"
        raise SourceFailed("unreadable", f"{detail}; mend its matchLabels") from None


def _ports(entries: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    numbers = tuple(dict.fromkeys(entry["number"] for entry in entries))
    right = all(isinstance(number, int) and 1 <= number <= 65535 for number in numbers)
    if not (right and 1 <= len(numbers) <= _PORTS):
        detail = f"the InferencePool's targetPorts are not 1 to {_PORTS} numbers from 1 to 65535; mend them"
        raise SourceFailed("unreadable", detail)
    return numbers


@dataclass(slots=True)
class _Members:
    """The watch of a pool's pods, as one spec asks for it."""

    spec: PoolSpec
    task: asyncio.Task[None]
    said: Found | Failed | None = None


class _Told:
    """What is to be yielded, in order. A set makes what stands before it old; so it is two answers at most."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._answers: list[Found | Failed] = []

    def take(self, answer: Found | Failed) -> None:
        sets = [] if isinstance(answer, Found) else [a for a in self._answers if isinstance(a, Found)]
        self._answers = [*sets, answer]
        self.changed.set()

    def fetch(self) -> list[Found | Failed]:
        told, self._answers = self._answers, []
        self.changed.clear()
        return told


class InferencePoolSource:
    """Follows one InferencePool and its pods.

    Args:
        api: the API server.
        pool: name of the InferencePool.
        namespace: where it and its pods are.
        family: which addresses of its pods count.
        limit: most pods.
        envoy: what Envoy was told to do; where the pool asks for something else, the log says so.

    Raises:
        ConfigError: a name is none.
    """

    name = "inference_pool"

    def __init__(
        self,
        api: KubeApi,
        pool: str,
        namespace: str,
        *,
        family: Family = "any",
        limit: int = LIMIT,
        envoy: EnvoySays = EnvoySays(),
    ) -> None:
        self._api = api
        self._pool = check_subdomain(pool, "the InferencePool")
        self._namespace = check_name(namespace, "the namespace")
        self._family = family
        self._limit = limit
        self._envoy = envoy
        self._spec: PoolSpec | None = None
        self._members: _Members | None = None
        self._trouble: Failed | None = None  # the pool's own, which what its pods say does not end
        self._told = _Told()

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """The set after each change of the pool or of its pods, and each time a watch is opened."""
        async with self._api:
            task = asyncio.create_task(self._follow_pool(), name=f"inference pool {self._pool}")
            try:
                while True:
                    await self._happens(task)
                    for answer in self._told.fetch():
                        yield answer
            finally:
                await _end(task)
                await self._forget_members()

    async def _happens(self, pool: "asyncio.Task[None]") -> None:
        """Wait until there is something to tell; a fault of either task is raised here."""
        while not self._told.changed.is_set():
            tasks = [pool, *([self._members.task] if self._members else [])]
            waiting = asyncio.ensure_future(self._told.changed.wait())
            try:
                await asyncio.wait((waiting, *tasks), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()

    async def _follow_pool(self) -> None:
        path = f"/apis/inference.networking.k8s.io/v1/namespaces/{self._namespace}/inferencepools"
        resource = Resource(path, {"fieldSelector": f"metadata.name={self._pool}"}, read_pool)
        watched = ListWatch(self._api, resource, lambda pools: pools.get(self._pool), limit=self._limit)
        async with aclosing(watched.follow()) as answers:
            async for answer in answers:
                before, self._trouble = (
                    self._trouble,
                    answer if isinstance(answer, Failed) else watched.trouble,
                )
                if isinstance(answer, Failed):
                    self._told.take(answer)
                elif answer is None:
                    await self._absent()
                elif self._members is None or answer != self._members.spec:
                    await self._follow_members(answer)
                elif before != self._trouble and self._members.said is not None:
                    self._take(self._members.said)

    def _take(self, said: Found | Failed) -> None:
        """Tell what the pods' watch said. While the pool can't be read, that is what is wrong."""
        if isinstance(said, Found):
            said = replace(said, trouble=self._trouble or said.trouble)
        if isinstance(said, Found) or self._trouble is None:
            self._told.take(said)

    async def _absent(self) -> None:
        """There is no such pool: it was deleted, or is still to be created."""
        if self._members is not None:
            _log.warning(
                "the InferencePool was deleted", inference_pool=self._pool, namespace=self._namespace
            )
        await self._forget_members()
        if self._spec is None:
            detail = f"there is no InferencePool {self._pool} in namespace {self._namespace}; create it"
            self._told.take(Failed("not_found", detail))
        else:
            self._told.take(Found((), trouble=self._trouble))

    async def _follow_members(self, spec: PoolSpec) -> None:
        self._say(spec)
        await self._forget_members()
        parse = member_parser(spec.ports, self._family)
        resource: Resource[Parsed] = Resource(
            pods_path(self._namespace), {"labelSelector": spec.selector}, parse
        )
        watched = ListWatch(self._api, resource, Endpoints(resource.path), limit=self._limit)

        async def follow() -> None:
            async with aclosing(watched.follow()) as answers:
                async for answer in answers:
                    if isinstance(answer, Found):
                        answer = replace(answer, trouble=watched.trouble)
                    members.said = answer
                    self._take(answer)

        self._spec = spec
        task = asyncio.create_task(follow(), name=f"members of {self._pool}")
        self._members = members = _Members(spec, task)  # which begins with the loop's next turn
        self._told.changed.set()  # whoever waits must watch over the new task

    async def _forget_members(self) -> None:
        if self._members is not None:
            members, self._members = self._members, None
            await _end(members.task)
            self._told.fetch()  # of the selector before

    def _say(self, spec: PoolSpec) -> None:
        told = {"inference_pool": self._pool, "namespace": self._namespace}
        _log.info(
            "InferencePool read", **told, selector=spec.selector, ports=list(spec.ports),
            app_protocol=spec.protocol, failure_mode=spec.failure_mode, picker=spec.picker,
        )  # fmt: skip
        if spec.protocol != self._envoy.protocol:
            hint = f"set the pool's app_protocol: {spec.protocol} for what envoy-config writes"
            _log.warning("the InferencePool's engines speak another protocol", **told, hint=hint)
        if spec.picker and spec.failure_mode != self._envoy.failure_mode:
            hint = f"set envoy.failure_mode: {spec.failure_mode} for what envoy-config writes"
            _log.warning("the InferencePool asks for another failure mode", **told, hint=hint)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
