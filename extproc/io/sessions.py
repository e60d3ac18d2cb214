"""A stream's session: the pure exchange, the clock, and who is told what came of it."""

from collections.abc import Callable
from typing import Protocol

from extproc.core.exchange import Exchange
from extproc.core.reading import Found, Unread
from extproc.core.reply import Reply
from extproc.core.scattered import Pieces
from extproc.core.states import DECIDED, HELD, UNREAD
from extproc.core.steering import Steering
from extproc.io.transports import Answer, Push


class Watcher(Protocol):
    """Told of every exchange twice at most: when it was settled, and when it ended."""

    def settled(self, exchange: Exchange, seconds: float) -> None:
        """It was decided, refused or let go; `seconds` is what the gateway's own work on it took."""
        ...

    def failed(self, exchange: Exchange, error: Exception) -> None:
        """The gateway itself failed on it; the stream is closed with OK and the request goes on unsteered."""
        ...

    def ended(self, exchange: Exchange) -> None:
        """Its stream is over."""
        ...


class BodyReader(Protocol):
    """Reads large bodies beside the event loop."""

    def take(self, unread: Unread, done: Callable[[Found], None]) -> bool:
        """Read a body, and call `done` later, once, on the event loop; False where it has to be read here and now."""
        ...

    def drop(self, unread: Unread) -> None:
        """Nobody waits for it any more."""
        ...


class ExchangeSession:
    """What a transport drives.

    Args:
        steering: decides.
        watcher: is told.
        clock: seconds, only going forward.
        reader: reads large bodies; None reads them at once.
    """

    __slots__ = ("_clock", "_exchange", "_push", "_reader", "_settled", "_spent", "_watcher", "held")

    def __init__(
        self,
        steering: Steering,
        watcher: Watcher,
        clock: Callable[[], float],
        reader: BodyReader | None = None,
    ) -> None:
        self._exchange = Exchange(steering)
        self._reader = reader
        self._watcher = watcher
        self._clock = clock
        self._settled = False
        self._push: Push | None = None
        self._spent = 0.0  # seconds of work on a request before it was held
        self.held = False  # whether the answer comes later

    def called_by(self, trace: str) -> None:
        """The stream has a `traceparent` of its own: Envoy traces, and this is its call of the gateway."""
        self._exchange.caller = trace

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        """The answer, whether to close the stream, and whether the stream may end here without harm."""
        exchange = self._exchange
        began = self._clock()
        try:
            answer, close = exchange.receive(data, began)
        except Exception as error:  # a fault of ours must not cost the client its request
            return self._failed(error)
        if not self._settled and exchange.state >= UNREAD:
            if exchange.state < DECIDED:
                return self._wait(answer, began)
            self._settled = True
            self._watcher.settled(exchange, self._clock() - began)
        return answer, close, self._settled and (exchange.response is None or not exchange.holding)

    def receive_large(self, pieces: Pieces) -> tuple[Answer, bool, bool]:
        """As `receive`, of a large message in pieces, which are freed once they are needed no more."""
        exchange, began = self._exchange, self._clock()
        try:
            answer, close = exchange.receive_large(pieces, began)
        except Exception as error:
            return self._failed(error)
        return self._after(answer, close, began)

    def _after(self, answer: Answer, close: bool, began: float) -> tuple[Answer, bool, bool]:
        exchange = self._exchange
        if not self._settled and exchange.state >= UNREAD:
            if exchange.state < DECIDED:
                return self._wait(answer, began)
            self._settled = True
            self._watcher.settled(exchange, self._clock() - began)
        return answer, close, self._settled and not exchange.holding

    def _failed(self, error: Exception) -> tuple[Answer, bool, bool]:
        self._settled = True
        self._watcher.failed(self._exchange, error)
        return self.rescue(), True, True

    def _wait(self, answer: Answer, began: float) -> tuple[Answer, bool, bool]:
        """Its answer comes later: once its body was read, or when its turn comes."""
        exchange = self._exchange
        if self.held:
            return answer, False, False
        unread = exchange.unread
        if unread is not None and (self._reader is None or not self._reader.take(unread, self._found)):
            try:
                answer, close = exchange.take_in(None, began)
            except Exception as error:
                return self._failed(error)
            return self._after(answer, close, began)
        self.held, exchange.due = True, self._due
        self._spent = self._clock() - began
        return answer, False, False

    def answer_by(self, push: Push) -> None:
        """How the answer that is owed is to be given."""
        self._push = push

    def _due(self, now: float) -> None:
        """The exchange was held and need not be any more."""
        self._go_on(lambda: self._exchange.let_go(now))

    def _found(self, found: Found) -> None:
        """Its body was read."""
        self._go_on(lambda: self._exchange.take_in(found, self._clock()))

    def _go_on(self, goes: Callable[[], Reply]) -> None:
        exchange, began = self._exchange, self._clock()
        try:
            answer, close = goes()
            if exchange.state == HELD:  # it was read, or admission let it go, and now it waits on
                self._spent += self._clock() - began
                return
        except Exception as error:  # as in `receive`
            self._watcher.failed(exchange, error)
            answer, close = self.rescue(), True
        else:
            self._watcher.settled(exchange, self._spent + self._clock() - began)
        self.held, self._settled = False, True
        if self._push is not None:
            self._push(answer, close)

    def rescue(self) -> Answer:
        """A request's body, if Envoy keeps no copy: it goes on unsteered."""
        return self._exchange.rescue() or None

    def end(self) -> None:
        """Release what the exchange holds and tell the watcher."""
        if self._exchange.unread is not None and self._reader is not None:
            self._reader.drop(self._exchange.unread)
        self._exchange.end(self._clock())
        self._watcher.ended(self._exchange)
