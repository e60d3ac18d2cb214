"""A stream's session: the pure exchange, the clock, and who is told what came of it."""

from collections.abc import Callable
from typing import Protocol

from extproc.core.exchange import DECIDED, HELD, Exchange
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


class ExchangeSession:
    """What a transport drives."""

    __slots__ = ("_clock", "_exchange", "_push", "_settled", "_spent", "_watcher", "held")

    def __init__(self, steering: Steering, watcher: Watcher, clock: Callable[[], float]) -> None:
        self._exchange = Exchange(steering)
        self._watcher = watcher
        self._clock = clock
        self._settled = False
        self._push: Push | None = None
        self._spent = 0.0  # seconds of work on a request before it was held
        self.held = False  # whether the answer comes later

    def receive(self, data: bytes) -> tuple[Answer, bool, bool]:
        """The answer, whether to close the stream, and whether the stream may end here without harm."""
        exchange = self._exchange
        began = self._clock()
        try:
            answer, close = exchange.receive(data, began)
        except Exception as error:  # a fault of ours must not cost the client its request
            self._settled = True
            self._watcher.failed(exchange, error)
            return self.rescue(), True, True
        if not self._settled and exchange.state >= DECIDED:
            self._settled = True
            self._watcher.settled(exchange, self._clock() - began)
        elif exchange.state == HELD and not self.held:
            self.held, exchange.due = True, self._due
            self._spent = self._clock() - began
        return answer, close, self._settled and not exchange.holding

    def answer_by(self, push: Push) -> None:
        """How the answer that is owed is to be given."""
        self._push = push

    def _due(self, now: float) -> None:
        """The exchange was held and need not be any more."""
        exchange, began = self._exchange, self._clock()
        try:
            answer, close = exchange.let_go(now)
            if exchange.state == HELD:  # admission let it go, and now it waits for a replica
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
        self._exchange.end(self._clock())
        self._watcher.ended(self._exchange)
