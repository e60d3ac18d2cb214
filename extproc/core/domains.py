"""What fails together: fallbacks are chosen outside the failure domain of those before them, where that is known.

A domain is what the configuration or a label of discovery says of a replica, else its host: ranks of one engine, or
engines on one machine, are addresses that differ in the port alone (they are one failure domain, not several).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from extproc.core.fleet import Replica


class Domains:
    """The failure domains of a pool.

    Args:
        listed: address -> domain, as the configuration says.

    Attributes:
        matter: whether there are several, and some with several replicas; else any order is as good.
    """

    __slots__ = ("_counts", "_listed", "_of", "_told", "matter")

    def __init__(self, listed: Mapping[str, str] | None = None) -> None:
        self._listed = dict(listed or {})
        self._told: dict[str, str] = {}
        self._of: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self.matter = False

    def of(self, address: str) -> str:
        """The domain of a replica."""
        return self._listed.get(address) or self._told.get(address) or address.rpartition(":")[0]

    def join(self, address: str) -> None:
        """A replica joins; one that is there already changes nothing."""
        if address not in self._of:
            self._of[address] = domain = self.of(address)
            self._counts[domain] += 1
            self._judge()

    def leave(self, address: str) -> None:
        """A replica leaves."""
        domain = self._of.pop(address, None)
        if domain is not None:
            self._counts[domain] -= 1
            if not self._counts[domain]:
                del self._counts[domain]
            self._judge()

    def found(self, told: Iterable[tuple[str, str]]) -> None:
        """Discovery names the domains of replicas, all of those that it knows."""
        self._told = dict(told)
        self._of = {address: self.of(address) for address in self._of}
        self._counts = Counter(self._of.values())
        self._judge()

    def spread(self, order: list[int], candidates: Sequence[Replica], scores: Sequence[float]) -> list[int]:
        """As many picks, the first the same; each further one is the best outside the domains before it.

        Where all domains had one, the best that is left. `order` and `scores` are a policy's answer: without scores
        only those in the order are known to be any good.
        """
        known = [self._of.get(candidates[i].address, "") for i in order]
        if len(set(known)) == len(known):
            return order
        ranked = order[1:]
        if scores:
            ranked = sorted((i for i in range(len(scores)) if i != order[0]), key=scores.__getitem__)
        return _spread(
            order[0], ranked, [self._of.get(replica.address, "") for replica in candidates], len(order)
        )

    def _judge(self) -> None:
        self.matter = 1 < len(self._counts) < len(self._of)


def _spread(first: int, ranked: list[int], domains: Sequence[str], picks: int) -> list[int]:
    order, had, passed = [first], {domains[first]}, []
    for i in ranked:
        if len(order) == picks:
            return order
        if domains[i] in had:
            passed.append(i)
        else:
            order.append(i)
            had.add(domains[i])
    return (order + passed)[:picks]
