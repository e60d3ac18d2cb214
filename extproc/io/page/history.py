"""Traffic of the last minutes, a point a second: requests, times to first token, hits, what waits, what is refused.

Rates come from counters and are exact. Times and hits come from a sample of the decisions, at most so many a second,
followed until they end: at 1,000 decisions a second a fifth of them.
"""

from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, Final

from extproc.core.exchange import Exchange
from extproc.core.states import BAD_REQUEST, NO_CANDIDATE, NOT_ADMITTED, TOO_LARGE, UNKNOWN_MODEL
from extproc.io.records import Records

#: Points that are kept, one a second.
POINTS: Final = 300
#: Decisions a second that are followed to their end, and at most at once.
_A_SECOND: Final = 200
_FOLLOWED: Final = 5000
#: Seconds until one is given up: what ends later tells of a time long gone.
_PATIENCE: Final = 120

#: How exchanges that were sent nowhere were dealt with.
_REFUSALS: Final = frozenset({NO_CANDIDATE, BAD_REQUEST, TOO_LARGE, UNKNOWN_MODEL, NOT_ADMITTED})

#: Requests that are open now, that wait for a replica (late binding), and that wait for room (admission).
Waiting = Callable[[], tuple[int, int, int]]


class History:
    """The last minutes.

    Args:
        records: where decisions are kept.
        outcomes: exchanges so far by outcome and why.
        waiting: what waits now.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        records: Records,
        outcomes: Callable[[], Mapping[tuple[str, ...], float]],
        waiting: Waiting,
        wall: Callable[[], float],
    ) -> None:
        self._records = records
        self._outcomes = outcomes
        self._waiting = waiting
        self._wall = wall
        self._seen = records.count
        self._before: dict[tuple[str, ...], float] = {}
        self._at = wall()
        self._followed: deque[tuple[float, Exchange]] = deque()
        self.points: deque[dict[str, Any]] = deque(maxlen=POINTS)

    def tick(self) -> None:
        """Note one more point; called once a second."""
        at = self._wall()
        spent = max(at - self._at, 0.001)
        fresh = self._records.count - self._seen
        self._follow(fresh, at)
        self._at, self._seen = at, self._records.count
        is_open, held, queued = self._waiting()
        self.points.append(
            {
                "at": round(at, 1),
                "decisions": round(fresh / spent, 1),
                "refused": {why: round(n / spent, 2) for why, n in self._refused().items()},
                "open": is_open,
                "held": held,
                "queued": queued,
                **self._ended(at),
            }
        )

    def _refused(self) -> dict[str, float]:
        """Exchanges since the last point that were not sent anywhere, by why."""
        now = dict(self._outcomes())
        fresh = {key: count - self._before.get(key, 0.0) for key, count in now.items()}
        self._before = now
        found: dict[str, float] = {}
        for (outcome, why), count in fresh.items():
            if count and outcome in _REFUSALS:
                name = f"{outcome}: {why}" if why else outcome
                found[name] = found.get(name, 0.0) + count
        return found

    def _follow(self, fresh: int, at: float) -> None:
        step = max(-(-fresh // _A_SECOND), 1)
        for place, (_, kept) in enumerate(self._records.newest(fresh)):
            if place % step == 0:
                self._followed.append((at, kept[0]))
        while len(self._followed) > _FOLLOWED:
            self._followed.popleft()

    def _ended(self, at: float) -> dict[str, Any]:
        """Of those followed that ended since: mean and P95 of the time to first token, share of prompts found."""
        firsts, prompt, cached, left = [], 0, 0, deque[tuple[float, Exchange]]()
        for since, exchange in self._followed:
            if not exchange.over:
                if at - since < _PATIENCE:
                    left.append((since, exchange))
                continue
            first = first_token(exchange)
            if first is not None:
                firsts.append(first)
            usage = exchange.ending and exchange.ending.usage
            if usage and usage.input and usage.cached is not None:
                prompt, cached = prompt + usage.input, cached + usage.cached
        self._followed = left
        firsts.sort()
        return {
            "ttft": round(fmean(firsts), 4) if firsts else None,
            "ttft_p95": round(firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))], 4) if firsts else None,
            "hit": round(cached / prompt, 4) if prompt else None,
        }


def first_token(exchange: Exchange) -> float | None:
    """Seconds from the decision, waiting included, to the first token; None where nothing told."""
    ending, decision = exchange.ending, exchange.decision
    if ending is None or decision is None or ending.first_token is None:
        return None
    return ending.first_token - decision.at + exchange.waited
