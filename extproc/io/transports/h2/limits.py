"""What a peer may make a server hold or do, and the count of what it was refused for going beyond.

Rates are token buckets: a burst is free, after it so many a second. Time is an argument.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extproc.io.transports.h2.errors import ENHANCE_YOUR_CALM, ConnectionFault

#: Every reason that `Refusals` counts; labels of a metric come from here.
REASONS: Final = (
    "streams",
    "header_block",
    "header_list",
    "continuations",
    "resets",
    "control",
    "empty",
    "message",
    "buffered",
    "output",
    "stalled",
    "handshake",
    "idle",
    "connections",
    "descriptors",
    "protocol",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds; each is a setting under `grpc.limits`, described there.

    `buffered` is bytes of unfinished messages of all connections together,
    above which windows stay shut, and twice which ends streams; `output` is bytes of answers that a connection's
    peer does not take; rates are a second, with a burst of ten times as many.
    """

    streams: int = 10_000
    header_block: int = 32_768
    header_list: int = 65_536
    continuations: int = 32
    resets: float = 100.0
    control: float = 50.0
    empty: float = 50.0
    buffered: int = 256 * 2**20
    connection_buffered: int = 128 * 2**20
    output: int = 64 * 2**20


class Refusals:
    """How often each limit was hit, over all connections."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, reason: str) -> None:
        """Count one; `reason` is one of `REASONS`."""
        self.counts[reason] += 1


class Rate:
    """A token bucket: ten seconds' worth at once, then `rate` a second."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = 10 * rate
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more is within the rate."""
        self._tokens = min(10 * self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Patience:
    """What one connection may still do of what costs us and brings it nothing.

    Args:
        limits: the rates.
        refusals: told when one is passed.
        clock: seconds, only going forward.
    """

    __slots__ = ("_clock", "_rates", "_refusals")

    def __init__(self, limits: Limits, refusals: Refusals, clock: Callable[[], float]) -> None:
        now = clock()
        self._clock = clock
        self._refusals = refusals
        self._rates = {name: Rate(getattr(limits, name), now) for name in ("resets", "control", "empty")}

    def spend(self, kind: str) -> None:
        """One more reset, control frame or empty frame. Raises ConnectionFault above the rate."""
        if not self._rates[kind].take(self._clock()):
            self._refusals.add(kind)
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"too many {kind} frames")


class Budget:
    """Bytes of unfinished messages, held by all connections together, and who waits for room.

    Attributes:
        limit: bytes from which windows stay shut.
        most: bytes from which what comes is thrown away.
        held: bytes now.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.most = limit, 2 * limit
        self.held = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def full(self) -> bool:
        """Whether windows stay shut."""
        return self.held >= self.limit

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is room."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Who waited has gone."""
        self._waiting.pop(wake, None)

    def release(self, size: int) -> None:
        """`size` bytes are gone; those who waited are told when that makes room."""
        self.held -= size
        if self._waiting and not self.full:
            waiting, self._waiting = list(self._waiting), {}
            for wake in waiting:
                wake()
