"""What becomes of a request once it was read: decided, held until its turn comes, turned away or refused."""

from collections.abc import Callable
from math import floor
from typing import Final

from extproc.core import observer, onward, refusals, replies, tracing
from extproc.core.admission import wire
from extproc.core.admission.answers import Answer
from extproc.core.admission.identity import Told
from extproc.core.decide import Decision
from extproc.core.duplex import Duplex
from extproc.core.ending import Ending
from extproc.core.opening import Opening
from extproc.core.owed import Owed
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.reading import Unread
from extproc.core.rename import Parts
from extproc.core.reply import CLOSE, SILENCE, Reply
from extproc.core.response import Response
from extproc.core.states import (
    ANSWERED,
    BAD_REQUEST,
    BODY,
    DECIDED,
    ENDED_EARLY,
    HELD,
    NO_CANDIDATE,
    NOT_ADMITTED,
    OVER,
    START,
    STEERED,
    TOO_LARGE,
    UNKNOWN_MODEL,
    UNREADABLE,
)
from extproc.core.steering import Steering
from extproc.core.tries import destination
from extproc.pb.opening_pb2 import RequestStart

#: Outcomes of requests whose body goes on.
GOES: Final = frozenset({ENDED_EARLY, STEERED, UNREADABLE})
_REFUSALS: Final = {
    TOO_LARGE: refusals.TOO_LARGE,
    BAD_REQUEST: refusals.BAD_REQUEST,
    UNKNOWN_MODEL: refusals.UNKNOWN_MODEL,
    NO_CANDIDATE: refusals.NO_CANDIDATE,
}
_UNTOLD: Final = Told()
_UNOPENED: Final = Opening(RequestStart())


def _nobody(_now: float) -> None:
    """Nobody waits for the answer."""


