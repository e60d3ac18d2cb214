"""One order to drain a replica, as it stands in Redis and as it counts here."""

import math
from dataclasses import dataclass
from typing import Self

import orjson

from extproc.io import clock

#: Longest deadline of a drain, seconds: a week.
MOST = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Order:
    """A drain that was asked for.

    Attributes:
        raw: as it stands in Redis.
        due: when its patience ends, seconds of our monotonic clock; None without a deadline.
        given_at: when it was given, on the same clock; None where the order does not say.
    """

    raw: bytes
    due: float | None
    given_at: float | None

    @classmethod
    def given(cls, patience: float | None, who: str, wall: float, now: float) -> Self:
        """An order given now, with so many seconds of patience (None: for ever)."""
        until = None if patience is None else wall + patience
        raw = orjson.dumps({"deadline": until, "who": who, "at": wall})
        return cls(raw, None if patience is None else now + patience, now)

    def is_due(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.due is not None and now >= self.due

    def is_old(self, now: float, expired: float, given: float) -> bool:
        """Whether its deadline passed `expired` seconds ago, or it was given `given` seconds ago."""
        late = self.due is not None and now - self.due > expired
        return late or (self.given_at is not None and now - self.given_at > given)


def read_order(raw: bytes, now: float) -> Order:
    """An order out of Redis, perhaps written by hand; what can't be read of it is unknown, and drops nobody."""
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        told = None
    fields = told if isinstance(told, dict) else {}
    shift = now - clock.wall()
    return Order(raw, _time(fields.get("deadline"), shift), _time(fields.get("at"), shift))


def patience_of(text: str) -> float | None:
    """Seconds out of a query; None for no deadline. Raises ValueError with a sentence."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds <= MOST:
        raise ValueError(f"deadline must be seconds from 1 to {MOST:.0f}, as in ?deadline=600")
    return seconds


def _time(value: object, shift: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) + shift
