"""What the first message of an exchange tells: of the request by its headers, of Envoy by its modes and hints.

It comes with every request, and a protobuf object for each header would cost more than all that is read of them. So
headers are told apart by their bytes, and only those that are read are opened (protos/kvsteer/opening.proto).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from extproc.core import headers
from extproc.core.subset import Subset, hinted, listed
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb.opening_pb2 import RequestStart

_Mode = pb.ProcessingMode

#: How a request's body comes, and so when it is decided.
#: At the headers, by load alone: the body is not sent, or Envoy may choose a host before all of it was.
UNSEEN: Final = frozenset({_Mode.NONE, _Mode.STREAMED})
#: With the body, which comes in pieces and goes on as the gateway sends it.
DUPLEX: Final = _Mode.FULL_DUPLEX_STREAMED
#: With the body, in these modes.
BODIED: Final = frozenset({_Mode.BUFFERED, _Mode.BUFFERED_PARTIAL, DUPLEX})
#: Modes that allow less than the gateway can do, and what that is.
LESSER: Final = {
    _Mode.NONE: "no body is sent: requests are steered by load alone; set request_body_mode to BUFFERED",
    _Mode.STREAMED: "the body comes too late: requests are steered by load alone; set request_body_mode to BUFFERED",
    _Mode.BUFFERED_PARTIAL: "what exceeds Envoy's buffer is not read: such requests are steered by load alone",
    _Mode.GRPC: "requests are not steered; set request_body_mode to BUFFERED or FULL_DUPLEX_STREAMED",
}
#: Envoy sends as much as fits into its buffer, and the rest goes by.
PARTIAL: Final = _Mode.BUFFERED_PARTIAL

#: Headers that routing reads; a set, since a request has many and most are none of these.
_SELECTION: Final = headers.SELECTION.encode()
_READ: Final = frozenset({b":path", b"content-encoding", b"x-request-id", b"traceparent"})
_OWNED_PREFIXES: Final = tuple(prefix.encode() for prefix in headers.OWNED_PREFIXES)
_OWNED_NAMES: Final = frozenset(name.encode() for name in headers.OWNED_NAMES)
#: Characters of a `traceparent` that are kept: the form of today has 55.
_TRACE: Final = 64
#: In place of one where several differ: whose trace it is nobody can tell, so it is in none.
_SEVERAL: Final = "several"
#: No header wanted.
NOTHING: Final[frozenset[str]] = frozenset()
_NONE_KEPT: Final[Mapping[str, str]] = {}
#: Of the others, those that nearly every request has: seen to be nobody's faster than by `_is_owned`.
_COMMON: Final = frozenset(
    {b":method", b":authority", b":scheme", b"content-type", b"content-length", b"user-agent"}
)
# A HeaderValue as Envoy writes it: `key` (field 1) and `raw_value` (field 3), each with its tag (1 << 3 | 2 and
# 3 << 3 | 2) and its length, of one byte below 128. What looks otherwise is opened by protobuf.
_KEY: Final = 0x0A
_LONGEST_KEY: Final = 127
#: What stands before a value of each length.
_BEFORE_VALUE: Final = [bytes((0x1A, length)) for length in range(128)]


@lru_cache(maxsize=8)
def _with(wanted: frozenset[str], selects: bool) -> frozenset[bytes]:
    """What is read where these are wanted too, or endpoints that clients name."""
    return _READ | {name.encode() for name in wanted} | ({_SELECTION} if selects else frozenset())


@lru_cache(maxsize=64)
def _modes(config: bytes) -> tuple["_Mode.BodySendMode", "_Mode.BodySendMode"]:
    """How the bodies of request and response come. Raises DecodeError for what is no ProtocolConfiguration."""
    told = pb.ProtocolConfiguration.FromString(config)
    return told.request_body_mode, told.response_body_mode


class Opening:
    """Read from `request_headers`. Raises DecodeError where that is no such message in truth.

    Args:
        start: the first message.
        selects: whether clients may name the endpoints that they want (for conformance tests).
        wanted: lower-case names of further headers to keep.

    Attributes:
        path, coding: `:path` and `content-encoding`, "" for none.
        request_id: as the client or Envoy gave it; "" for none, and for one that is not harmless.
        owned: names of headers that the gateway owns, of which the client sent copies.
        alone: whether the request has no body.
        mode, response_mode: how the bodies come (`ProcessingMode.BodySendMode`).
        trace: `traceparent` as the client or Envoy sent it, not checked; "" for none, and what is no valid one where
            several were sent that differ.
        only: endpoints that the request is limited to, each of them; empty for no limit.
        kept: what was wanted and is there, the last where one is given twice.
        plain: whether it says nothing but what requests of many clients have in common, and one id at most, and is
            written as Envoy writes it.
        usual: whether it is answered "go on" with nothing removed, its body comes in one message and its response
            goes by: so with nearly all.
    """

    __slots__ = (
        "alone",
        "coding",
        "kept",
        "mode",
        "only",
        "owned",
        "path",
        "plain",
        "request_id",
        "response_mode",
        "trace",
        "usual",
    )

    def __init__(
        self, start: RequestStart, *, selects: bool = False, wanted: frozenset[str] = NOTHING
    ) -> None:
        self.path = self.coding = self.request_id = self.trace = ""
        self.owned: tuple[str, ...] = ()
        self.only: tuple[Subset, ...] = ()
        self.kept = _NONE_KEPT
        self.plain = True
        head = start.request_headers
        self.alone = head.end_of_stream
        self._headers(head.headers.headers, wanted, selects=selects)
        self.mode: _Mode.BodySendMode
        self.response_mode: _Mode.BodySendMode
        config = start.protocol_config
        if config or start.HasField("protocol_config"):
            self.mode, self.response_mode = _modes(config)
        else:  # an Envoy that does not tell its modes is older than the field; BUFFERED is what we document
            self.mode, self.response_mode = _Mode.BUFFERED, _Mode.NONE
        self.plain = self.plain and "?" not in self.path
        if context := start.metadata_context:
            self.plain = False
            if (hint := hinted(pb.Metadata.FromString(context))) is not None:
                self.only += (hint,)
        self.usual = (
            self.mode == _Mode.BUFFERED and not self.response_mode and not self.alone and not self.owned
        )

    def _headers(self, given: Iterable[bytes], wanted: frozenset[str], *, selects: bool) -> None:
        """Note what is needed of the headers."""
        reads = _with(wanted, selects) if wanted or selects else _READ
        kept: dict[str, str] = {}
        if wanted:
            self.kept = kept
        for header in given:
            if len(header) < 2 or header[0] != _KEY or header[1] > _LONGEST_KEY:
                name, stop = _opened(header)[0].encode(), len(header)
                self.plain = False
            else:
                stop = header[1] + 2
                name = header[2:stop]
            if name not in reads:
                if name not in _COMMON:
                    self.plain = False
                    if _is_owned(name):
                        self.owned += (_opened(header)[0],)
                continue
            value = header[stop + 2 :]
            if len(value) < 128 and header[stop : stop + 2] == _BEFORE_VALUE[len(value)]:
                text = value.decode("utf-8", "replace")
            else:
                text = _opened(header)[1]
                self.plain = False
            if name == b":path":
                self.path = text
            elif name == b"x-request-id":
                self.plain = self.plain and not self.request_id
                self.request_id = headers.plain_id(text) or ""
            else:
                self.plain = False
                self._rarer(name, text, selects=selects)
            if wanted and (key := name.decode()) in wanted:
                kept[key] = text

    def _rarer(self, name: bytes, text: str, *, selects: bool) -> None:
        """A header that is read, and that few requests have."""
        if name == b"content-encoding":
            self.coding = text
        elif name == b"traceparent":
            text = text[:_TRACE]
            self.trace = text if self.trace in ("", text) else _SEVERAL if text else self.trace
        elif _is_owned(name):
            self.owned += (name.decode(),)
            if selects and text and name == _SELECTION:
                self.only += (listed(text),)


def _is_owned(name: bytes) -> bool:
    """As `headers.is_owned`."""
    return name.startswith(_OWNED_PREFIXES) or name in _OWNED_NAMES


def _opened(header: bytes) -> tuple[str, str]:
    """A header by protobuf's own reading of it: name and value. Raises DecodeError for what is none."""
    told = pb.HeaderValue.FromString(header)
    return told.key, told.raw_value.decode("utf-8", "replace") if told.raw_value else told.value
