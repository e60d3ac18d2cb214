"""How an exchange ended, as far as anybody told: read out of ext_proc messages, joined in whatever order they come.

Envoy tells it in one `response_trailers` message at a clean end (attributes, and the usage that ai_protocol_manager
read), in `response_headers`, or in the access log; what none of them says stays unknown. Nothing of a response is in
it but its status and its token counts.
"""

from typing import Final

from extproc.core import clean_end
from extproc.core.dialects import anthropic_messages as anthropic
from extproc.core.headers import LB_NAMESPACE
from extproc.core.outcome import Ended
from extproc.core.prompt import Prompt
from extproc.core.usage import token_usage
from extproc.core.usage.record import Usage
from extproc.pb import ext_proc_pb2 as pb

#: Who ended an exchange: a closed set that labels metrics. The gateway is also Envoy, before any replica was reached.
COMPLETE: Final = "complete"
CLIENT: Final = "client"
UPSTREAM: Final = "upstream"
GATEWAY: Final = "gateway"
UNKNOWN: Final = "unknown"

#: Largest output that `message_start` has in place of one, by Anthropic's documentation of streams.
_GUESS: Final = 1


class Ending:
    """What is known of one exchange's end.

    Attributes:
        by: who ended it, a word of this module.
        status: HTTP status that the client got; None while unknown.
        served: ip:port of the replica that served it last; "" while unknown.
        attempts: how many replicas Envoy tried; None while unknown.
        usage: tokens as the engine counted them; None while unknown.
        verdict: what the usage record was like (core/usage/token_usage.py); "absent" when none came.
        unreached: no replica ever got the request.
        told: it came to its end, and all was told that the access log would tell of it.
        uncomputed: it ended before its prompt was computed, by what the books believe; asked only where nothing
            told that a replica got it.
        over: nothing more will be told.
        blamed: whoever failed a try before the last was learned of.
        is_filters: the usage is Envoy's filter's, which goes by HTTP's end and not by the stream's own words.
        first_token: seconds, when the first piece of the answer was seen; None while unknown.
    """

    __slots__ = (
        "attempts", "blamed", "by", "first_token", "is_filters", "over", "served", "status", "told", "uncomputed",
        "unreached", "usage", "verdict",
    )  # fmt: skip

    def __init__(self) -> None:
        self.by = UNKNOWN
        self.status: int | None = None
        self.served = ""
        self.attempts: int | None = None
        self.usage: Usage | None = None
        self.verdict = token_usage.ABSENT
        self.unreached = self.uncomputed = self.over = self.told = self.is_filters = self.blamed = False
        self.first_token: float | None = None

    @classmethod
    def refused(cls, status: int) -> "Ending":
        """Of a request that the gateway itself answered, with this status."""
        made = cls()
        made.by, made.status = GATEWAY, status
        return made

    @property
    def reached(self) -> bool:
        """Whether anything told that a replica got the request, or that it was answered."""
        return self.status is not None or self.served != "" or self.first_token is not None

    @property
    def answered(self) -> bool:
        """Whether an engine's answer, no error, came to its end."""
        return self.by == COMPLETE and self.status is not None and self.status < 400

    @property
    def retried(self) -> bool:
        """Whether it was told that Envoy tried again."""
        return self.attempts is not None and self.attempts > 1

    def trailers(self, message: pb.ProcessingRequest) -> None:
        """The response ended cleanly. Never raises for what a peer sends."""
        told = clean_end.read(message.SerializeToString())
        if told is not None:
            self.closed(told)

    def closed(self, told: clean_end.Told) -> None:
        """The response ended cleanly, and this came with it."""
        attributes, (usage, verdict) = told
        self._attributes(attributes)
        self.by, self.told = COMPLETE, attributes.well
        if verdict != token_usage.ABSENT:
            self._filtered(usage, verdict)

    def finished(self, usage: Usage | None, verdict: str) -> None:
        """The response came to its end, and this is what was found of its usage."""
        self.by = COMPLETE
        self.found(usage, verdict)

    def found(self, usage: Usage | None, verdict: str) -> None:
        """This was found of its usage. The first that is whole stays: second tellers and repeats change nothing."""
        if self.verdict == token_usage.COMPLETE or verdict == token_usage.ABSENT:
            return
        self.verdict = verdict
        # An error has no usage, whatever its body looks like.
        if self.status is None or self.status < 400:
            self.usage = usage

    def headers(self, message: pb.ProcessingRequest) -> None:
        """The response began."""
        for header in message.response_headers.headers.headers:
            if header.key == ":status":
                text = header.raw_value.decode("ascii", "replace") if header.raw_value else header.value
                self.status = clean_end.status(text)
        chosen = message.metadata_context.filter_metadata
        if LB_NAMESPACE in chosen:
            self.served = clean_end.selected(chosen[LB_NAMESPACE].SerializeToString())
        if clean_end.FILTER in message.attributes:
            self._attributes(clean_end.attributes(message.attributes[clean_end.FILTER].SerializeToString()))

    def logged(self, entry: Ended) -> None:
        """The access log's entry came; what the stream told already stays, but for the status.

        The stream tells the replica's. Of an answer broken off before any of it was sent Envoy makes a 502.
        """
        if self.by == UNKNOWN:
            self.by = _by(entry)
        self.unreached = not entry.replica and not self.served and self.first_token is None
        self.status = entry.code or self.status or entry.status
        self.served = self.served or entry.replica
        if self.attempts is None:
            self.attempts = entry.attempts
        # A client that left may have an answer whose usage was read in full; a broken one has no end.
        if entry.verdict != token_usage.ABSENT and entry.status is not None and not entry.limited:
            self._filtered(entry.usage, entry.verdict)

    def unguessed(self, prompt: Prompt | None) -> None:
        """Leave out what may be a guess: Anthropic's streams begin with an output of 0 or 1, as a place for the true
        one, and a stream that ends without it has that for its last."""
        usage = self.usage
        if not self.is_filters or usage is None or prompt is None or not prompt.stream:
            return
        if prompt.dialect == anthropic.NAME and usage.output is not None and usage.output <= _GUESS:
            self.usage = usage._replace(output=None)

    def _filtered(self, usage: Usage | None, verdict: str) -> None:
        """Envoy's filter found this."""
        self.found(usage, verdict)
        self.is_filters = self.is_filters or (usage is not None and self.usage is usage)

    def _attributes(self, told: clean_end.Attributes) -> None:
        """What is unknown changes nothing."""
        self.served = told.served or self.served
        self.status = told.status or self.status
        if told.attempts is not None:
            self.attempts = told.attempts


def _by(entry: Ended) -> str:
    """Who ended an exchange, by the access log."""
    if entry.by_client:
        return CLIENT
    if entry.unsure:
        return UNKNOWN
    if not entry.replica:
        return GATEWAY
    return UPSTREAM if entry.status is None or entry.limited else COMPLETE
