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

In full duplex the answer to the headers comes with the decision, and the body after it (core/duplex.py).
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from extproc.core import clean_end, dialects, encoding, envelope, observer, onward, reading, refusals, replies
from extproc.core.admission import wire
from extproc.core.admission.answers import Answer
from extproc.core.admission.identity import Told
from extproc.core.decide import Decision
from extproc.core.duplex import Duplex
from extproc.core.ending import Ending
from extproc.core.opening import BODIED, DUPLEX, NOTHING, PARTIAL, UNSEEN, Opening
from extproc.core.owed import Owed
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt, opaque
from extproc.core.rename import Parts
from extproc.core.reply import CLOSE, GO_ON, GO_ON_BODY, NEUTRAL, SILENCE, Reply
from extproc.core.response import Response
from extproc.core.scattered import Pieces
from extproc.core.states import (  # fmt: skip
    ANSWERED,
    BAD_REQUEST,
    BODY,
    DECIDED,
    ENDED_EARLY,
    HELD,
    NO_BODY,
    NO_CANDIDATE,
    NOT_ADMITTED,
    NOT_EXT_PROC,
    OBSERVED,
    OTHER_MODE,
    OVER,
    START,
    STEERED,
    TOO_LARGE,
    UNKNOWN_MODEL,
    UNREAD,
    UNREADABLE,
)
from extproc.core.steering import Steering
from extproc.errors import TooLarge, Unreadable
from extproc.pb import ext_proc_pb2 as pb

#: Messages that tell how the exchange ends.
_TELLS = {"response_headers": Ending.headers, "response_trailers": Ending.trailers}
_RESPONSE = frozenset({"response_headers", "response_body", "response_trailers"})
_BODY = frozenset({"request_body", "request_trailers"})
_UNOPENED = Opening(pb.ProcessingRequest(), "")


def _nobody(_now: float) -> None:
    """Nobody waits for the answer."""


