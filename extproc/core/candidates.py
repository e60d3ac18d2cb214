"""Which replicas a decision looks at, and which of them may be chosen.

A small fleet is looked at whole. Of a large one, a policy that takes the least of a cost (`sampled`) looks at the
replicas that hold most of the prompt and at a part of the others, so that a decision in a fleet of a thousand costs
hardly more than in one of a hundred. The best of 64 out of a thousand is on average among the best 1.5 % of them, and
several gateways that look at different parts don't all send to the same idle replica.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from extproc.core.fleet import SLOW, SOFT, Replica
from extproc.core.lifecycle import WARMING
from extproc.core.policies.base import Rng

#: Largest fleet that is looked at whole, and how many of a larger one are looked at beside the holders.
WHOLE: Final = 64
#: Most holders looked at; those that hold most come first.
HOLDERS: Final = 32


class Found(NamedTuple):
    """Replicas that may be chosen; those looked at that may not, with why; and what was out of order, or ""."""

    replicas: Sequence[Replica]
    excluded: Sequence[tuple[Replica, str]]
    trouble: str


class Ring:
    """A large fleet in an order that has nothing to do with its addresses, and its replicas by their slots."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self._order = sorted(replicas, key=lambda replica: xxh3_64_intdigest(replica.address.encode()))
        self._by_slot = {replica.slot: replica for replica in self._order}

    def reach(self, held: dict[int, float], rng: Rng) -> list[Replica]:
        """WHOLE replicas from a random place on, and the HOLDERS that hold most.

        `held` is slot -> tokens; of several chains' holders, those that came last hold most, as a rule.
        """
        order = self._order
        start = int(rng.random() * len(order))
        found = order[start : start + WHOLE]
        if len(found) < WHOLE:
            found += order[: WHOLE - len(found)]
        if held:
            there = {replica.slot for replica in found}
            by_slot = self._by_slot
            found += [by_slot[slot] for slot in islice(reversed(held), HOLDERS) if slot not in there]
        return found


def usable(looked_at: Sequence[Replica], rng: Rng, now: float) -> Found:
    """Those that may be chosen. What warms up or is slow stands for its share of the requests only.

    If nobody is left, those passed over for their share serve, then stale ones (R8), and then those that are only
    rather not chosen (SOFT): a replica that may be ill is a better answer than none. Drained and sleeping ones never.
    """
    found = [
        r
        for r in looked_at
        if r.barred is None and now < r.fresh_until and (r.share >= 1.0 or rng.random() < r.share)
    ]
    if len(found) == len(looked_at):
        return Found(looked_at, (), "")
    chosen = set(map(id, found))
    excluded = [(r, r.excluded(now) or _passed_over(r)) for r in looked_at if id(r) not in chosen]
    trouble = ""
    if not found:
        found = [r for r in looked_at if r.excluded(now) is None]
    if not found:
        found = [r for r in looked_at if r.barred is None]
        trouble = "all_stale" if found else ""
    if not found:
        found = [r for r in looked_at if r.barred in SOFT]
        trouble = "last_resort" if found else ""
    return Found(found, excluded, trouble)


def _passed_over(replica: Replica) -> str:
    """Why a replica that may be chosen is no candidate this time: it stands for a share of the requests only."""
    return WARMING if replica.life.state == WARMING else SLOW
