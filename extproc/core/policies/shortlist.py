"""charged_cost settled by a few candidates: those that hold some of the prompt, where all others must cost more.

Whoever holds none of a prompt costs at least what all of it takes on the fastest replica (`least`): waiting and
context only add to that. So holders that cost less are the best, and a replica with nothing to do, which costs just
that, comes next. Where these are as many as are to be named, nobody else need be looked at; what the others cost is
worked out when a record is read.
"""

import math
from collections.abc import Container, Sequence

from extproc.core.fleet import Replica
from extproc.core.outlook import Load, Outlook
from extproc.core.policies.base import Ask, Choice, Rng, best_of_less, drawn_first, led_by

#: Seconds that a candidate costs, and its place.
Known = list[tuple[float, int]]


class Shortlist(Choice):
    """A choice whose columns are not worked out before somebody reads them.

    Args:
        order: candidates, best first.
        known: the costs that were worked out, in rising order.
        loads: what was on each candidate (core/outlook.py); its own copy, as they change.
        now: the time of the decision.
        decode: the seconds charged for a full context.
        price: the work charged for all of the prompt, in tokens.
        least: the seconds that candidates which are not known cost at least.
    """

    __slots__ = ("_decode", "_known", "_least", "_loads", "_now", "_price")

    def __init__(
        self,
        order: list[int],
        known: Known,
        loads: Sequence[Load],
        now: float,
        decode: float,
        price: float,
        least: float,
    ) -> None:
        self.order = order
        self.reason = "least_cost"
        self._known = known
        self._loads = loads
        self._now = now
        self._decode = decode
        self._price = price
        self._least = least

    @property
    def scores(self) -> Sequence[float]:
        """Seconds of every candidate."""
        decode, price = self._decode, self._price
        costs = [
            ahead + decode * context + price / speed
            for ahead, (_, _, context, speed) in zip(self._backlogs(), self._loads, strict=True)
        ]
        for cost, place in self._known:
            costs[place] = cost
        return costs

    @property
    def parts(self) -> dict[str, Sequence[float]]:
        """Their backlogs, in seconds."""
        return {"backlog": self._backlogs()}

    def _backlogs(self) -> list[float]:
        now = self._now
        return [max(idle_at - now, floor) for idle_at, floor, _, _ in self._loads]

    def best_of_less(self, cached: Sequence[float]) -> tuple[int, float, int, float] | None:
        """The first of the order, and the best candidate that holds less of the prompt than it, each with its cost;
        None where all hold as much."""
        home, held = self.order[0], cached[self.order[0]]
        if held <= 0:
            return None
        best, place = self._known[0]
        for theirs, other in self._known:
            if theirs >= self._least and other not in self.order:
                break  # others may cost less
            if cached[other] < held:
                return home, best if place == home else self.scores[home], other, theirs
        scores = self.scores
        found = best_of_less(self.order, scores, cached)
        return None if found is None else (home, scores[home], found, scores[found])

    def copied(self, other: int, picks: int) -> None:
        """Choose this one first, to make a copy there."""
        self.order = led_by(other, self.scores, picks)
        self.reason = "copied"


def shortlisted(
    ask: Ask,
    whole: Outlook,
    holders: Sequence[int],
    charge: float,
    decode: float,
    picks: int,
    near: float,
    rng: Rng,
) -> Shortlist | None:
    """The choice among all, by the same draws, where those that hold some of the prompt settle it; else None.

    `charge` and `decode` as in policies/charged_cost.py; candidates within `near` seconds of the best tie with it.
    """
    missing = picks - len(holders)
    if missing > 0 and (not decode or whole.in_flight.count(0) < missing):
        return None  # where context costs nothing, replicas that answer may cost as little as idle ones
    tokens = ask.tokens
    work = tokens * (1.0 + tokens * ask.per_doubling)
    known = _costs(ask, holders, work, charge, decode)
    price, limit = charge * work, known[0][0] + near
    least = price / whole.fastest
    if limit >= least or known[-1 if missing > 0 else picks - 1][0] >= least:
        return None  # others may tie with the best, or come before the last
    order = [place for _, place in known[:picks]]
    if missing > 0:
        idle = _idle(whole, ask.replicas, holders, missing, ask.now)
        if idle is None:
            return None
        known += [(least, place) for place in idle]
        order += idle
    if len(known) > 1 and known[1][0] <= limit:
        ties = sorted([place for cost, place in known if cost <= limit])
        order = drawn_first(ties, order, picks, rng)
    return Shortlist(order, known, whole.loads.copy(), ask.now, decode, price, least)


def _costs(ask: Ask, holders: Sequence[int], work: float, charge: float, decode: float) -> Known:
    """What each of `holders` costs, in rising order; all of the prompt is so much `work`, in tokens."""
    now, half, cached, replicas = ask.now, ask.per_doubling, ask.cached, ask.replicas
    known: Known = []
    before = price = math.nan  # holders mostly come in groups that hold the same
    for place in holders:
        replica, held = replicas[place], cached[place]
        if held != before:
            before = held
            price = charge * (work - held * (1.0 + held * half))
        books = replica.books
        waits = books.idle_at - now
        if waits < books.floor:
            waits = books.floor
        known.append((waits + decode * replica.context + price / replica.prefill_speed, place))
    known.sort()
    return known


def _idle(
    whole: Outlook, replicas: Sequence[Replica], holders: Container[int], count: int, now: float
) -> list[int] | None:
    """The first `count` of the fastest replicas with nothing to do that are no holders; None for fewer.

    One that answers a request of no tokens costs as little, and is passed over: of equal ones behind holders any will
    do.
    """
    found: list[int] = []
    in_flight, place = whole.in_flight, -1
    for _ in range(in_flight.count(0)):
        if len(found) == count:
            break
        place = in_flight.index(0, place + 1)
        replica = replicas[place]
        books = replica.books
        is_idle = books.idle_at <= now and not books.floor and not replica.context
        if is_idle and replica.prefill_speed == whole.fastest and place not in holders:
            found.append(place)
    return found if len(found) == count else None
