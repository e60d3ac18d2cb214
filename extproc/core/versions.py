"""Versions of a model: which one a conversation gets, by weights that change while it runs.

A conversation is known by a hash of its beginning, so every gateway and every turn comes to the same version, and
nothing is remembered. It is weighted rendezvous hashing: each version draws an exponential time from the hash,
divided by its weight, and the shortest wins. A version's share is its weight's, and a weight that changes moves
conversations only to or from that version (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998; the logarithm: Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log

from xxhash import xxh3_64_intdigest

from extproc.core.prompt import Prompt
from extproc.core.routes import Route

#: Weights lie between 0 and this.
MOST_WEIGHT = 100.0
_HALF_STEP = 2.0**-65
_STEP = 2.0**-64

#: Version -> weight.
Weights = Mapping[str, float]


def root_of(prompt: Prompt | None) -> int | None:
    """What stands for a prompt's conversation; None where nothing is known of it."""
    if prompt is None or not prompt.chains:
        return None
    hashes = prompt.chains[0].hashes
    return hashes[prompt.root] if prompt.root < len(hashes) else hashes[-1]


def pick(root: int, takers: Sequence[Route], weights: Weights) -> Route:
    """The version of a conversation. Those that `weights` does not name have the weight of their route.

    The first taker where every weight is 0.
    """
    best, shortest = takers[0], None
    key = root.to_bytes(8, "little")
    for route in takers:
        weight = weights.get(route.version, route.weight)
        if weight <= 0:
            continue
        drawn = xxh3_64_intdigest(key, _salt(route.version)) * _STEP + _HALF_STEP  # in (0, 1)
        time = -log(drawn) / weight
        if shortest is None or time < shortest:
            best, shortest = route, time
    return best


@lru_cache(maxsize=1024)
def _salt(version: str) -> int:
    return xxh3_64_intdigest(version.encode())


def stable(states: Sequence[Weights]) -> str:
    """The version that the others of a model are to take over from.

    It is the last one that had all of the weight, however much of it has gone to others since: a canary stays one
    until it is given everything. Before any had all, it is the one of most weight to begin with, the first of
    several; and the one of most weight now, where it has none itself.

    Args:
        states: the weights that the model had, the oldest first, and those that it has; not empty.
    """
    now = states[-1]
    found = max(states[0], key=lambda version: states[0][version])
    for weights in states:
        positive = [version for version, weight in weights.items() if weight > 0]
        if len(positive) == 1:
            found = positive[0]
    return found if now.get(found, 0.0) > 0 else max(now, key=lambda version: now[version])


def shares(weights: Weights) -> dict[str, float]:
    """Each version's share of the conversations, 0..1."""
    whole = sum(weights.values())
    return {version: weight / whole if whole else 0.0 for version, weight in weights.items()}