class Exchange:
    """The life of one HTTP request as Envoy tells it.

    Attributes:
        outcome: how it was dealt with, one of this module's words; ENDED_EARLY until then.
        why: a further word for UNREADABLE and BAD_REQUEST, from the dialects' closed set; for NOT_ADMITTED of
            admission's.
        admitted: what admission said; None where it was not asked.
        decision: once there is one.
        ending: how it ended, once something was told of that.
        due: called with the time when its turn came; whoever set it calls `let_go`, and answers if it is not HELD on.
        opening: what its first message told.
        unread: its body while that is read beside; whoever does so calls `take_in`. None otherwise.
        waited: seconds that it was held.
    """

    __slots__ = (
        "_duplex", "_key", "_owed", "_response", "_steering", "_told", "admitted", "decision", "due", "ending",
        "opening", "outcome", "state", "unread", "waited", "why",
    )  # fmt: skip

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self._key = steering.new_key()
        self.opening: Opening = _UNOPENED
        self._duplex: Duplex | None = None
        self._response: Response | None = None
        self._owed: Owed | None = None
        self.unread: reading.Unread | None = None
        self.due: Callable[[float], None] = _nobody
        self.waited = 0.0
        self._told = Told()
        self.admitted: Answer | None = None
        self.state = START
        self.outcome = ENDED_EARLY
        self.why = ""
        self.decision: Decision | None = None
        self.ending: Ending | None = None

    @property
    def request_id(self) -> str:
        """The id that the replica and the records know it by."""
        return self.opening.request_id

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""
        return self.state == OVER

    @property
    def holding(self) -> bool:
        """Whether pieces of a response are on their way through the gateway, which alone can send them on."""
        return self._response is not None and self._response.holding

    def receive(self, data: bytes, now: float) -> Reply:
        """Take in one serialized ProcessingRequest. Never raises for what a peer sends."""
        is_end = data.startswith(clean_end.FIRST) and self.state == DECIDED and self._response is None
        if is_end and (told := clean_end.read(data)) is not None:
            self._note(Ending.closed, told, now)
            return NEUTRAL["response_trailers"]
        try:
            message = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            return self._leave(NOT_EXT_PROC)
        if message.observability_mode:
            observer.seen(message, self._steering, now)
            return self._leave(OBSERVED)
        kind = message.WhichOneof("request")
        if kind == "request_headers" and self.state == START:
            return self._on_headers(message, now)
        if self.state == BODY and kind in _BODY:
            return self._on_piece(message, kind, now)
        if self.state == START:
            return self._leave(NOT_EXT_PROC)
        if kind in _TELLS:
            self._note(_TELLS[kind], message, now)
        if self._response is not None and kind in _RESPONSE:
            return self._on_response(message, kind, now)
        if kind == "response_headers":
            return Reply(self._headers_answer())
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

    def take_in(self, found: reading.Found | None, now: float) -> Reply:
        """Go on with a body that was UNREAD, by what it says; None reads it here and now."""
        unread = self.unread
        assert unread is not None, "nothing is unread"
        self.unread, self.state = None, BODY
        try:
            if found is None:
                return self._read(unread.body.whole(), now, cut=unread.cut, here=True)
            return self._on_found(found, unread, now)
        finally:
            unread.body.free()

    def rescue(self) -> tuple[bytes, ...]:
        """What Envoy must have before the stream may close: the body, if nobody else holds it. Unsteered."""
        if self._duplex is not None and self._duplex.keeps and self.outcome in _GOES:
            return self._duplex.answer(replies.continue_headers(self.opening.owned))
        return ()

    def end(self, now: float) -> None:
        """The stream is over, however it ended: release what it holds. Idempotent."""
        if self.state == HELD:
            self._steering.holding.leave(self._key, now)
        self.state = OVER
        if self.unread is not None:
            self.unread.body.free()
        if self._response is not None and self.ending is not None:
            self._response.left(self.ending)
        if self._duplex is not None:
            self._duplex.drop()
        self._steering.watched.pop(self._key, None)
        ledger = self._steering.ledger
        if (self.ending is None or not self.ending.reached) and ledger.left(self._key, now) > 0:
            self.ending = self.ending or Ending()
            self.ending.uncomputed = True
        if self.decision is not None and self.decision.prefill is not None:
            self._steering.prompt_done(self._key, now)
        ledger.release(self._key, now, answered=self.ending is not None and self.ending.answered)
        if self._steering.desk is not None:
            self._steering.desk.settle(self._key, wire.used(self.decision, self.ending))
        self._steering.holding.stir()

    def let_go(self, now: float) -> Reply:
        """Decide, as its turn came: what Envoy waits for. Nothing yet for one that is HELD on, in its pool's room."""
        owed, desk = self._owed, self._steering.desk
        assert owed is not None, "it is not held"
        self.waited = now - owed.arrived
        if desk is not None and self.admitted is not None and self.admitted.waits:
            self.admitted = desk.final(self._key, self.admitted, self.waited)
            if self.admitted.goes and self._has_to_wait(owed.prompt, owed.pool, owed.size, now):
                return SILENCE
        self._owed = None
        if self.admitted is not None and not self.admitted.goes:
            return self._turn_away(self.admitted, owed.prompt, owed.pool, now)
        reply = self._decide_now(owed.prompt, owed.pool, now, owed.outcome)
        return self._sent_on(reply, owed.body)

    def first_token(self, now: float) -> None:
        """The first piece of the answer was seen."""
        self.ending = self.ending or Ending()
        self.ending.first_token = now

    def _on_headers(self, message: pb.ProcessingRequest, now: float) -> Reply:
        rules = self._steering.rules
        desk, name, selects = self._steering.desk, f"kvsteer-{self._key}", rules.test_selection
        wanted = desk.wanted if desk is not None else NOTHING
        opening = self.opening = Opening(message, name, selects=selects, wanted=wanted)
        mode = message.protocol_config.response_body_mode
        if mode:  # NONE is 0
            self._response = Response(mode, rules.response_body, self._steering.reading)
        if desk is not None:
            self._told = desk.read(message, opening.kept)
            if (refusal := desk.at_headers(self._told, self._steering.pools[0])) is not None:
                return self._turn_away(refusal, None, self._steering.pools[0], now)
        if message.request_headers.end_of_stream:
            listed = self._steering.catalog.asked(message, opening.path) if rules.lists_models else None
            return self._answer(listed) if listed else self._decide(None, now, NO_BODY)
        if opening.mode in UNSEEN:
            return self._decide(None, now, OTHER_MODE)
        if opening.mode not in BODIED:
            return self._leave(OTHER_MODE)
        self.state = BODY
        if opening.mode == DUPLEX:
            self._duplex = Duplex(self._steering.shelf)
            return SILENCE
        return Reply(replies.continue_headers(opening.owned)) if opening.owned else GO_ON

    def _note(self, how: Callable[[Ending, Any], None], told: Any, now: float) -> None:
        """Something told of the end; whoever served it is charged for it."""
        ending = self.ending = self.ending or Ending()
        how(ending, told)
        self._steering.served(self.decision, ending.served, now)

    def _on_response(self, message: pb.ProcessingRequest, kind: str, now: float) -> Reply:
        """A message of a response whose body comes."""
        response = self._response
        assert response is not None
        self.ending = self.ending or Ending()
        if kind == "response_headers":
            response.headers(message.response_headers, self.ending)
            return Reply(self._headers_answer())
        if kind == "response_trailers":
            response.trailers(self.ending)
            return NEUTRAL[kind]
        self._steering.reading.tick(now)
        answer = response.body(message.response_body, self.ending)
        if self._key in self._steering.watched and response.first_token:
            self._steering.first_token(self._key, now)
        return Reply(answer)

    def _headers_answer(self) -> bytes:
        served = self.ending.served if self.ending is not None and self._steering.rules.test_selection else ""
        return replies.tell_served(served) if served else replies.CONTINUE_RESPONSE_HEADERS

    def _on_piece(self, message: pb.ProcessingRequest, kind: str, now: float) -> Reply:
        """A message of the request's body, or trailers that end it."""
        duplex, body = self._duplex, message.request_body
        if duplex is None:
            cut = self.opening.mode == PARTIAL and not body.end_of_stream
            return self._on_body(body.body, now, cut=cut) if kind == "request_body" else NEUTRAL[kind]
        duplex.feed(message)
        if duplex.size > self._steering.rules.body:
            return self._refuse(TOO_LARGE, "body")
        if duplex.crowded:
            return self._refuse(NO_CANDIDATE, "bodies")
        if not duplex.complete:
            return SILENCE
        if duplex.size > self._steering.beside:
            return self._leave_unread(duplex.where_it_lies, cut=False)
        return self._read(duplex.body, now, cut=False)

    def _on_body(self, body: bytes, now: float, *, cut: bool = False) -> Reply:
        """The body is here; `cut`: a part of it may go by the gateway."""
        if len(body) > self._steering.beside:
            return self._leave_unread(Pieces([body]), cut=cut)
        return self._read(body, now, cut=cut)

    def _leave_unread(self, body: Pieces, *, cut: bool) -> Reply:
        """Have it read beside, and Envoy wait: in full duplex it has no clock."""
        opening, steering = self.opening, self._steering
        if body.size > steering.rules.body:
            return self._refuse(TOO_LARGE, "body")
        self.unread = reading.Unread(opening.path, opening.coding, body, cut=cut, keeps=steering.may_change)
        self.state = UNREAD
        return Reply(steering.patience) if self._duplex is None else SILENCE

    def _on_found(self, found: reading.Found, unread: reading.Unread, now: float) -> Reply:
        """It was read beside, and says so much."""
        steering, (prompt, why) = self._steering, found
        self.why = why
        if why == reading.OVER:
            return self._refuse(TOO_LARGE, why)
        if why and not (unread.cut or steering.rules.unreadable_passes or why in _PASS):
            return self._refuse(BAD_REQUEST, why)
        reply = self._decide(prompt, now, UNREADABLE if why else STEERED, 0 if why else unread.size)
        holder, plain = self._owed or self.decision, not self.opening.coding
        if not unread.keeps or holder is None or onward.stays(
            steering.rules, holder.pool, prompt, self.admitted, plain=plain
        ):  # fmt: skip
            return self._sent_on(reply, None)
        body = unread.body.whole()
        if not unread.is_open:
            body = encoding.decode(body, self.opening.coding, steering.rules.expanded_body)
        return self._onward(reply, body, cut=unread.cut)

    def _read(self, body: bytes, now: float, *, cut: bool, here: bool = False) -> Reply:
        """Read it at once. `here`: however far it expands, as nobody else reads it."""
        rules, opening = self._steering.rules, self.opening
        size = len(body)
        try:
            if opening.coding:
                opened = self._opened(body, here=here)
                if opened is None:
                    return self._leave_unread(Pieces([body]), cut=cut)
                body = opened
            prompt = dialects.read(opening.path, body, rules.limits)
        except TooLarge as error:
            return self._refuse(TOO_LARGE, error.reason)
        except Unreadable as error:
            self.why = error.reason
            if cut or rules.unreadable_passes or error.reason in _PASS:
                prompt = opaque(body, error)
                return self._onward(self._decide(prompt, now, UNREADABLE), body, cut=cut)
            return self._refuse(BAD_REQUEST, error.reason)
        return self._onward(self._decide(prompt, now, STEERED, size, body), body, cut=cut)

    def _opened(self, body: bytes, *, here: bool) -> bytes | None:
        """It without its coding; None where that is more than others may wait for. Raises as `encoding.decode`."""
        steering, coding = self._steering, self.opening.coding
        if here or steering.at_once is None:
            return encoding.decode(body, coding, steering.rules.expanded_body)
        try:
            return encoding.decode_at_once(body, coding, steering.at_once)
        except TooLarge:
            return None

    def _onward(self, reply: Reply, body: bytes, *, cut: bool) -> Reply:
        """The answer to a request that was decided or is held, with its body as it is to go on."""
        holder, plain = self._owed or self.decision, not self.opening.coding
        if cut or holder is None or holder.prompt is None or self.outcome not in _GOES:
            return self._sent_on(reply, None)
        rules, prompt = self._steering.rules, holder.prompt
        changed = onward.body_of(rules, holder.pool, prompt, body, self.admitted, plain=plain)
        if self._owed is not None:
            self._owed.body = changed
        return self._sent_on(reply, changed)

    def _sent_on(self, reply: Reply, body: Parts | None) -> Reply:
        """The same answer to a request that goes, with its body where that is held here, or with another one."""
        if self.state == HELD or self.outcome not in _GOES or (body is None and self._duplex is None):
            return reply
        assert isinstance(reply.data, bytes)
        decoded = bool(self.opening.coding)
        if self._duplex is not None:
            return Reply(self._duplex.answer(reply.data, b"".join(body) if body else None, decoded=decoded))
        return Reply(replies.replaced(reply.data, body or (), decoded=decoded))

    def _decide(
        self, prompt: Prompt | None, now: float, outcome: str, size: int = 0, body: bytes | None = None
    ) -> Reply:
        """Decide now, or hold it where its pool has a room for it; `size` bytes of body wait then.

        `body` is there where it may be read anew, which another model needs.
        """
        steering = self._steering
        pool = steering.router.pool_of(prompt)
        if pool is None and outcome == UNREADABLE:
            pool = steering.pools[0]  # an engine is to answer it; which models there are is not its fault
        if pool is None:
            return self._refuse(UNKNOWN_MODEL)
        desk = steering.desk
        if desk is not None:
            answer = self.admitted = desk.ask(
                self._key, prompt, pool, self._told, now, size=size, waiter=self if self.state == BODY else None,
                plain=outcome == STEERED and not self.opening.coding,
            )  # fmt: skip
            if not answer.goes:
                if answer.waits:
                    return self._hold(Owed(prompt, pool, now, outcome, size), desk.patience)
                return self._turn_away(answer, prompt, pool, now)
            if answer.degrade is not None and answer.lesser is not None:
                pool = steering.named(answer.pool)
                if prompt is not None:
                    prompt = onward.lesser_prompt(
                        steering.rules, prompt, answer.lesser, self.opening.path, body
                    )
        if self._has_to_wait(prompt, pool, size, now):
            return self._hold(Owed(prompt, pool, now, outcome, size), steering.holding.patience(pool))
        return self._decide_now(prompt, pool, now, outcome)

    def _has_to_wait(self, prompt: Prompt | None, pool: Pool, size: int, now: float) -> bool:
        """Whether its pool's room, which reckons with every replica, keeps it until one is nearly free for it."""
        if pool.room is None or prompt is None or self.opening.only:
            return False
        return self._steering.holding.keeps(self, self._key, pool, prompt, size, now)

    def _hold(self, owed: Owed, patience: bytes) -> Reply:
        self.state, self._owed = HELD, owed
        return Reply(patience) if self._duplex is None else SILENCE  # in full duplex Envoy has no clock

    def _decide_now(self, prompt: Prompt | None, pool: Pool, now: float, outcome: str) -> Reply:
        steering = self._steering
        at_headers = self.state == START or self._duplex is not None
        streams = prompt is not None and prompt.stream
        mark = observer.mark(steering, self._key) if streams else ""
        watched = bool(mark) or (streams and self._response is not None)  # its first token will be told
        only = self.opening.only
        self.decision = decision = steering.decide(prompt, pool, self._key, now, told=watched, only=only)
        if decision.replica is None:
            return self._refuse(NO_CANDIDATE)
        decision.replica.sent(self.request_id, now)
        self.state = DECIDED
        self.outcome = outcome
        hit = str(int(decision.cached))
        several = pool.name if len(steering.pools) > 1 else ""
        if watched:
            steering.watched[self._key] = self
        owned, to, name = self.opening.owned, decision.destination, self.request_id
        data = replies.steer(to, hit, name, at_headers=at_headers, owned=owned, pool=several, mark=mark)
        if decision.prefill is not None and pool.handover is not None:
            data += pool.handover.told(decision, at_headers=at_headers)
        if pool.mirror is not None:
            data += pool.mirror.told(steering.rng.random(), at_headers=at_headers)
        return Reply(data)

    def _turn_away(self, answer: Answer, prompt: Prompt | None, pool: Pool, now: float) -> Reply:
        """Admission refuses it: recorded as a decision for no replica."""
        self.admitted = answer
        self.decision = wire.turned_away(answer, self._key, pool, prompt, now)
        self.state = DECIDED
        self.outcome, self.why = NOT_ADMITTED, answer.reason
        return Reply(wire.refusal(answer))

    def _refuse(self, outcome: str, why: str = "") -> Reply:
        if self._duplex is not None:
            self._duplex.drop()
        self.state = DECIDED
        self.outcome, self.why = outcome, why
        return Reply(_REFUSALS[outcome])

    def _answer(self, data: bytes) -> Reply:
        self.state, self.outcome = DECIDED, ANSWERED
        return Reply(data)

    def _leave(self, outcome: str) -> Reply:
        self.state = OVER
        self.outcome = outcome
        return CLOSE


#: Why a body that was not read passes whatever the rules are: it is none of ours, or the fault is ours.
_PASS = frozenset({"no_dialect", reading.NOT_READ})
#: Outcomes of requests whose body goes on.
_GOES = frozenset({ENDED_EARLY, STEERED, UNREADABLE})
_REFUSALS = {
    TOO_LARGE: refusals.TOO_LARGE,
    BAD_REQUEST: refusals.BAD_REQUEST,
    UNKNOWN_MODEL: refusals.UNKNOWN_MODEL,
    NO_CANDIDATE: refusals.NO_CANDIDATE,
}
