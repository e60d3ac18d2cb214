"""What holds for every replica of a pool, so that a decision need not ask each: kept until one of them changes.

Nearly always all of a fleet may be chosen and none is favoured. Finding that out anew takes a decision as long as
weighing the candidates; here it is found once, and the replicas say when it may be otherwise (`changed`).
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

#: The place of a replica that is not in its pool's list: not yet, or no more.
NOWHERE: Final = -1

#: What is on a replica, as of the last change of its books or its sample: `Books.idle_at` and `Books.floor` (s),
#: `Replica.context`, and the `prefill_speed` (tokens/s) that its prompts are computed at.
Load = tuple[float, float, float, float]


class Standing(Protocol):
    """What is asked of a replica (core/fleet.py)."""

    barred: str | None
    share: float
    fresh_until: float
    bias: float
    crowded: bool
    prefill_speed: float


class Outlook:
    """Shared by a pool and its replicas, which tell it when one of these attributes becomes another."""

    __slots__ = (
        "_crowded",
        "_known",
        "_looked",
        "_open_until",
        "fastest",
        "in_flight",
        "is_even",
        "loads",
        "version",
    )

    def __init__(self) -> None:
        self._known = False
        self._crowded: bool | None = None  # None: not known
        self._looked = self._open_until = -math.inf
        #: Whether all have the bias 1; False too while nobody looked since something changed.
        self.is_even = False
        #: The highest prefill speed of any, as of the last `all_open`, in tokens/s.
        self.fastest = math.inf
        #: Another one whenever a replica joined, left, was heard, or is not what it was.
        self.version = 0
        #: Requests in flight on each, by own books, in the order of the pool's list. The replicas write what changes,
        #: so that a record of all is one copy; another list when one joins or leaves.
        self.in_flight: list[int] = []
        #: What is on each, in the same order and written likewise.
        self.loads: list[Load] = []

    def changed(self) -> None:
        """A replica joined, left, or is not what it was."""
        self.version += 1
        self._known, self._open_until = False, -math.inf
        self.is_even, self._crowded = False, None

    def crowding(self) -> None:
        """A replica became crowded, or is it no more."""
        self._crowded = None

    def heard(self, before: float, after: float) -> None:
        """A replica's `fresh_until` moved. With every sample it moves on, and what was found still holds."""
        self.version += 1
        if after < before or before <= self._looked:  # not on; or it was stale when it was looked at
            self._known, self._open_until = False, -math.inf

    def all_open(self, replicas: Sequence[Standing], now: float) -> bool:
        """Whether every one of `replicas`, which are the pool's, may be chosen now, and for all requests."""
        if now < self._open_until:
            return True
        if not self._known or self._open_until > -math.inf:
            self._look(replicas, now)
        return now < self._open_until

    def is_crowded(self, replicas: Sequence[Standing]) -> bool:
        """Whether one of `replicas`, which are the pool's, is crowded: next to no slot or KV free."""
        if self._crowded is None:
            self._crowded = any(replica.crowded for replica in replicas)
        return self._crowded

    def _look(self, replicas: Sequence[Standing], now: float) -> None:
        self._known, self._looked = True, now
        self.is_even = all(replica.bias == 1.0 for replica in replicas)
        self.fastest = max((replica.prefill_speed for replica in replicas), default=math.inf)
        until = min((replica.fresh_until for replica in replicas), default=-math.inf)
        is_open = now < until and all(r.barred is None and r.share >= 1.0 for r in replicas)
        self._open_until = until if is_open else -math.inf
