"""What this gateway has sent and not yet seen finished: charged at the pick, released exactly once.

Telemetry is late: an engine updates its gauges once a step, and a scrape is up to its interval old. These
books are exact at once, so a decision reads them first and telemetry second.

Books belong to one incarnation of a replica. An exchange that ends after the engine restarted releases into
the old incarnation's books, which nobody reads any more.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from extproc.core.decide import Decision
    from extproc.core.fleet import Replica


class Books:
    """Work in flight on one incarnation of a replica. All amounts are tokens, all times seconds."""

    __slots__ = (
        "_done_at",
        "_drained_at",
        "_prefilling",
        "_sent",
        "_speed",
        "floor",
        "idle_at",
        "pending",
        "requests",
        "signalled",
        "tokens",
    )

    def __init__(self) -> None:
        #: Exchanges sent and not ended.
        self.requests = 0
        #: Prompt tokens and expected output tokens of them together.
        self.tokens = 0
        #: Prompt work sent that is believed not yet done, in tokens at a prompt's start (core/cost.py).
        self.pending = 0.0
        #: Whether first tokens are reported, so that the clock alone may not call a prompt done.
        self.signalled = False
        #: When the clock alone has computed all of `pending`, at the speed of the last charge.
        self.idle_at = -math.inf
        #: Seconds of work that the clock alone can't bring down: what waits for another prompt's first token.
        self.floor = 0.0
        self._speed = 1.0
        self._prefilling: dict[int, float] = {}  # exchange -> work left, in the order of sending
        self._sent: dict[int, tuple[float, float]] = {}  # of those: when it was sent, and its whole work
        self._drained_at = 0.0
        self._done_at = 0.0  # when the last first token came

    def backlog(self, now: float, speed: float) -> float:
        """Seconds of prompt work still ahead at `speed` prompt tokens a second.

        The engine computes prompts first come first served, so time takes tokens off the oldest.
        """
        self._settle(now, speed)
        self._foresee()
        return self.pending / speed

    def _settle(self, now: float, speed: float) -> None:
        """Take off what was computed since the last time."""
        if self.pending and now != self._drained_at:  # a batch of others' news has one moment
            budget = (now - self._drained_at) * speed
            if not self.signalled:
                self._drain(budget)
            elif budget > 0:  # the oldest's first token has not come, so the next prompt has not begun
                key = next(iter(self._prefilling))
                left = self._prefilling[key]
                done = budget if budget < left else left
                self._prefilling[key] = left - done
                self.pending = max(self.pending - done, 0.0)
        self._drained_at = now
        self._speed = speed

    def _foresee(self) -> None:
        """Bring `idle_at` and `floor` up to date: they change with the books and are read far more often."""
        self.idle_at = self._drained_at + self.pending / self._speed
        waits = self.signalled and self._prefilling
        self.floor = (
            max(self.pending - next(iter(self._prefilling.values())), 0.0) / self._speed if waits else 0.0
        )

    def falls_to(self, seconds: float, now: float) -> float:
        """When the clock alone brings the backlog down to `seconds`; infinity when a first token must come first."""
        return math.inf if self.floor > seconds else max(self.idle_at - seconds, now)

    def _drain(self, budget: float) -> None:
        """The clock alone tells what is done: take so much work off the oldest prompts."""
        done = []
        for key, left in self._prefilling.items():
            if budget < left:
                if budget > 0:
                    self._prefilling[key] = left - budget
                    self.pending -= budget
                break
            self.pending -= left
            budget -= left
            done.append(key)
        for key in done:
            del self._prefilling[key], self._sent[key]
        self._take(0.0)

    def _take(self, work: float) -> None:
        """Take work off the sum; rounding leaves nothing below zero, nor anything once all prompts are gone."""
        self.pending = max(self.pending - work, 0.0) if self._prefilling else 0.0

    def send(
        self, key: int, uncached: float, tokens: int, now: float, speed: float, sent: float | None = None
    ) -> None:
        """Charge an exchange: `uncached` work to compute (core/cost.py), `tokens` in all; `sent` when not now."""
        self._settle(now, speed)
        self.requests += 1
        self.tokens += tokens
        if uncached > 0:
            self._prefilling[key] = float(uncached)
            self._sent[key] = (now if sent is None else sent, uncached)
            self.pending += uncached
        self._foresee()

    def prompt_done(self, key: int, now: float) -> tuple[float, float]:
        """The first output token of an exchange was seen: it and all sent before it are computed.

        Returns:
            The work that was done since the first token before, and the seconds it took; zeros when unknown.
        """
        if key in self._prefilling:
            self._settle(now, self._speed)
        if key not in self._prefilling:
            return 0.0, 0.0
        began, work = math.inf, 0.0
        for older in self._up_to(key):
            self.pending -= self._prefilling.pop(older)
            sent, whole = self._sent.pop(older)
            work += whole
            began = min(began, sent)
        began, self._done_at = max(self._done_at, began), now
        self._take(0.0)
        self._foresee()
        return work, now - began

    def _up_to(self, key: int) -> list[int]:
        """`key` and all sent before it. News of others' prompts comes late, so the order of charging won't do."""
        sent, found = self._sent[key][0], []
        came = False
        for other, (at, _) in self._sent.items():
            if at < sent or (at == sent and not came):
                found.append(other)
            came = came or other == key
        return found

    def left(self, key: int) -> float:
        """Prompt work of an exchange that is believed not yet done, as of the last look at the books."""
        return self._prefilling.get(key, 0.0)

    def end(self, key: int, tokens: int, now: float) -> None:
        """Take an exchange off, whatever ended it."""
        self.requests -= 1
        self.tokens -= tokens
        if not self._prefilling:
            return
        self._settle(now, self._speed)
        left = self._prefilling.pop(key, 0.0)
        self._sent.pop(key, None)
        self._take(left)
        self._foresee()


class Bookkeeper(Protocol):
    """What a charge is put on: one incarnation of a replica."""

    books: Books
    prefill_speed: float

    def recount(self) -> None:
        """Its books changed."""
        ...

    def learn(self, work: float, seconds: float) -> None:
        """It did so much prompt work in so many seconds."""
        ...


class Listener(Protocol):
    """Who tells other gateways what happens here. Called for every request, so it only takes note."""

    def placed(self, decision: "Decision", replica: "Replica") -> None:
        """A decision was bound to a replica."""
        ...

    def first_token(self, key: int) -> None:
        """The first token of an exchange was seen."""
        ...

    def ended(self, key: int) -> None:
        """An exchange's charge was released."""
        ...


