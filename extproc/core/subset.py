"""Endpoints that a request is limited to, as Envoy tells them in dynamic metadata (endpoint picker protocol 004).

Whatever is told limits: a value of a strange form, or an empty one, leaves no endpoint at all.
"""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from google.protobuf.struct_pb2 import Value

from extproc.addresses import parse_address
from extproc.core.headers import SUBSET, SUBSET_NAMESPACE
from extproc.pb import ext_proc_pb2 as pb


class Addresses(Protocol):
    """Some endpoints, asked by `ip:port` in canonical form."""

    def __contains__(self, address: str, /) -> bool: ...


class Subset:
    """Entries that a replica must be among: `ip:port` is that one, an IP alone any port of it."""

    __slots__ = ("_exact", "_hosts")

    def __init__(self, entries: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._hosts: set[str] = set()
        for entry in entries:
            self._add(entry.strip())

    def __contains__(self, address: str) -> bool:
        """Whether `ip:port`, in canonical form, is in it."""
        return address in self._exact or (bool(self._hosts) and _host(address) in self._hosts)

    def _add(self, entry: str) -> None:
        bare = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
        try:
            ip = ipaddress.ip_address(bare)
        except ValueError:
            self._add_exact(entry)
        else:
            self._hosts.add(str(getattr(ip, "ipv4_mapped", None) or ip))

    def _add_exact(self, entry: str) -> None:
        with suppress(ValueError):  # what names no endpoint lets none in
            self._exact.add(str(parse_address(entry)))


def listed(text: str) -> Subset:
    """Out of a list with commas between."""
    return Subset(text.split(","))


def hinted(context: pb.Metadata) -> Subset | None:
    """What the metadata of a message limits its request to; None where it says nothing of that."""
    if SUBSET_NAMESPACE not in context.filter_metadata:
        return None
    fields = context.filter_metadata[SUBSET_NAMESPACE].fields
    return _read(fields[SUBSET]) if SUBSET in fields else None


def _read(value: Value) -> Subset:
    if value.WhichOneof("kind") == "string_value":
        return listed(value.string_value)
    return Subset(item.string_value for item in value.list_value.values)  # empty for any other kind


@lru_cache(maxsize=4096)
def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
