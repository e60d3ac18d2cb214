"""An exchange's request body: taken in whole, in pieces or where it lies, read here or beside, and given back."""

from typing import Final

from extproc.core import dialects, encoding, onward, reading, replies
from extproc.core.deciding import GOES, Deciding
from extproc.core.opening import PARTIAL
from extproc.core.prompt import opaque
from extproc.core.reply import NEUTRAL, SILENCE, Reply
from extproc.core.scattered import Pieces
from extproc.core.states import (
    BAD_REQUEST,
    BODY,
    NO_CANDIDATE,
    STEERED,
    TOO_LARGE,
    UNREAD,
    UNREADABLE,
)
from extproc.errors import TooLarge, Unreadable
from extproc.pb import ext_proc_pb2 as pb

#: Why a body that was not read passes whatever the rules are: it is none of ours, or the fault is ours.
_PASS: Final = frozenset({"no_dialect", reading.NOT_READ})


class Bodied(Deciding):
    """What comes of a request's body, up to its decision (`Deciding`)."""

    __slots__ = ()

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
        if self._duplex is not None and self._duplex.keeps and self.outcome in GOES:
            return self._duplex.answer(replies.continue_headers(self.opening.owned))
        return ()

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

    def _on_body(self, body: bytes | memoryview, now: float, *, cut: bool = False) -> Reply:
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
        return (steering.patience, False) if self._duplex is None else SILENCE

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

    def _read(self, body: bytes | memoryview, now: float, *, cut: bool, here: bool = False) -> Reply:
        """Read it at once. `here`: however far it expands, as nobody else reads it."""
        rules, opening = self._steering.rules, self.opening
        size = len(body)
        try:
            if opening.coding:
                opened = self._opened(bytes(body), here=here)
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