class Ledger:
    """Every exchange of this gateway that holds a charge. Keys are the exchanges' own numbers."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Bookkeeper, int]] = {}
        #: Told of what happens; None for nobody.
        self.listener: Listener | None = None

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def entries(self) -> Iterator[tuple[int, Bookkeeper, int]]:
        """Every charge: key, what it is put on, and its tokens."""
        for key, (replica, tokens) in self._entries.items():
            yield key, replica, tokens

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def tokens(self) -> int:
        """Tokens charged and not released, over all replicas."""
        return sum(tokens for _, tokens in self._entries.values())

    def charge(
        self,
        key: int,
        replica: Bookkeeper,
        uncached: float,
        tokens: int,
        now: float,
        sent: float | None = None,
    ) -> None:
        """Charge an exchange to a replica; one that was charged before is moved there.

        `sent` is when that was, for news of another gateway that comes late.
        """
        if key in self._entries:
            self._take_off(key, now)
        replica.books.send(key, uncached, tokens, now, replica.prefill_speed, sent)
        replica.recount()
        self._entries[key] = (replica, tokens)

    def prompt_done(self, key: int, now: float) -> None:
        """The first token of an exchange was seen. Unknown keys are ignored."""
        entry = self._entries.get(key)
        if entry is not None:
            work, seconds = entry[0].books.prompt_done(key, now)
            if seconds > 0:
                entry[0].learn(work, seconds)
            if self.listener is not None:
                self.listener.first_token(key)

    def release(self, key: int, now: float) -> bool:
        """End an exchange's charge. Idempotent: True only the first time."""
        if not self._take_off(key, now):
            return False
        if self.listener is not None:
            self.listener.ended(key)
        return True

    def _take_off(self, key: int, now: float) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        replica, tokens = entry
        replica.books.end(key, tokens, now)
        replica.recount()
        return True
