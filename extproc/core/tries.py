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
It does so as far as Envoy goes by it. Whom Envoy knows can't be asked, but is seen: a first try that went elsewhere
than to the list's first passed that one over, as it will again. Who was passed over is taken out of the list, until
it answers or for `_BELIEVED`. Everybody else is taken for known. Where that is wrong, a replica that Envoy sends
nothing to may be blamed, which costs nobody a request; to ask for proof would keep one in that fails from its first
request on.
"""

from itertools import cycle, islice, takewhile
from typing import Final

from extproc.core.decide import Decision
from extproc.core.fleet import SLOW, SOFT, STALE, Replica
from extproc.core.ranks import count_of

#: Why a replica is no candidate and may still be tried when all picks failed.
_STILL_TRIED: Final = SOFT | {SLOW, STALE}
#: Seconds for which a replica that was passed over once is believed to be: Envoy hears of new ones within some.
_BELIEVED: Final = 60.0


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

    Where the list and what Envoy tells do not agree nobody can be named: it skipped one that was not seen to be
    passed over. Its own choice after the list's end can be anybody; where it is one of the list, that one alone is
    known to have been tried before.

    Args:
        most: as for `tries`.
        served: ip:port; "" for unknown.
        attempts: at least 1.
    """
    order, before = [r for r in tries(decision, most) if not _is_passed_over(r, decision.at)], attempts - 1
    if before < len(order):
        return order[:before] if order[before].address == served else []
    return ([r for r in order if r.address == served] or order) if served else []


def passed_over(decision: Decision, most: int, served: str) -> list[Replica]:
    """Whom Envoy did not try at all, as its first try, and no other, went to `served` (ip:port, known).

    It does not know them, or holds them for unfit by itself.
    """
    return list(takewhile(lambda replica: replica.address != served, tries(decision, most)))


def _is_passed_over(replica: Replica, at: float) -> bool:
    since = replica.passed_over
    return since > replica.breaker.well_from and at - since < _BELIEVED
