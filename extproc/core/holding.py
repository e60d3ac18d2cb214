"""Requests that wait in their pools' rooms: taken in, let go when the room says so, forgotten when the client leaves.

The room (core/waiting.py) says who goes when; here is who they are. An exchange asks `keeps` with each request that
could wait. What happens at replicas, in the fleet or at other gateways stirs (`stir`), and whoever runs the event
loop then calls `pump`, and calls it again at the time that it returns.

Waiting ends in one of these ways, which label a metric:

    open           a replica was about to be free for it
    longest_wait   it waited as long as it may
    closed         the gateway stops, or the pool's policy does not hold requests any more
    left           its client did not wait
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt
from extproc.core.replies import wait_for
from extproc.core.waiting import WaitingRoom

# How waiting ended; and FULL: it did not begin, as no more may wait.
OPEN: Final = "open"
LONGEST_WAIT: Final = "longest_wait"
CLOSED: Final = "closed"
LEFT: Final = "left"
FULL: Final = "full"
WAYS: Final = (OPEN, LONGEST_WAIT, CLOSED, LEFT, FULL)

#: Float noise in times.
_EPSILON: Final = 1e-6


class Waiter(Protocol):
    """An exchange that waits."""

    def due(self, now: float) -> None:
        """It need not wait any more: decide and answer."""
        ...


class Listener(Protocol):
    """Who tells other gateways what waits here."""

    def held(self, key: int, pool: Pool, prompt: Prompt, arrived: float) -> None:
        """A request waits."""
        ...

    def unheld(self, key: int, *, gone: bool) -> None:
        """It does not any more; `gone`: nor will it be placed anywhere."""
        ...


class _Held(NamedTuple):
    waiter: Waiter
    hall: "Hall"
    arrived: float
    size: int


class Hall:
    """A pool's room, and what is counted of it.

    Attributes:
        most: bytes of bodies that may wait.
        size: bytes of bodies that wait.
        patience: the message that makes Envoy wait for as long as requests may.
        ended: how waiting ended, by way, and how often it did not begin (FULL).
        seconds: replica-seconds of candidates while something waited. Of them, without prompt work: `idle` though a
            request that waits would be computed sooner there, and `spared` while none would, as far as is known.
    """

    def __init__(self, room: WaitingRoom, most: int, margin: float) -> None:
        self.room = room
        self.pool = room.pool
        self.most = most
        self.size = 0
        self.patience = wait_for(room.settings.cap + margin)
        self.ended = dict.fromkeys(WAYS, 0)
        self.seconds = self.idle = self.spared = 0.0
        #: When; candidates then; how many had nothing to do; and how many of these would have been of use.
        self._looked: tuple[float, int, int, int] | None = None

    def look(self, now: float) -> None:
        """Add up the time since the last look; call it when something changed or was let go."""
        if self._looked is not None:
            at, candidates, idle, wanted = self._looked
            self.seconds += candidates * (now - at)
            self.idle += wanted * (now - at)
            self.spared += (idle - wanted) * (now - at)
        self._looked = None
        if self.room.own:
            replicas = self.pool.replicas
            usable = [i for i, replica in enumerate(replicas) if replica.excluded(now) is None]
            dry = [i for i in usable if replicas[i].books.idle_at <= now and not replicas[i].books.awaits]
            self._looked = now, len(usable), len(dry), self.room.wanted(dry, now) if dry else 0


class Holding:
    """All that waits in a gateway.

    Args:
        pools: those with a room may hold requests.
        ledger: where the decisions are charged.
    """

    def __init__(self, pools: Iterable[Pool], ledger: Ledger) -> None:
        self._pools = list(pools)
        self._ledger = ledger
        #: Who waits, by their numbers.
        self.held: dict[int, _Held] = {}
        self.halls: dict[str, Hall] = {}
        #: Called when `pump` is to be called soon. May be called often.
        self.on_due: Callable[[], None] = lambda: None
        #: Told of what waits; None for nobody.
        self.listener: Listener | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self.held)

    def __contains__(self, key: int) -> bool:
        return key in self.held

    def furnish(self, room: WaitingRoom, most: int, margin: float) -> None:
        """Let a pool's requests wait in its room.

        Args:
            room: the pool's.
            most: bytes of bodies that may wait.
            margin: seconds that Envoy waits longer than a request may: its usual patience with a message.
        """
        self.halls[room.pool.name] = Hall(room, most, margin)
        room.on_stir = lambda: self.on_due()

    def keeps(self, waiter: Waiter, key: int, pool: Pool, prompt: Prompt, size: int, now: float) -> bool:
        """Whether a request waits from now on: `waiter.due` will be called, unless `leave` is. Else it goes at once.

        Args:
            waiter, key: the exchange and its number.
            pool, prompt: where to, and what it is.
            size: bytes of its body, which Envoy keeps meanwhile.
            now: seconds.
        """
        hall = self.halls.get(pool.name)
        if hall is None or not hall.room.is_open or hall.room.needs_none(now):
            return False
        room = hall.room
        if hall.size + size > hall.most or not room.has_space(room.tokens_of(prompt)):
            hall.ended[FULL] += 1
            return False
        room.hold(key, prompt, now)
        if self._let_go(hall, now, key):
            return False
        self.held[key] = _Held(waiter, hall, now, size)
        hall.size += size
        if self.listener is not None:
            self.listener.held(key, pool, prompt, now)
        self.on_due()
        return True

    def patience(self, pool: Pool) -> bytes:
        """What to tell Envoy, so that it waits."""
        return self.halls[pool.name].patience

    def leave(self, key: int, now: float) -> None:
        """The client of a request did not wait. Unknown keys are ignored."""
        held = self._take(key, LEFT)
        if held is not None:
            held.hall.look(now)
            if self.listener is not None:
                self.listener.unheld(key, gone=True)
        self.stir()

    def stir(self) -> None:
        """Something happened for which a request may go."""
        if self.held:
            self.on_due()

    def looked(self, late: float) -> None:
        """`pump` was called so many seconds later than it was due. Call it a few times a second."""
        for hall in self.halls.values():
            hall.room.looked(late)

    def close(self, now: float) -> None:
        """Let everything go, and hold nothing any more: the gateway stops."""
        for hall in self.halls.values():
            hall.room.close()
        self.pump(now)

    def pump(self, now: float) -> float:
        """Let go who need not wait any more; returns when to look again although nothing happens."""
        again = float("inf")
        for hall in self.halls.values():
            if hall.room.own:
                self._let_go(hall, now)
                again = min(again, hall.room.wake(now))
        return again

    def _let_go(self, hall: Hall, now: float, asks: int | None = None) -> bool:
        """Let those go that are due; whether `asks`, which is taken out and not told, is one of them."""
        room = hall.room
        while (key := room.next_own(now)) is not None:
            if key == asks:
                room.remove(key)
                self.stir()  # others may be due behind it, once it is charged
                return True
            self._release(key, now)
        hall.look(now)
        return False

    def _release(self, key: int, now: float) -> None:
        held = self.held[key]
        room = held.hall.room
        waited = now - held.arrived >= room.settings.cap - _EPSILON
        self._take(key, CLOSED if not room.is_open else LONGEST_WAIT if waited else OPEN)
        if self.listener is not None:
            self.listener.unheld(key, gone=False)
        held.waiter.due(now)
        if self.listener is not None and key not in self._ledger:  # refused
            self.listener.unheld(key, gone=True)

    def _take(self, key: int, how: str) -> _Held | None:
        held = self.held.pop(key, None)
        if held is not None:
            held.hall.room.remove(key)
            held.hall.size -= held.size
            held.hall.ended[how] += 1
        return held