class Deciding:
    """What an exchange keeps, and its way from a prompt to an answer.

    Attributes:
        outcome: how it was dealt with, one of `core/states.py`'s words; ENDED_EARLY until then.
        why: a further word for UNREADABLE and BAD_REQUEST, from the dialects' closed set; for NOT_ADMITTED of
            admission's.
        admitted: what admission said; None where it was not asked.
        decision: once there is one.
        ending: how it ended, once something was told of that.
        due: called with the time when its turn came; whoever set it calls `let_go`, and answers if it is not HELD on.
        opening: what its first message told.
        response: what comes of the response; None where nothing of it was asked for.
        request_id: the id that the replica and the records know it by; "" before its first message.
        unread: its body while that is read beside; whoever does so calls `take_in`. None otherwise.
        waited: seconds that it was held.
        caller: `traceparent` of the stream itself, where Envoy traces; "" for none. Whoever drives it sets it first.
        span: the gateway's, of a request that went to a replica and is traced.
    """

    __slots__ = (
        "_duplex", "_key", "_owed", "_steering", "_told", "admitted", "caller", "decision", "due",
        "ending", "opening", "outcome", "request_id", "response", "span", "state", "unread", "waited", "why",
    )  # fmt: skip

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self._key = steering.new_key()
        self.opening: Opening = _UNOPENED
        self.request_id = ""
        self._duplex: Duplex | None = None
        self.response: Response | None = None
        self._owed: Owed | None = None
        self.unread: Unread | None = None
        self.due: Callable[[float], None] = _nobody
        self.waited = 0.0
        self._told = _UNTOLD
        self.admitted: Answer | None = None
        self.state = START
        self.outcome = ENDED_EARLY
        self.why = ""
        self.decision: Decision | None = None
        self.ending: Ending | None = None
        self.caller = ""
        self.span: tracing.Span | None = None

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
        if self.decision is not None:
            self._steering.began(self.decision, self.ending.served, self.request_id, now)

    def _decide(
        self,
        prompt: Prompt | None,
        now: float,
        outcome: str,
        size: int = 0,
        body: bytes | memoryview | None = None,
    ) -> Reply:
        """Decide now, or hold it where its pool has a room for it; `size` bytes of body wait then.

        `body` is there where it may be read anew, which another model needs. It lies in the message, not copied until
        it has to be changed.
        """
        steering = self._steering
        pool = steering.router.pool_of(prompt)
        if pool is None and outcome == UNREADABLE and prompt is not None:
            pool = steering.router.lister(prompt.model)  # its kind and its length are not known
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
        waits = pool.room is not None or pool.adapters is not None
        if waits and self._has_to_wait(prompt, pool, size, now):
            patience = steering.holding.patience(pool) if pool.adapters is None else pool.adapters.patience
            return self._hold(Owed(prompt, pool, now, outcome, size), patience)
        return self._decide_now(prompt, pool, now, outcome)

    def _has_to_wait(self, prompt: Prompt | None, pool: Pool, size: int, now: float) -> bool:
        """Whether its pool keeps it: until its adapter is loaded, or, in its room, until a replica is nearly free.

        Both reckon with every replica.
        """
        if prompt is None or self.opening.only:
            return False
        if pool.adapters is not None:  # which have no room
            return pool.adapters.keeps(self, self._key, prompt, pool.replicas, now)
        return pool.room is not None and self._steering.holding.keeps(
            self, self._key, pool, prompt, size, now
        )

    def _hold(self, owed: Owed, patience: bytes) -> Reply:
        self.state, self._owed = HELD, owed
        return (patience, False) if self._duplex is None else SILENCE  # in full duplex Envoy has no clock

    def _decide_now(self, prompt: Prompt | None, pool: Pool, now: float, outcome: str) -> Reply:
        steering = self._steering
        at_headers = self.state == START or self._duplex is not None
        streams = prompt is not None and prompt.stream
        mark = observer.mark(steering, self._key) if streams and steering.identity is not None else ""
        watched = bool(mark) or (streams and self.response is not None)  # its first token will be told
        only = self.opening.only
        self.decision = decision = steering.decide(prompt, pool, self._key, now, told=watched, only=only)
        if decision.replica is None:
            return self._refuse(NO_CANDIDATE)
        if not decision.replica.is_settled:  # else no breaker of it waits for a probe
            decision.replica.sent(self.request_id, now)
        self.state = DECIDED
        self.outcome = outcome
        several = pool.name if len(steering.pools) > 1 else ""
        if watched:
            steering.watched[self._key] = self
        # A rank before the tries, which are of replicas that have it.
        rank = b"" if pool.ranks is None else pool.ranks.told(decision, at_headers=at_headers)
        to, hit = destination(decision, steering.rules.tries), floor(decision.cached)
        name, owned = self.request_id, self.opening.owned
        data = replies.steer(to, hit, name, at_headers=at_headers, owned=owned, pool=several, mark=mark)
        if decision.prefill is not None and pool.handover is not None:
            data += pool.handover.told(decision, at_headers=at_headers)
        data += rank
        if pool.mirror is not None:
            data += pool.mirror.told(steering.rng.random(), at_headers=at_headers)
        if steering.traces is not None:
            data += self._traced(steering.traces, at_headers=at_headers)
        return data, False

    def _traced(self, traces: tracing.Traces, *, at_headers: bool) -> bytes:
        """Begin its span, and tell the replica of it; an Envoy that traces tells of its own, whatever we say."""
        span = self.span = traces.begin(self.caller or self.opening.trace)
        return b"" if span is None or self.caller else tracing.told(span, at_headers=at_headers)

    def _onward(self, reply: Reply, body: bytes | memoryview, *, cut: bool) -> Reply:
        """The answer to a request that was decided or is held, with its body as it is to go on."""
        holder, plain = self._owed or self.decision, not self.opening.coding
        if cut or holder is None or holder.prompt is None or self.outcome not in GOES:
            return self._sent_on(reply, None)
        rules, prompt = self._steering.rules, holder.prompt
        if not (rules.include_usage or holder.pool.renames or prompt.asked or self.admitted is not None):
            return (
                reply if self._duplex is None else self._sent_on(reply, None)
            )  # as most gateways are set up
        changed = onward.body_of(rules, holder.pool, prompt, bytes(body), self.admitted, plain=plain)
        if self._owed is not None:
            self._owed.body = changed
        return self._sent_on(reply, changed)

    def _sent_on(self, reply: Reply, body: Parts | None) -> Reply:
        """The same answer to a request that goes, with its body where that is held here, or with another one."""
        if self.state == HELD or self.outcome not in GOES or (body is None and self._duplex is None):
            return reply
        data, _ = reply
        assert isinstance(data, bytes)
        decoded = bool(self.opening.coding)
        if self._duplex is not None:
            return self._duplex.answer(data, b"".join(body) if body else None, decoded=decoded), False
        return replies.replaced(data, body or (), decoded=decoded), False

    def _turn_away(self, answer: Answer, prompt: Prompt | None, pool: Pool, now: float) -> Reply:
        """Admission refuses it: recorded as a decision for no replica."""
        self.admitted = answer
        self.decision = wire.turned_away(answer, self._key, pool, prompt, now)
        self.state = DECIDED
        self.outcome, self.why = NOT_ADMITTED, answer.reason
        self.ending = Ending.refused(answer.refusal.status)
        return wire.refusal(answer), False

    def _refuse(self, outcome: str, why: str = "") -> Reply:
        if self._duplex is not None:
            self._duplex.drop()
        self.state = DECIDED
        self.outcome, self.why = outcome, why
        refused = _REFUSALS[outcome]
        self.ending = Ending.refused(refused.status)
        return refused.message, False

    def _answer(self, data: bytes) -> Reply:
        self.state, self.outcome = DECIDED, ANSWERED
        return data, False

    def _leave(self, outcome: str) -> Reply:
        self.state = OVER
        self.outcome = outcome
        return CLOSE
