"""What this gateway has sent and not yet seen finished: charged at the pick, released exactly once.

The charges of each replica are its books (core/books.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from extproc.core.books import Books

if TYPE_CHECKING:
    from extproc.core.decide import Decision
    from extproc.core.fleet import Replica


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
        *,
        told: bool = False,
    ) -> None:
        """Charge an exchange to a replica; one that was charged before is moved there.

        `sent` is when that was, for news of another gateway that comes late; `told` whether its first token will be.
        """
        if key in self._entries:
            before, its_tokens = self._entries.pop(key)
            before.books.end(key, its_tokens, now)
            before.recount()
        replica.books.send(key, uncached, tokens, now, replica.prefill_speed, sent, told)
        replica.recount()
        self._entries[key] = (replica, tokens)

    def is_on(self, key: int, replica: Bookkeeper) -> bool:
        """Whether a charge needs no move to `replica`: it is there, or it is none any more."""
        entry = self._entries.get(key)
        return entry is None or entry[0] is replica

    def move(self, key: int, replica: Bookkeeper, uncached: float, now: float, *, told: bool) -> None:
        """Put an exchange's charge on another replica, where `uncached` of its prompt is work. It must hold one."""
        _, tokens = self._entries[key]
        self.charge(key, replica, uncached, tokens, now, told=told)

    def prompt_done(self, key: int, now: float, seen: float | None = None) -> None:
        """The first token of an exchange was seen, at `seen` when not now. Unknown keys are ignored."""
        entry = self._entries.get(key)
        if entry is not None:
            work, seconds = entry[0].books.prompt_done(key, now, seen)
            if seconds > 0:
                entry[0].learn(work, seconds)
            entry[0].recount()
            if self.listener is not None:
                self.listener.first_token(key)

    def release(self, key: int, now: float, answered: bool = False) -> float | None:
        """End an exchange's charge. Idempotent: None where it held none, as from the second time on.

        `answered`: the engine's answer came to its end, so it has computed all that it was sent before it.

        Returns:
            Its prompt work that was believed not yet done.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        replica, tokens = entry
        left = replica.books.end(key, tokens, now, answered)
        replica.recount()
        if self.listener is not None:
            self.listener.ended(key)
        return left
