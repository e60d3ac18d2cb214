"""Who sends a request, by what a client can't write: what Envoy's auth filters found, or what only its owner knows.

Sources: dynamic metadata of a namespace that Envoy forwards (a JWT's claim, ext_authz's answer), the subject of the
client's certificate, a key's digest, or a header that the operator declares trusted, since something before the
gateway sets it on every request. No other header is looked at. A key is digested at once and kept nowhere.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from extproc.core.admission.tenants import LONGEST
from extproc.pb import ext_proc_pb2 as pb

METADATA: Final = "metadata"
CERTIFICATE: Final = "certificate"
API_KEY: Final = "api_key"
HEADER: Final = "header"
NONE: Final = "none"

#: Attribute that carries the subject of a client's certificate (Envoy's attribute list).
SUBJECT: Final = "connection.subject_peer_certificate"
_LENGTH: Final = "content-length"
_FILTER: Final = "envoy.filters.http.ext_proc"
_BEARER: Final = "bearer "


@dataclass(slots=True, frozen=True, kw_only=True)
class Source:
    """Where an identity is found.

    Attributes:
        kind: METADATA, CERTIFICATE, API_KEY, HEADER or NONE.
        namespace: of dynamic metadata.
        path: keys from it down to the identity.
        header: that carries the key, or the identity; lower case.
        deadline: header in which clients say how many seconds they wait; "" for none.
    """

    kind: str = NONE
    namespace: str = ""
    path: tuple[str, ...] = ()
    header: str = ""
    deadline: str = ""

    @property
    def wanted(self) -> frozenset[str]:
        """Headers that `read` looks at."""
        return frozenset({_LENGTH, self.header, self.deadline} - {""})


class Told(NamedTuple):
    """What the headers of a request say. `deadline` in seconds, `length` of the body in bytes; None for unknown."""

    identity: str = ""
    deadline: float | None = None
    length: int | None = None


def read(message: pb.ProcessingRequest, found: Mapping[str, str], source: Source) -> Told:
    """Who sends it, "" for nobody known, and what it says of its size and patience. Never raises.

    `found`: of the headers that the source wants, those that are there.
    """
    identity = ""
    if source.kind == METADATA:
        identity = _in_metadata(message, source)
    elif source.kind == CERTIFICATE and _FILTER in message.attributes:
        identity = message.attributes[_FILTER].fields[SUBJECT].string_value
    elif source.kind == API_KEY:
        identity = digest(found.get(source.header, ""))
    elif source.kind == HEADER:
        identity = found.get(source.header, "")
    length = found.get(_LENGTH, "")
    return Told(
        identity if len(identity) <= LONGEST and not identity.isspace() else "",
        _seconds(found.get(source.deadline, "")) if source.deadline else None,
        int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None,
    )


def digest(key: str) -> str:
    """The SHA-256 of a key as lower-case hex, without a `Bearer` before it; "" for none."""
    if key[: len(_BEARER)].lower() == _BEARER:
        key = key[len(_BEARER) :]
    key = key.strip()
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _in_metadata(message: pb.ProcessingRequest, source: Source) -> str:
    """The text or number at the path; "" where there is none."""
    if source.namespace not in message.metadata_context.filter_metadata:
        return ""
    struct: Struct = message.metadata_context.filter_metadata[source.namespace]
    for key in source.path[:-1]:
        if key not in struct.fields:
            return ""
        struct = struct.fields[key].struct_value
    last = source.path[-1]
    if last not in struct.fields:
        return ""
    value = struct.fields[last]
    if value.HasField("number_value"):
        return f"{value.number_value:.17g}"
    return value.string_value


def _seconds(text: str) -> float | None:
    """A number of seconds above 0; None for what is none."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None
