"""The forms a file of endpoints may have: a plain list, or Envoy's EDS; YAML or JSON.

Plain, each entry `ip:port` or a mapping; `endpoints:` or `replicas:` above the list may be left out:

    endpoints:
      - 10.0.0.1:8000
      - {address: "[fd00::1]:8000", metrics: "http://[fd00::1]:9000/metrics", terminating: true, labels: {zone: a}}

EDS, as Envoy's own `eds_config.path_config_source` reads it: a DiscoveryResponse with `resources`, or one
ClusterLoadAssignment. Field names in either of protobuf's spellings. An endpoint that is DRAINING is terminating;
one that is UNHEALTHY or TIMEOUT is left out, as Envoy sends nothing there.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import orjson
import yaml

from extproc.addresses import is_plain_url
from extproc.core.membership import Endpoint
from extproc.io.discovery.base import SourceFailed

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIELDS = {"address", "metrics", "terminating", "labels"}
#: Values of envoy.config.core.v3.HealthStatus, by name and by number.
_DRAINING = ("DRAINING", 3)
_UNUSED = ("UNHEALTHY", 2, "TIMEOUT", 4)
#: Most labels of an endpoint, and longest name or value, in characters.
MAX_LABELS = 64
MAX_LABEL = 512


class _Bad(Exception):
    """What is wrong, in words. Raised within this module only."""


def read_endpoints(text: bytes, cluster: str, limit: int) -> tuple[Endpoint, ...]:
    """The endpoints of a file's content, at most `limit` + 1; those of one `cluster` where EDS has several.

    Raises:
        SourceFailed: `unreadable`, with what is wrong where.
    """
    try:
        return tuple(islice(_entries(_tree(text), cluster), limit + 1))
    except (_Bad, ValueError, RecursionError) as error:
        raise SourceFailed("unreadable", str(error) or "is nested too deep") from None


def plain_endpoint(entry: object, where: str) -> Endpoint:
    """One entry of a plain list.

    Raises:
        ValueError: it is none, with what is wrong where; one kind of error for all faults.
    """
    entry = {"address": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} is neither ip:port nor a mapping with an address")  # noqa: TRY004
    unknown = sorted(str(key) for key in entry if key not in _FIELDS)
    if unknown:
        raise ValueError(
            f"{where} has {unknown[0]!r}, which is no field; known are {', '.join(sorted(_FIELDS))}"
        )
    if not isinstance(entry.get("address"), str):
        raise ValueError(f"{where} has no address; write ip:port in quotes")  # noqa: TRY004
    return Endpoint(
        address=_address(entry["address"], where),
        metrics=_metrics(entry.get("metrics") or "", where),
        terminating=_truth(entry.get("terminating", False), where),
        labels=_labels(entry.get("labels") or {}, where),
    )


def _address(address: str, where: str) -> str:
    try:
        return Endpoint(address=address).address
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _metrics(url: object, where: str) -> str:
    if not isinstance(url, str) or (url and not is_plain_url(url)):
        raise ValueError(f"{where}: metrics is no URL; write http://HOST:PORT/PATH, without a user")
    return url


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: terminating is no truth value; write true or false")  # noqa: TRY004
    return value


def _labels(labels: object, where: str) -> dict[str, str]:
    good = isinstance(labels, Mapping) and len(labels) <= MAX_LABELS
    if not good or not all(_is_label(k) and _is_label(v) for k, v in labels.items()):  # type: ignore[attr-defined]
        raise ValueError(f"{where}: labels are no mapping of at most {MAX_LABELS} names to short texts")
    return dict(labels)  # type: ignore[call-overload, no-any-return]


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL


# -- the whole file ------------------------------------------------------------------------------------------


def _tree(text: bytes) -> Any:
    if text.lstrip()[:1] in (b"{", b"["):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # YAML's flow style begins so, too
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, in C where there is one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise _Bad(
            f"{where}is neither YAML nor JSON: {getattr(error, 'problem', None) or 'not text'}"
        ) from None


def _entries(tree: Any, cluster: str) -> Iterator[Endpoint]:
    if tree is None:
        raise _Bad("is empty; write [] for no replicas at all")
    if isinstance(tree, Mapping):
        if "resources" in tree:
            return _of_resources(_list(tree["resources"], "resources"), cluster)
        entries = tree.get("endpoints", tree.get("replicas"))
        if entries is None and not _get(tree, "cluster_name"):
            raise _Bad("has neither endpoints nor resources; docs/discovery.md shows the forms")
        if _get(tree, "cluster_name") or _is_assignment(entries):
            return _of_assignment(tree)
        tree = entries
    return _plain(_list(tree, "the file"))


def _plain(entries: list[Any]) -> Iterator[Endpoint]:
    return (plain_endpoint(entry, f"entry {number}") for number, entry in enumerate(entries, 1))


def _is_assignment(entries: object) -> bool:
    first = entries[0] if isinstance(entries, list) and entries else None
    return isinstance(first, Mapping) and _get(first, "lb_endpoints") is not None


def _of_resources(resources: list[Any], cluster: str) -> Iterator[Endpoint]:
    names = [str(_get(resource, "cluster_name") or "") for resource in resources]
    if cluster and cluster not in names:
        raise _Bad(f"has no cluster {cluster!r}; it has {', '.join(names[:8]) or 'none'}")
    if not cluster and len(resources) > 1:
        raise _Bad(f"has several clusters; set cluster to one of {', '.join(names[:8])}")
    wanted = [r for name, r in zip(names, resources, strict=True) if name == cluster or not cluster]
    return (endpoint for resource in wanted for endpoint in _of_assignment(resource))


def _of_assignment(assignment: Any) -> Iterator[Endpoint]:
    for locality in _list(_get(assignment, "endpoints"), "endpoints"):
        for entry in _list(_get(locality, "lb_endpoints"), "lb_endpoints"):
            status = _get(entry, "health_status")
            if status not in _UNUSED:
                yield Endpoint(address=_socket_address(entry), terminating=status in _DRAINING)


def _socket_address(entry: Any) -> str:
    socket: Any = entry
    for name in ("endpoint", "address", "socket_address"):
        socket = _get(socket, name)
    host, port = _get(socket, "address"), _get(socket, "port_value")
    if not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int):
        raise _Bad("has an endpoint without a socket_address of an address and a port_value")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _get(tree: Any, name: str) -> Any:
    """A field by its protobuf name, or by its JSON name."""
    if not isinstance(tree, Mapping):
        what = "nothing" if tree is None else type(tree).__name__
        raise _Bad(f"has {what} where a mapping with {name} is expected")
    head, *rest = name.split("_")
    return tree.get(name, tree.get(head + "".join(word.title() for word in rest)))


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _Bad(f"{what}: is no list of endpoints")
    return value
