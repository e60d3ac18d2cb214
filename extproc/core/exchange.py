"""One ext_proc stream as a state machine: messages in, messages out, no I/O.

States and what moves them (a message not named is answered "go on" or ignored, and changes nothing):

    START      request_headers, end of stream              -> DECIDED   decided by load alone
    START      request_headers, body NONE or STREAMED      -> DECIDED   decided by load alone
    START      request_headers, body BUFFERED or _PARTIAL  -> BODY      answered at once; Envoy holds the body
    START      request_headers, body FULL_DUPLEX_STREAMED  -> BODY      nothing is answered; the body comes here
    START      request_headers, any other body mode        -> OVER      not steered: the stream closes with OK
    START      anything of an observer                     -> OVER      a first token was seen: closes with OK
    START      anything else                               -> OVER      not for us: the stream closes with OK
    BODY       a piece of the body, full duplex            -> BODY      kept
    BODY       the body's end, by itself or by trailers    -> DECIDED   decided by the prompt, or refused
    BODY       the same, and it is large, or expands so    -> UNREAD    read beside; Envoy is told to wait
    UNREAD     it was read (`take_in`, no message)         -> as BODY   decided, held or refused
    BODY       the same, and the pool's room holds it      -> HELD      Envoy is told to wait
    HELD       its turn comes (`let_go`, no message)       -> DECIDED   decided by the prompt, or refused
    HELD       the same, admission's, and the room holds it -> HELD     the one waits behind the other
    UNREAD, HELD  any message                              -> the same  none is due; "go on", or ignored
    DECIDED    a further request body                      -> DECIDED   ignored, or "go on" if STREAMED
    DECIDED    response_headers, _body, _trailers          -> DECIDED   answered at once; how it ended is noted
    any        the stream ends                             -> OVER      the charge is released

In full duplex the answer to the headers comes with the decision, and the body after it (core/duplex.py). What
becomes of the body is in core/bodied.py, of the request read in core/deciding.py.
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from extproc.core import clean_end, envelope, observer, replies
from extproc.core.admission import wire
from extproc.core.bodied import Bodied
from extproc.core.catalog import PATH as MODELS
from extproc.core.duplex import Duplex
from extproc.core.ending import Ending
from extproc.core.opening import BODIED, DUPLEX, NOTHING, PARTIAL, UNSEEN, Opening
from extproc.core.reply import ALL_TOLD, GO_ON, GO_ON_BODY, NEUTRAL, SILENCE, Reply
from extproc.core.response import Response
from extproc.core.scattered import Pieces
from extproc.core.states import (
    BODY,
    DECIDED,
    HELD,
    NO_BODY,
    NOT_EXT_PROC,
    OBSERVED,
    OTHER_MODE,
    OVER,
    START,
)
from extproc.pb import ext_proc_pb2 as pb
from extproc.pb.opening_pb2 import RequestStart

#: Messages that tell how the exchange ends.
_TELLS = {"response_headers": Ending.headers, "response_trailers": Ending.trailers}
#: Status from which on an answer is an error.
_ERROR = 400
_RESPONSE = frozenset({"response_headers", "response_body", "response_trailers"})
_BODY = frozenset({"request_body", "request_trailers"})


class Exchange(Bodied):
    """The life of one HTTP request as Envoy tells it (what it keeps: `Deciding`)."""

    __slots__ = ()

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""
        return self.state == OVER

    @property
    def holding(self) -> bool:
        """Whether pieces of a response are on their way through the gateway, which alone can send them on."""
        return self.response is not None and self.response.holding

    def receive(self, data: bytes, now: float) -> Reply:
        """Take in one serialized ProcessingRequest. Never raises for what a peer sends."""
        if self.state == START:
            return self._begin(data, now)
        if self.state == BODY and self._duplex is None and (body := envelope.whole_body(data)) is not None:
            return self._on_body(body, now)
        is_end = data.startswith(clean_end.FIRST) and self.state == DECIDED and self.response is None
        if is_end and (told := clean_end.read(data)) is not None:
            self._note(Ending.closed, told, now)
            return self._end_answer()
        try:
            message = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            return self._leave(NOT_EXT_PROC)
        if message.observability_mode:
            observer.seen(message, self._steering, now)
            return self._leave(OBSERVED)
        kind = message.WhichOneof("request")
        if self.state == BODY and kind in _BODY:
            return self._on_piece(message, kind, now)
        if kind in _TELLS:
            self._note(_TELLS[kind], message, now)
        if self.response is not None and kind in _RESPONSE:
            return self._on_response(message, kind, now)
        if kind == "response_headers":
            return self._headers_answer(), False
        if kind == "response_trailers" and self.state == DECIDED:
            return self._end_answer()
        if kind == "request_body" and self.opening.mode == pb.ProcessingMode.STREAMED:
            return GO_ON_BODY
        return NEUTRAL.get(kind, SILENCE)

    def receive_large(self, pieces: Pieces, now: float) -> Reply:
        """As `receive`, of a message in pieces: a body in it is read where it lies, if it can be."""
        opened = envelope.opened(pieces) if self.state == BODY and self._duplex is None else None
        if opened is None or opened[0].observability_mode:
            whole = pieces.whole()
            pieces.free()
            return self.receive(whole, now)
        message, body = opened
        cut = self.opening.mode == PARTIAL and not message.request_body.end_of_stream
        if body.size > self._steering.beside:
            return self._leave_unread(body, cut=cut)
        whole = body.whole()
        body.free()
        return self._on_body(whole, now, cut=cut)

    def end(self, now: float) -> None:
        """The stream is over, however it ended: release what it holds. Idempotent."""
        steering, key, decision, ending = self._steering, self._key, self.decision, self.ending
        if self.state == HELD:
            steering.holding.leave(key, now)
        self.state = OVER
        if self.unread is not None:
            self.unread.body.free()
        if self.response is not None and ending is not None:
            self.response.left(ending)
        if self._duplex is not None:
            self._duplex.drop()
        if steering.watched:
            steering.watched.pop(key, None)
        if decision is not None:
            if decision.prefill is not None:
                steering.prompt_done(key, now)
            if decision.pool.ranks is not None:
                decision.pool.ranks.left(key)
        left = steering.ledger.release(key, now, ending is not None and ending.answered)
        if left and left > 0 and (ending is None or not ending.reached):
            ending = self.ending = ending or Ending()
            ending.uncomputed = True
        if steering.desk is not None:
            steering.desk.settle(key, wire.used(decision, ending))
        steering.over(key, now)

    def _begin(self, data: bytes, now: float) -> Reply:
        """The first message, of which only what is needed is opened."""
        steering, rules, desk = self._steering, self._steering.rules, self._steering.desk
        if desk is None and (known := steering.openings.find(data)) is not None:
            opening, name = known
            if opening.usual:
                self.opening, self.request_id, self.state = opening, name, BODY
                return GO_ON
            return self._on_headers(opening, name, now)
        try:
            whole = pb.ProcessingRequest.FromString(data)
            if whole.observability_mode:
                observer.seen(whole, steering, now)
                return self._leave(OBSERVED)
            if whole.WhichOneof("request") != "request_headers":
                return self._leave(NOT_EXT_PROC)
            # Written anew, as a field that came twice is in it once, and as who reads all of it would read it.
            written = whole.SerializeToString()
            wanted = desk.wanted if desk is not None else NOTHING
            opening = Opening(RequestStart.FromString(written), selects=rules.test_selection, wanted=wanted)
        except DecodeError:
            return self._leave(NOT_EXT_PROC)
        name = opening.request_id or f"kvsteer-{self._key}"
        if desk is not None or (rules.lists_models and opening.path.startswith(MODELS)):
            return self._on_headers(opening, name, now, whole)
        if written == data:
            steering.openings.keep(data, opening)
        return self._on_headers(opening, name, now)

    def _on_headers(
        self, opening: Opening, name: str, now: float, whole: pb.ProcessingRequest | None = None
    ) -> Reply:
        """They were read: the request's id is `name`. `whole` is their message, where all of it may count."""
        self.opening, self.request_id = opening, name
        if opening.response_mode:  # NONE is 0
            rules, reading = self._steering.rules, self._steering.reading
            self.response = Response(opening.response_mode, rules.response_body, reading)
        if whole is not None and (answer := self._answered(whole, now)) is not None:
            return answer
        if opening.alone:
            return self._decide(None, now, NO_BODY)
        if opening.mode in UNSEEN:
            return self._decide(None, now, OTHER_MODE)
        if opening.mode not in BODIED:
            return self._leave(OTHER_MODE)
        self.state = BODY
        if opening.mode == DUPLEX:
            self._duplex = Duplex(self._steering.shelf)
            return SILENCE
        return (replies.continue_headers(opening.owned), False) if opening.owned else GO_ON

    def _answered(self, whole: pb.ProcessingRequest, now: float) -> Reply | None:
        """The answer where the headers alone say it: a refusal of admission's, or the list of models."""
        steering, opening = self._steering, self.opening
        if steering.desk is not None:
            self._told = steering.desk.read(whole, opening.kept)
            if (refusal := steering.desk.at_headers(self._told, steering.pools[0])) is not None:
                return self._turn_away(refusal, None, steering.pools[0], now)
        if steering.rules.lists_models and opening.path.startswith(MODELS):
            listed = steering.catalog.asked(whole, opening.path)
            if listed:
                return self._answer(listed)  # whether a body comes or not: it means nothing there
        return None

    def _note(self, how: Callable[[Ending, Any], None], told: Any, now: float) -> None:
        """Something told of the end; whoever served it is charged for it, and who failed it first is blamed."""
        ending = self.ending = self.ending or Ending()
        how(ending, told)
        self._steering.served(self.decision, ending, now)
        if ending.retried:
            self._steering.retried(self.decision, ending, self.request_id, now)

    def _on_response(self, message: pb.ProcessingRequest, kind: str, now: float) -> Reply:
        """A message of a response whose body comes."""
        response = self.response
        assert response is not None
        self.ending = self.ending or Ending()
        if kind == "response_headers":
            response.headers(message.response_headers, self.ending)
            name = self._name_to_tell()
            renames = bool(name) and response.named(name)
            return self._headers_answer() + (replies.WITHOUT_LENGTH if renames else b""), False
        if kind == "response_trailers":
            response.trailers(self.ending)
            return NEUTRAL[kind]
        self._steering.reading.tick(now)
        answer = response.body(message.response_body, self.ending)
        if self._key in self._steering.watched and response.first_token:
            self._steering.first_token(self._key, now)
        return answer, False

    def _end_answer(self) -> Reply:
        """To a response's clean end: where that told all of a steered request, no entry of the access log need."""
        steered = self.decision is not None and self.decision.replica is not None
        spared = self._steering.rules.spares_log and steered and self.ending is not None and self.ending.told
        return ALL_TOLD if spared else NEUTRAL["response_trailers"]

    def _name_to_tell(self) -> str:
        """The model's name that its answer is to tell; "" for what the engine says."""
        decision, ending = self.decision, self.ending
        if decision is None or decision.prompt is None or not decision.pool.tells_asked:
            return ""
        if ending is None or ending.status is None or ending.status >= _ERROR:
            return ""
        return decision.prompt.asked or decision.prompt.model

    def _headers_answer(self) -> bytes:
        served = self.ending.served if self.ending is not None and self._steering.rules.test_selection else ""
        return replies.tell_served(served) if served else replies.CONTINUE_RESPONSE_HEADERS
