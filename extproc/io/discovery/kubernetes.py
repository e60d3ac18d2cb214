"""Endpoints of a Kubernetes cluster, by list and watch: the EndpointSlices of a service, or pods by label."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

import structlog

from extproc.core.membership import LIMIT, Endpoint
from extproc.io.discovery.base import Failed, Found, SourceFailed
from extproc.io.discovery.kube_api import Access, KubeApi, in_cluster
from extproc.io.discovery.kube_objects import Family, Parsed, one_family, pod_parser, slice_parser
from extproc.io.discovery.kube_watch import ListWatch, Resource
from extproc.io.discovery.selectors import check_name, check_selector

__all__ = [
    "Access",
    "Endpoints",
    "KubernetesSource",
    "Resource",
    "in_cluster",
    "pods",
    "pods_path",
    "service_slices",
]

_log = structlog.get_logger("kvsteer.discovery")


def service_slices(service: str, namespace: str, port: str = "", family: Family = "any") -> Resource[Parsed]:
    """The EndpointSlices of a service. `port` is a name or number in them; empty where there is only one.

    Raises:
        ConfigError: a name is none.
    """
    path = f"/apis/discovery.k8s.io/v1/namespaces/{check_name(namespace, 'the namespace')}/endpointslices"
    selector = f"kubernetes.io/service-name={check_name(service, 'the service')}"
    return Resource(path, {"labelSelector": selector}, slice_parser(port, family))


def pods(selector: str, namespace: str, port: str = "", family: Family = "any") -> Resource[Parsed]:
    """Pods by label. `port` is a number, or the name of a container's port; empty where there is only one.

    Raises:
        ConfigError: the selector is none or empty, or the namespace is none.
    """
    return Resource(
        pods_path(namespace), {"labelSelector": check_selector(selector)}, pod_parser(port, family)
    )


def pods_path(namespace: str) -> str:
    """Where the pods of a namespace are listed. Raises ConfigError when the namespace is none."""
    return f"/api/v1/namespaces/{check_name(namespace, 'the namespace')}/pods"


class Endpoints:
    """The set that the objects of a resource make.

    Args:
        path: of the resource, for messages.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._warned = False

    def __call__(self, objects: Mapping[str, Parsed]) -> Found:
        """The set as it is now.

        Raises:
            SourceFailed: `no_port`, if there are endpoints but none has the port.
        """
        endpoints: tuple[Endpoint, ...] = tuple(
            one_family(endpoint for parsed in objects.values() for endpoint in parsed.endpoints)
        )
        portless = sum(parsed.portless for parsed in objects.values())
        if portless and not endpoints:
            detail = f"{self._path}: nothing selected has the port; set port to a name or a number"
            raise SourceFailed("no_port", detail)
        if portless and not self._warned:
            _log.warning("some of what is selected has no such port and is left out", count=portless)
        self._warned = bool(portless)
        return Found(endpoints)


class KubernetesSource:
    """Lists and watches one kind of objects in one namespace.

    Args:
        api: the API server.
        resource: what to watch.
        limit: most objects kept; far more than their endpoints are no use.
    """

    name = "kubernetes"

    def __init__(self, api: KubeApi, resource: Resource[Parsed], *, limit: int = LIMIT) -> None:
        self._api = api
        self._watched = ListWatch(api, resource, Endpoints(resource.path), limit=limit)

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """The set after each change, each bookmark and each time the watch is opened."""
        async with self._api, aclosing(self._watched.follow()) as answers:
            async for answer in answers:
                yield answer if isinstance(answer, Failed) else replace(answer, trouble=self._watched.trouble)
