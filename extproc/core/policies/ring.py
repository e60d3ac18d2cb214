"""Consistent hashing with bounded loads, for any policy.

Every replica has `NODES` points on a ring of 64-bit numbers; a key belongs to the replica of the next point. When
one of N replicas leaves, only its own share, 1/N of the keys, goes elsewhere (Karger et al. 1997). With bounded
loads (Mirrokni, Thorup, Zadimoghaddam 2016) a key passes over replicas that hold more than `factor` times the mean.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from extproc.core.fleet import Replica
from extproc.core.policies.base import Places
from extproc.core.policies.hashing import MASK, address_seed, mixed

#: Points of a replica. The shares of replicas differ by about 1 / sqrt(NODES): 8 %.
NODES: Final = 160
#: The increment of splitmix64: seed + k * this, mixed, is its k-th number.
_GOLDEN = 0x9E3779B97F4A7C15
#: Replicas that are away but keep their points, so that one that is stale for a moment costs nothing.
_MOST_ABSENT = 256


class Ring:
    """The ring of one pool, kept while the fleet is the same. A replica is its address."""

    __slots__ = ("_members", "_owners", "_places", "_points", "place")

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._points: list[int] = []
        self._owners: dict[int, str] = {}
        self._places = Places()
        #: Address -> index of each candidate, as of `follow`.
        self.place: dict[str, int] = {}

    def __len__(self) -> int:
        """Points on the ring."""
        return len(self._points)

    def follow(self, replicas: Sequence[Replica]) -> None:
        """Take these as the candidates. Costs next to nothing while they are the same as before."""
        place = self._places.of(replicas)
        if place is not self.place:
            self.place = place
            self._bring_up_to_date()

    def walk(self, key: int) -> Iterator[int]:
        """Indices of the candidates in the order in which the ring names them for `key`, each once."""
        points, owners, place = self._points, self._owners, self.place
        seen: set[str] = set()
        at = bisect_right(points, mixed(key))
        for step in range(at - len(points), at):  # negative: from there to the end of the ring
            owner = owners[points[step]]
            if owner not in seen and owner in place:
                seen.add(owner)
                yield place[owner]
                if len(seen) == len(place):
                    return

    def _bring_up_to_date(self) -> None:
        place = self.place
        members = self._members
        most = max(len(place), _MOST_ABSENT)
        if len(members) > most and len(members - place.keys()) > most:
            members.intersection_update(place)
            self._owners = {point: owner for point, owner in self._owners.items() if owner in members}
            self._points = sorted(self._owners)
        new = [address for address in place if address not in members]
        if new:
            members.update(new)
            for address in new:
                self._add(address)
            self._points.sort()  # quick, as nearly all of it is in order

    def _add(self, address: str) -> None:
        seed = address_seed(address)
        for k in range(1, NODES + 1):
            point = mixed(seed + k * _GOLDEN & MASK)
            if point not in self._owners:
                self._owners[point] = address
                self._points.append(point)


def bound_of(loads: Sequence[float], factor: float, least: float) -> float:
    """Most requests a replica may hold, with the next one: `factor` times the mean then, and always `least`."""
    return max(math.ceil(factor * (sum(loads) + 1) / len(loads)), least)


def within(walk: Iterable[int], loads: Sequence[float], bound: float, picks: int) -> list[int]:
    """Up to `picks` of `walk`, those first that may take one more request; the first always may if any does."""
    able: list[int] = []
    full: list[int] = []
    for i in walk:
        (able if loads[i] + 1 <= bound else full).append(i)
        if able and len(able) + len(full) >= picks:
            break
    return (able + full)[:picks]
