"""One order to drain a replica, as it stands in Redis and as it counts here.

In Redis its times are those of Redis' own clock (TIME), which all gateways share; here they are of this gateway's
monotonic clock. Nobody's wall clock is asked, so one that is an hour off ends no drain early and holds none up.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import orjson

#: Longest deadline of a drain, seconds: a week.
MOST = 7 * 86_400.0
#: Characters kept of who gave an order.
_NAME = 200


@dataclass(frozen=True, slots=True)
class Order:
    """A drain that was asked for.

    Attributes:
        raw: as it stands in Redis; empty while it was not written there.
        due: when its patience ends, seconds of our monotonic clock; None without a deadline.
        given_at: when it was given, on the same clock; None where the order does not say.
        who: who gave it, where that is known.
    """

    raw: bytes
    due: float | None
    given_at: float | None
    who: str = ""

    @classmethod
    def given(cls, patience: float | None, who: str, now: float) -> Self:
        """An order given now, with so many seconds of patience (None: for ever)."""
        return cls(b"", None if patience is None else now + patience, now, who)

    def written(self, ahead: float) -> Self:
        """As it is to stand in a Redis whose clock is `ahead` seconds before ours."""
        times = {"deadline": self.due, "at": self.given_at}
        told = {name: None if at is None else round(at + ahead, 3) for name, at in times.items()}
        return replace(
            self, raw=orjson.dumps({"deadline": told["deadline"], "who": self.who, "at": told["at"]})
        )

    def is_newer(self, other: "Order") -> bool:
        """Whether it was given after the other one; one that does not say when is the older."""
        return self.given_at is not None and (other.given_at is None or self.given_at > other.given_at)

    def is_due(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.due is not None and now >= self.due

    def is_old(self, now: float, expired: float, given: float) -> bool:
        """Whether its deadline passed `expired` seconds ago, or it was given `given` seconds ago."""
        late = self.due is not None and now - self.due > expired
        return late or (self.given_at is not None and now - self.given_at > given)


def read_order(raw: bytes, ahead: float) -> Order | None:
    """An order out of Redis, perhaps written by hand; None when it is none.

    A deadline or time in it that can't be read is unknown, and so removes nobody.

    Args:
        raw: JSON of `deadline` and `at`, in seconds of Redis' clock since the epoch, and `who`.
        ahead: seconds by which that clock is before our monotonic one.
    """
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(told, dict):
        return None
    who = told.get("who")
    return Order(
        raw,
        _time(told.get("deadline"), -ahead),
        _time(told.get("at"), -ahead),
        who[:_NAME] if isinstance(who, str) else "",
    )


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
