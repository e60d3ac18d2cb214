"""What the first message of an exchange tells: of the request by its headers, of Envoy by its modes and hints."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from extproc.core import headers
from extproc.core.subset import Subset, hinted, listed
from extproc.pb import ext_proc_pb2 as pb

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
_READ = frozenset({":path", "content-encoding", "x-request-id", headers.SELECTION, "traceparent"})
#: Characters of a `traceparent` that are kept: the form of today has 55.
_TRACE: Final = 64
#: No header wanted.
NOTHING: Final[frozenset[str]] = frozenset()
_NONE_KEPT: Final[Mapping[str, str]] = {}


@lru_cache(maxsize=8)
def _with(wanted: frozenset[str]) -> frozenset[str]:
    """What is read where these are wanted too."""
    return _READ | wanted


class Opening:
    """Read from `request_headers`.

    Args:
        message: that one.
        name: the request's id where the client gave none that is harmless.
        selects: whether clients may name the endpoints that they want (for conformance tests).
        wanted: lower-case names of further headers to keep.

    Attributes:
        path, coding: `:path` and `content-encoding`, "" for none.
        request_id: the id that the replica and the records know the request by.
        owned: names of headers that the gateway owns, of which the client sent copies.
        mode: how the body comes (`ProcessingMode.BodySendMode`).
        trace: `traceparent` as the client or Envoy sent it, not checked; "" for none.
        only: endpoints that the request is limited to, each of them; empty for no limit.
        kept: what was wanted and is there, the last where one is given twice.
    """

    __slots__ = ("coding", "kept", "mode", "only", "owned", "path", "request_id", "trace")

    def __init__(
        self,
        message: pb.ProcessingRequest,
        name: str,
        *,
        selects: bool = False,
        wanted: frozenset[str] = NOTHING,
    ) -> None:
        self.path = self.coding = self.request_id = self.trace = ""
        self.owned: tuple[str, ...] = ()
        self.only: tuple[Subset, ...] = ()
        self.kept = _NONE_KEPT
        selection = self._headers(message.request_headers.headers, wanted)
        if not self.request_id:
            self.request_id = name
        # An Envoy that does not tell its modes is older than the field; BUFFERED is what we document.
        told = message.HasField("protocol_config")
        self.mode: _Mode.BodySendMode = message.protocol_config.request_body_mode if told else _Mode.BUFFERED
        if message.HasField("metadata_context") and (hint := hinted(message.metadata_context)) is not None:
            self.only = (hint,)
        if selects and selection:
            self.only += (listed(selection),)

    def _headers(self, header_map: pb.HeaderMap, wanted: frozenset[str]) -> str:
        """Note what is needed of the headers; returns the endpoints that the client names."""
        selection, reads = "", _READ
        if wanted:
            kept: dict[str, str] = {}
            self.kept, reads = kept, _with(wanted)
        for header in header_map.headers:
            name = header.key
            if name in reads:
                value = header.raw_value
                text = value.decode("utf-8", "replace") if value else header.value
                if wanted and name in wanted:
                    kept[name] = text
                if name == ":path":
                    self.path = text
                elif name == "content-encoding":
                    self.coding = text
                elif name == "x-request-id":
                    self.request_id = headers.plain_id(text) or ""
                elif name == headers.SELECTION:
                    selection = text
                    self.owned += (name,)
                elif name == "traceparent":
                    self.trace = text[:_TRACE]
                elif headers.is_owned(name):
                    self.owned += (name,)
            elif headers.is_owned(name):
                self.owned += (name,)
        return selection
