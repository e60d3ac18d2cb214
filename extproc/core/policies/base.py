"""What a policy is asked, what it answers, and the parts all of them share."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from extproc.core.fleet import Replica
from extproc.core.outlook import Outlook
from extproc.core.prompt import TOKENS_PER_BYTE, Prompt


class Rng(Protocol):
    """The random numbers a policy may draw; `random.Random` fits."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Ask:
    """One question to a policy: columns over the candidates, all of one length of at least 1.

    Attributes:
        replicas: the candidates.
        cached: prompt tokens each is believed to hold.
        tokens: prompt tokens of the request.
        output: output tokens expected of it.
        rho: how busy the pool is with prompts, 0..1.
        now: seconds, monotonic.
        prompt: the request; None when it has none that can be read.
        per_doubling: 1 / (2 * the position in tokens where computing a prompt token costs twice as much).
        ratio: tokens that one byte of the prompt makes, above 0 when there is one: `cached` / `ratio` is an end in
            its chain.
        fill: slot of a replica -> share of its cache that is believed taken, 0..1.
        is_even: whether it is known that every candidate has the bias 1; False when nobody looked.
        may_be_crowded: False where it is known that none is (`Replica.crowded`); True when nobody looked.
        whole: what is kept of the fleet, where the candidates are all of it, in its order, and `is_even` holds; else
            None. Its `loads` are theirs.
        extra: seconds each candidate costs on top, whatever the policy finds (core/adapters.py); None for none.
        holders: where in `cached` there is more than 0, in any order; None when nobody looked.
    """

    __slots__ = (
        "cached",
        "extra",
        "fill",
        "holders",
        "is_even",
        "may_be_crowded",
        "now",
        "output",
        "per_doubling",
        "prompt",
        "ratio",
        "replicas",
        "rho",
        "tokens",
        "whole",
    )

    def __init__(
        self,
        replicas: Sequence[Replica],
        cached: Sequence[float],
        tokens: float,
        output: float,
        rho: float,
        now: float,
        prompt: Prompt | None = None,
        per_doubling: float = 0.0,
        ratio: float = TOKENS_PER_BYTE,
        fill: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self.replicas = replicas
        self.cached = cached
        self.tokens = tokens
        self.output = output
        self.rho = rho
        self.now = now
        self.prompt = prompt
        self.per_doubling = per_doubling
        self.ratio = ratio
        self.fill = fill
        self.is_even = False
        self.may_be_crowded = True
        self.whole: Outlook | None = None
        self.extra: Sequence[float] | None = None
        self.holders: Sequence[int] | None = None


class Choice:
    """A policy's answer: candidates' indices, best first, with the scores behind it.

    `order` has at least one entry. `scores` is a column over the candidates (lower is better) or empty;
    `parts` names further columns for the record, e.g. {"backlog": [...]} in seconds.
    """

    __slots__ = ("_parts", "_scores", "order", "reason")

    def __init__(
        self, order: list[int], scores: Sequence[float], reason: str, parts: dict[str, Sequence[float]]
    ) -> None:
        self.order = order
        self.reason = reason
        self._scores = scores
        self._parts = parts

    @property
    def scores(self) -> Sequence[float]:
        """A column over the candidates, or empty."""
        return self._scores

    @property
    def parts(self) -> dict[str, Sequence[float]]:
        """Further columns by name."""
        return self._parts


class Policy(Protocol):
    """Chooses among candidates. Called once a request; keeps only state that is its own.

    One that is content with a part of a large fleet says so with a class attribute `sampled = True`: it is then
    asked about those that hold most of the prompt and a random part of the others (core/candidates.py).
    """

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """Name up to `picks` candidates, best first."""
        ...


def lowest(scores: Sequence[float], picks: int, rng: Rng, near: float = 0.0) -> list[int]:
    """Indices of the `picks` lowest scores, best first; scores within `near` of the best tie at random (R18)."""
    ranked = sorted(scores)
    order = _places_of(ranked[:picks], scores)
    limit = ranked[0] + near
    if len(ranked) > 1 and ranked[1] <= limit:
        return drawn_first([i for i, score in enumerate(scores) if score <= limit], order, picks, rng)
    return order


def drawn_first(ties: list[int], order: list[int], picks: int, rng: Rng) -> list[int]:
    """One of `ties`, in rising order, by chance; then the others of `order`, the best first; `picks` in all."""
    return _led(ties[int(rng.random() * len(ties))], order, picks)


def led_by(first: int, scores: Sequence[float], picks: int) -> list[int]:
    """`first` and then the lowest scores of the others, `picks` indices in all."""
    return _led(first, _places_of(sorted(scores)[:picks], scores), picks)


def _places_of(ranked: list[float], scores: Sequence[float]) -> list[int]:
    """Where some scores stand, which come in rising order; equal ones stand one after the other.

    Plain numbers sort several times as fast as indices with a key, and only few places are asked for.
    """
    places: list[int] = []
    before = None
    for score in ranked:
        places.append(scores.index(score, places[-1] + 1) if score == before else scores.index(score))
        before = score
    return places


def _led(first: int, ranked: list[int], picks: int) -> list[int]:
    """`first`, then the others of `ranked`, which are `picks` at most."""
    return [first, *[i for i in ranked if i != first]][:picks]


def best_of_less(order: list[int], scores: Sequence[float], cached: Sequence[float]) -> int | None:
    """The best candidate that holds less of the prompt than `order[0]` does; None when all hold as much.

    `order` goes on with the best of the others, so one of those few is nearly always it.
    """
    held = cached[order[0]]
    for i in order[1:]:
        if cached[i] < held:
            return i
    others = [score if less < held else math.inf for score, less in zip(scores, cached, strict=True)]
    best = min(others)
    return others.index(best) if best < math.inf else None


def biased(costs: list[float], ask: Ask, rng: Rng) -> list[float]:
    """What each candidate is expected to cost, times its factor (core/bias.py).

    What favours a cold cache holds for one decision in as many as there are candidates: a replica that wins every
    near tie would take all requests of an idle pool. So it gets up to its fair share once more, which fills it.
    What a candidate costs on top (`Ask.extra`) is added first.
    """
    if ask.extra is not None:
        costs = [cost + more for cost, more in zip(costs, ask.extra, strict=True)]
    if ask.is_even:
        return costs
    factors = [replica.bias for replica in ask.replicas]
    if factors.count(1.0) == len(factors):
        return costs
    if rng.random() * len(factors) >= 1.0:
        factors = [replica.cost for replica in ask.replicas]
    return [cost * factor for cost, factor in zip(costs, factors, strict=True)]


def rotated(first: int, count: int, picks: int) -> list[int]:
    """`first` and those after it in a ring of `count`, as many as `picks`."""
    return [(first + step) % count for step in range(min(picks, count))]


def check_range(policy: str, name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless the setting `name` of a policy is within `low`..`high`; NaN is not."""
    if not low <= value <= high:
        raise ValueError(f"{policy}: {name} must be within {low:g}..{high:g}")


class Places:
    """Where each candidate stands: address -> index, kept while the candidates are the same ones."""

    __slots__ = ("_known", "_place")

    def __init__(self) -> None:
        self._known: Sequence[Replica] = ()
        self._place: dict[str, int] = {}

    def of(self, replicas: Sequence[Replica]) -> dict[str, int]:
        """The places of `replicas`; the same object as before for the same ones."""
        if self._known != replicas:  # replicas are equal only to themselves
            self._known = replicas
            self._place = {replica.address: i for i, replica in enumerate(replicas)}
        return self._place
