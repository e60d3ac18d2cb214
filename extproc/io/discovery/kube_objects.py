"""Endpoints of Kubernetes objects: EndpointSlices and pods.

What counts, by the API's own rules (discovery.k8s.io/v1, core/v1):

* terminating (the slice's condition, or a pod's deletionTimestamp): streams run out, nothing new goes there. It
  stays so until it is listed no more.
* else ready: it belongs to the pool. A condition that is not given counts as ready.
* else (not ready, not terminating): it is left out, until it is.

A pod with addresses of both families is one engine: it is taken once, by its IPv4 address unless `family` says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from extproc.addresses import HostPort
from extproc.core.membership import Endpoint
from extproc.io.discovery.file_forms import MAX_LABEL, MAX_LABELS

Family = Literal["any", "ipv4", "ipv6"]
#: Annotations of a pod that name the ports it serves, with commas between; the first that is there counts.
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
_FAMILIES = {"any": ("IPv4", "IPv6"), "ipv4": ("IPv4",), "ipv6": ("IPv6",)}


@dataclass(frozen=True, slots=True)
class Parsed:
    """The endpoints of an object; `portless` if it has some without the wanted port."""

    endpoints: tuple[Endpoint, ...] = ()
    portless: bool = False


Parser = Callable[[Mapping[str, Any]], Parsed]


def slice_parser(port: str, family: Family) -> Parser:
    """Reads EndpointSlices; `port` is a port's name or number, or empty where there is only one."""

    def parse(thing: Mapping[str, Any]) -> Parsed:
        if thing.get("addressType") not in _FAMILIES[family]:
            return Parsed()
        number = _slice_port(thing, port)
        entries = thing.get("endpoints") or []
        if number is None:
            return Parsed(portless=bool(entries))
        return Parsed(tuple(_of_entries(entries, number)))

    return parse


def pod_parser(port: str, family: Family) -> Parser:
    """Reads pods; `port` is the name or number of a container's port, or empty where there is only one."""

    def numbers(pod: Mapping[str, Any]) -> tuple[int, ...] | None:
        number = _pod_port(pod, port)
        return None if number is None else (number,)

    return _pod_parser(numbers, family)


def member_parser(ports: Sequence[int], family: Family) -> Parser:
    """Reads pods of an InferencePool: an endpoint for each of its target ports (1 to 8).

    A pod may say by an annotation which of the ports it serves, as engines with data parallelism do; the names are
    those that the Gateway API Inference Extension's endpoint pickers read.
    """

    def numbers(pod: Mapping[str, Any]) -> tuple[int, ...]:
        notes = (pod.get("metadata") or {}).get("annotations") or {}
        told = next((notes[name] for name in ACTIVE_PORTS if name in notes), None)
        if told is None:
            return tuple(ports)
        active = {text.strip() for text in str(told).split(",")}
        return tuple(port for port in ports if str(port) in active)

    return _pod_parser(numbers, family)


def _pod_parser(ports: Callable[[Mapping[str, Any]], tuple[int, ...] | None], family: Family) -> Parser:
    """Reads pods; `ports` says on which a pod serves, None if it has not the wanted one."""

    def parse(thing: Mapping[str, Any]) -> Parsed:
        ip = _pod_ip(thing.get("status") or {}, family)
        terminating = bool((thing.get("metadata") or {}).get("deletionTimestamp"))
        if ip is None or not (_runs(thing) and (terminating or _is_ready(thing))):
            return Parsed()
        numbers = ports(thing)
        if numbers is None:
            return Parsed(portless=True)
        labels = _pod_labels(thing)
        return Parsed(tuple(e for number in numbers for e in _endpoint(ip, number, terminating, labels)))

    return parse


def one_family(endpoints: Iterator[Endpoint]) -> list[Endpoint]:
    """Without the IPv6 addresses of pods that have an IPv4 address as well."""
    found = list(endpoints)
    have = {_pod_of(e) for e in found if not e.address.startswith("[")} - {None}
    return [e for e in found if not (e.address.startswith("[") and _pod_of(e) in have)]


def _pod_of(endpoint: Endpoint) -> str | None:
    return endpoint.labels.get("pod")


# -- EndpointSlices ------------------------------------------------------------------------------------------


def _of_entries(entries: list[Any], port: int) -> Iterator[Endpoint]:
    for entry in entries:
        conditions = entry.get("conditions") or {}
        terminating = conditions.get("terminating") is True
        addresses = entry.get("addresses") or []
        # Further addresses of an entry are the same endpoint once more.
        if addresses and (terminating or conditions.get("ready") is not False):
            yield from _endpoint(addresses[0], port, terminating, _entry_labels(entry))


def _entry_labels(entry: Mapping[str, Any]) -> dict[str, str]:
    target = entry.get("targetRef") or {}
    pod = target.get("name") if target.get("kind") == "Pod" else None
    return _short({"pod": pod, "node": entry.get("nodeName"), "zone": entry.get("zone")})


def _slice_port(thing: Mapping[str, Any], wanted: str) -> int | None:
    ports = [(str(port.get("name") or ""), port.get("port")) for port in thing.get("ports") or []]
    return _choose(ports, wanted)


# -- pods ----------------------------------------------------------------------------------------------------


def _runs(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _pod_ip(status: Mapping[str, Any], family: Family) -> str | None:
    given = [entry.get("ip") for entry in status.get("podIPs") or []] or [status.get("podIP")]
    ips = [ip for ip in given if isinstance(ip, str) and ip]
    for kind in _FAMILIES[family]:
        for ip in ips:
            if (":" in ip) == (kind == "IPv6"):
                return ip
    return None


def _pod_port(pod: Mapping[str, Any], wanted: str) -> int | None:
    containers = (pod.get("spec") or {}).get("containers") or []
    ports = [port for container in containers for port in container.get("ports") or []]
    named = [(str(port.get("name") or ""), port.get("containerPort")) for port in ports]
    if wanted.isdigit():
        return int(wanted)  # a pod need not declare the ports it listens on
    return _choose(named, wanted)


def _pod_labels(pod: Mapping[str, Any]) -> dict[str, str]:
    meta = pod.get("metadata") or {}
    own = {"pod": meta.get("name"), "node": (pod.get("spec") or {}).get("nodeName")}
    return _short({**own, **{k: v for k, v in (meta.get("labels") or {}).items() if k not in own}})


# -- both ----------------------------------------------------------------------------------------------------


def _choose(ports: list[tuple[str, Any]], wanted: str) -> int | None:
    """The number of the wanted port; the only one if none is named."""
    numbers = {name: number for name, number in ports if isinstance(number, int)}
    if not wanted:
        return next(iter(numbers.values())) if len(numbers) == 1 else None
    if wanted.isdigit():
        return int(wanted) if int(wanted) in numbers.values() else None
    return numbers.get(wanted)


def _endpoint(ip: str, port: int, terminating: bool, labels: Mapping[str, str]) -> Iterator[Endpoint]:
    """The endpoint; none where the address is none an engine can have."""
    try:
        address = str(HostPort(ip, port))
        yield Endpoint(address=address, terminating=terminating, labels=labels)
    except ValueError:
        return


def _short(labels: Mapping[str, Any]) -> dict[str, str]:
    kept = [(k, v[:MAX_LABEL]) for k, v in labels.items() if isinstance(v, str) and v]
    return dict(kept[:MAX_LABELS])
