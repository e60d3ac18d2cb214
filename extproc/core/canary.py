"""How the versions of a model do, side by side, and when one is worse than the one that it is to take over from.

All comparisons ask the same: is a share of one version's requests above a bound, for more than chance? The bound on
errors is the other's share of errors and a margin, likewise that on requests whose clients left without an answer;
that on the time to first token is one of a hundred above the other's 99th percentile and a margin. For more than
chance: the lower end of Wilson's score interval (E. B. Wilson, "Probable inference, the law of succession, and
statistical inference", 1927) is above it.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
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
#: Statuses below 500 that a request's content hardly brings about: a name that the engine does not serve, a key that
#: it does not take, no room. 400 and the like are the client's, who may send one bad request a hundred times.
_REFUSED: Final = frozenset({401, 403, 404, 408, 429})


@dataclass(slots=True, frozen=True, kw_only=True)
class Guard:
    """When a version steps back.

    Attributes:
        errors: how much larger its share of errors may be, and that of clients who left without an answer, 0..1.
        ttft: how much longer its 99th percentile of times to first token may be, as a part of the other's.
        least: requests of each that are needed to compare them.
        window: seconds that are looked back.
    """

    errors: float = 0.02
    ttft: float = 0.5
    least: int = 20
    window: float = 60.0


class Numbers(NamedTuple):
    """What was seen of a version lately.

    Attributes:
        requests: those whose end is known.
        errors: of them.
        ttfts: times to first token, in seconds.
        left: further ones, whose clients left before anything of an answer came.
    """

    requests: int
    errors: int
    ttfts: list[float]
    left: int = 0

    @property
    def p99(self) -> float | None:
        """Of the times to first token; None without any."""
        return _p99(sorted(self.ttfts)) if self.ttfts else None


class Tally:
    """The last requests of one version.

    Attributes:
        requests, errors: since the start, of those whose end is known.
        before: what was seen just before its model's weights changed last; None where they never did.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[float, bool | None, float | None, bool]] = deque(maxlen=_MOST)
        self.requests = 0
        self.errors = 0
        self.before: Numbers | None = None

    def add(self, now: float, failed: bool | None, ttft: float | None, *, left: bool = False) -> None:
        """A request ended: whether it failed, and its time to first token in seconds; None for what is not known.

        `left`: its client did so before anything of an answer came.
        """
        self._last.append((now, failed, ttft, left))
        if failed is not None:
            self.requests += 1
            self.errors += failed

    def numbers(self, now: float, window: float) -> Numbers:
        """What the last `window` seconds show."""
        while self._last and now - self._last[0][0] > window:
            self._last.popleft()
        ends = [failed for _, failed, _, _ in self._last if failed is not None]
        ttfts = [ttft for _, _, ttft, _ in self._last if ttft is not None]
        return Numbers(len(ends), sum(ends), ttfts, sum(left for *_, left in self._last))

    def anew(self, now: float, window: float) -> None:
        """Begin anew, and keep what the last `window` seconds showed: the version was given another share."""
        self.before = self.numbers(now, window)
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
        ttft = None if first is None else max(first - sent, 0.0)
        left = ending.by == CLIENT and ending.status is None and first is None
        tally.add(now, _failed(ending), ttft, left=left)

    def anew(self, model: str, now: float, window: float) -> None:
        """The weights of a model changed: what was before says nothing of what comes."""
        for tally in self.tallies.get(model, {}).values():
            tally.anew(now, window)

    def step_backs(
        self, weights: Mapping[str, Weights], stables: Mapping[str, str], guard: Guard, now: float
    ) -> list[StepBack]:
        """A version of each model that is worse than the stable one, or than one of most weight; at most one of each.

        Args:
            stables: the version of each model that the others are to take over from (`core/versions.py`). A canary is
                compared with it also when it has most; and it with the others when it has least.
            now: seconds, on the clock of `ended`.
        """
        found = []
        for model, shares in weights.items():
            most = max(shares.values())
            good = [
                version for version, weight in shares.items() if weight == most or version == stables[model]
            ]
            if (worst := self._worst(model, shares, good, guard, now)) is not None:
                found.append(worst)
        return found

    def _worst(
        self, model: str, shares: Weights, good: list[str], guard: Guard, now: float
    ) -> StepBack | None:
        seen = {
            version: tally.numbers(now, guard.window)
            for version, tally in self.tallies.get(model, {}).items()
            if shares.get(version, 0.0) > 0
        }
        for version, other in product(seen, good):
            if version != other and other in seen and (why := worse(seen[version], seen[other], guard)):
                return StepBack(model, version, other, why)
        return None


def worse(canary: Numbers, stable: Numbers, guard: Guard) -> str:
    """Why a version is worse than another one, in words with numbers; "" where it is not, or too little is known."""
    if min(canary.requests, stable.requests) >= guard.least:
        bound = stable.errors / stable.requests + guard.errors
        if surely_above(canary.errors, canary.requests, bound):
            return (
                f"errors {canary.errors} of {canary.requests} against {stable.errors} of {stable.requests}, "
                f"more than {guard.errors:.1%} above"
            )
    asked, others = canary.requests + canary.left, stable.requests + stable.left
    if min(asked, others) >= guard.least and surely_above(
        canary.left, asked, stable.left / others + guard.errors
    ):
        return (
            f"left by their clients without an answer {canary.left} of {asked} against {stable.left} of {others}, "
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
    if ending.by == UPSTREAM:
        return True
    if ending.status is not None and (ending.status >= 500 or ending.status in _REFUSED):
        return True
    if ending.by == GATEWAY and ending.status is None:  # none of its replicas could be chosen
        return True
    return None if ending.by == UNKNOWN and ending.status is None else False
