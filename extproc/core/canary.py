"""How the versions of a model do, side by side, and when one is worse than the one with the most weight.

Both comparisons ask the same: is a share of one version's requests above a bound, for more than chance? The bound on
errors is the other's share of errors and a margin; that on the time to first token is one of a hundred above the
other's 99th percentile and a margin. For more than chance: the lower end of Wilson's score interval (E. B. Wilson,
"Probable inference, the law of succession, and statistical inference", 1927) is above it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final, NamedTuple

from extproc.core.ending import CLIENT, GATEWAY, UNKNOWN, UPSTREAM, Ending
from extproc.core.versions import Weights

#: Standard deviations for which chance is allowed: one in two hundred is above by chance at one look. Looks repeat,
#: so it is more over an hour, for a version that is just at the margin; one that is as good stays far below it.
_Z: Final = 2.58
#: Share of requests that are above the 99th percentile by its meaning.
_TAIL: Final = 0.01
#: Most requests of a version that are looked at, the last ones.
_MOST: Final = 4096


@dataclass(slots=True, frozen=True, kw_only=True)
class Guard:
    """When a version steps back.

    Attributes:
        errors: how much larger its share of errors may be, 0..1.
        ttft: how much longer its 99th percentile of times to first token may be, as a part of the other's.
        least: requests of each that are needed to compare them.
        window: seconds that are looked back.
    """

    errors: float = 0.02
    ttft: float = 0.5
    least: int = 20
    window: float = 60.0


class Numbers(NamedTuple):
    """What was seen of a version lately: requests whose end is known, errors, and times to first token in seconds."""

    requests: int
    errors: int
    ttfts: list[float]

    @property
    def p99(self) -> float | None:
        """Of the times to first token; None without any."""
        return _p99(sorted(self.ttfts)) if self.ttfts else None


class Tally:
    """The last requests of one version.

    Attributes:
        requests, errors: since the start, of those whose end is known.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[float, bool | None, float | None]] = deque(maxlen=_MOST)
        self.requests = 0
        self.errors = 0

    def add(self, now: float, failed: bool | None, ttft: float | None) -> None:
        """A request ended: whether it failed, and its time to first token in seconds; None for what is not known."""
        self._last.append((now, failed, ttft))
        if failed is not None:
            self.requests += 1
            self.errors += failed

    def numbers(self, now: float, window: float) -> Numbers:
        """What the last `window` seconds show."""
        while self._last and now - self._last[0][0] > window:
            self._last.popleft()
        ends = [failed for _, failed, _ in self._last if failed is not None]
        ttfts = [ttft for _, _, ttft in self._last if ttft is not None]
        return Numbers(len(ends), sum(ends), ttfts)

    def clear(self) -> None:
        """Begin anew: the version was given another share."""
        self._last.clear()


class StepBack(NamedTuple):
    """A version that is to get nothing more, and why."""

    model: str
    version: str
    stable: str
    why: str


class Watch:
    """The tallies of all versions, by model and version."""

    def __init__(self) -> None:
        self.tallies: dict[str, dict[str, Tally]] = {}

    def ended(self, model: str, version: str, ending: Ending | None, sent: float, now: float) -> None:
        """A request of a version ended that was sent at `sent`."""
        if ending is None:
            return
        tally = self.tallies.setdefault(model, {}).setdefault(version, Tally())
        first = ending.first_token
        tally.add(now, _failed(ending), None if first is None else max(first - sent, 0.0))

    def anew(self, model: str) -> None:
        """The weights of a model changed: what was before says nothing of what comes."""
        for tally in self.tallies.get(model, {}).values():
            tally.clear()

    def step_backs(self, weights: Mapping[str, Weights], guard: Guard, now: float) -> list[StepBack]:
        """Versions that are worse than the one of their model with the most weight."""
        found = []
        for model, shares in weights.items():
            tallies = self.tallies.get(model, {})
            stable = max(shares, key=lambda version: shares[version])
            if stable not in tallies:
                continue
            good = tallies[stable].numbers(now, guard.window)
            for version, weight in shares.items():
                if version != stable and weight > 0 and version in tallies:
                    why = worse(tallies[version].numbers(now, guard.window), good, guard)
                    if why:
                        found.append(StepBack(model, version, stable, why))
        return found


def worse(canary: Numbers, stable: Numbers, guard: Guard) -> str:
    """Why a version is worse than another one, in words with numbers; "" where it is not, or too little is known."""
    if min(canary.requests, stable.requests) >= guard.least:
        bound = stable.errors / stable.requests + guard.errors
        if surely_above(canary.errors, canary.requests, bound):
            return (
                f"errors {canary.errors} of {canary.requests} against {stable.errors} of {stable.requests}, "
                f"more than {guard.errors:.1%} above"
            )
    if min(len(canary.ttfts), len(stable.ttfts)) >= guard.least:
        limit = _p99(sorted(stable.ttfts)) * (1 + guard.ttft)
        if surely_above(sum(ttft > limit for ttft in canary.ttfts), len(canary.ttfts), _TAIL):
            return (
                f"P99 of the time to first token {canary.p99:.3f} s against {stable.p99:.3f} s, more than "
                f"{guard.ttft:.0%} above"
            )
    return ""


def surely_above(hits: int, of: int, bound: float) -> bool:
    """Whether a share is above a bound for more than chance: the lower end of Wilson's interval is."""
    if not of:
        return False
    share, z2 = hits / of, _Z * _Z
    middle = share + z2 / (2 * of)
    spread = _Z * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return (middle - spread) / (1 + z2 / of) > bound


def _p99(ordered: list[float]) -> float:
    """The nearest-rank percentile."""
    return ordered[ceil(0.99 * len(ordered)) - 1]


def _failed(ending: Ending) -> bool | None:
    """Whether a request failed by its replica's doing; None where that is not known, or the client left."""
    if ending.by == CLIENT:
        return None
    if ending.by == UPSTREAM or (ending.status is not None and ending.status >= 500):
        return True
    if ending.by == GATEWAY and ending.status is None:  # none of its replicas could be chosen
        return True
    return None if ending.by == UNKNOWN and ending.status is None else False
