"""Where each try of a request goes, so that Envoy never has to choose by itself.

Envoy goes through the list of endpoints that it is told, one for each try; tries beyond it are balanced over all of
its cluster, drained replicas included where Envoy hears of no drains. So the list is as long as there are tries:

    first    the policy's picks
    then     those that are only rather not chosen: passed over for their share, not heard lately, or in trouble
    last     the picks again, from the first on

A retry carries the first try's headers. So where they name a data-parallel rank, the list is of replicas that have
it.

"Same endpoint twice" was seen to be obeyed by Envoy 1.40, also with the retry predicate `previous_hosts`. Endpoints
that it does not know are skipped.

So the list says too who failed a request that another one served, which Envoy does not tell: it names the last alone.
"""

from itertools import cycle, islice
from typing import Final

from extproc.core.decide import Decision
from extproc.core.fleet import SLOW, SOFT, STALE, Replica
from extproc.core.ranks import count_of

#: Why a replica is no candidate and may still be tried when all picks failed.
_STILL_TRIED: Final = SOFT | {SLOW, STALE}


def tries(decision: Decision, most: int) -> list[Replica]:
    """Replicas in the order of the tries: the picks, and as many more as make `most`; without picks none.

    The decision's rank is chosen before, among those that all picks have.
    """
    order, needed = decision.order, 0 if decision.rank is None else decision.rank + 1
    lacking = most - len(order)
    if lacking <= 0 or not order:
        return order
    picked = set(map(id, order))
    rather_not = (r for r, why in decision.excluded if why in _STILL_TRIED and id(r) not in picked)
    spare = (r for r in rather_not if not needed or count_of(r) >= needed)
    longer = [*order, *islice(spare, lacking)]
    return [*longer, *islice(cycle(longer), most - len(longer))]


def destination(decision: Decision, most: int) -> str:
    """Their addresses, as the destination header and Envoy's metadata want them."""
    order = decision.order  # mostly long enough
    addresses = []
    for replica in order if len(order) >= most else tries(decision, most):
        addresses.append(replica.address)  # noqa: PERF401 - of so few half of what any other way takes, once a request
    return ",".join(addresses)


def failed(decision: Decision, most: int, served: str, attempts: int) -> list[Replica]:
    """Who failed a try of a request, as often as it did, where the last of so many attempts went to `served`.

    Where the list and what Envoy tells do not agree nobody can be named: it skipped one, or chose by itself.

    Args:
        most: as for `tries`.
        served: ip:port; "" for unknown.
        attempts: at least 1.
    """
    order, before = tries(decision, most), attempts - 1
    if before < len(order):
        return order[:before] if order[before].address == served else []
    return order if served and all(served != replica.address for replica in order) else []
