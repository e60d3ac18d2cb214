"""One request that waits for a replica, what it finds cached where, and the replicas as it sees them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from extproc.core.cost import prefill_work
from extproc.core.policies.charged_cost import ChargedCost
from extproc.core.pool import Pool
from extproc.core.prompt import Prompt


class Held:
    """One waiting request.

    Attributes:
        ahead: seconds by which it goes before others.
        base: uncached work on every replica that is not in `better`, the most it has on any, as of `looked_up`.
        better: places in `Pool.replicas` where it has less, and how much there.
        watch: hashes that, once placed somewhere, make more of it cached there.
        output: tokens of its answer to expect, as of then.
        yielded: since when room is left for it, when it is another gateway's.
    """

    __slots__ = (
        "ahead", "arrived", "base", "better", "is_own", "key", "looked_up", "output", "prompt", "tokens", "watch",
        "yielded",
    )  # fmt: skip

    def __init__(self, key: int, prompt: Prompt, arrived: float, tokens: int, is_own: bool) -> None:
        self.key = key
        self.prompt = prompt
        self.arrived = arrived
        self.tokens = tokens
        self.is_own = is_own
        self.base = self.output = self.ahead = 0.0
        self.better: list[tuple[int, float]] = []
        self.looked_up = -math.inf
        self.yielded = math.inf
        self.watch: set[int] = set()


class View(NamedTuple):
    """The replicas at one moment, for answers of one length.

    `backlogs`: seconds ahead, infinity where excluded. `costs`: these and the other costs. `rates`: seconds for a
    unit of work, and `charged` what they cost. `front`: places that may be best for work that is the same everywhere.
    """

    backlogs: Sequence[float]
    costs: list[float]
    rates: list[float]
    charged: list[float]
    front: list[int]

    def is_sooner(self, held: Held, there: int) -> bool:
        """Whether a request's prompt would be computed sooner there than on its best replica, or that one is it."""
        best, work = self.best(held)
        less = next((less for i, less in held.better if i == there), held.base)
        here = self.backlogs[best] + work * self.rates[best]
        return best == there or self.backlogs[there] + less * self.rates[there] < here

    def best(self, held: Held) -> tuple[int, float]:
        """The replica with the least charged cost, and the uncached work there."""
        costs, charged, front = self.costs, self.charged, self.front
        best, work = front[0], held.base
        least = costs[best] + charged[best] * work
        for i in front[1:]:
            cost = costs[i] + charged[i] * work
            if cost < least:
                best, least = i, cost
        for i, less in held.better:
            cost = costs[i] + charged[i] * less
            if cost < least:
                best, least, work = i, cost, less
        return best, work


def views_of(
    pool: Pool, policy: ChargedCost, backlogs: Sequence[float], now: float
) -> Callable[[float], View]:
    """What a request with an answer of so many tokens sees of the replicas. Only crowded ones mind the length."""
    replicas, rho = pool.replicas, pool.rho(pool.replicas, now)
    rates = [1.0 / replica.prefill_speed for replica in replicas]
    prices = policy.charges(replicas, backlogs, rho)
    charged = [
        each * rate * replica.bias for each, rate, replica in zip(prices, rates, replicas, strict=True)
    ]
    crowded = any(replica.crowded for replica in replicas)
    views: dict[float, View] = {}

    def view(output: float) -> View:
        key = output if crowded else 0.0
        if key not in views:
            pressed = policy.pressures(replicas, key, rho)
            costs = [(b + p) * r.bias for b, p, r in zip(backlogs, pressed, replicas, strict=True)]
            views[key] = View(backlogs, costs, rates, charged, front_of(costs, charged))
        return views[key]

    return view


def look_up(held: Held, pool: Pool, now: float) -> None:
    """See what a request finds cached where."""
    held.looked_up = now
    prompt = held.prompt
    ratio, doubling = pool.tokens_per_byte(prompt), pool.traits.prefill_doubling
    cached: dict[int, float] = {}
    held.watch = set()
    for chain in prompt.chains:
        found = pool.index.match(chain.hashes)
        for slot, depth in found.items():
            cached[slot] = cached.get(slot, 0.0) + chain.ends[depth - 1] * ratio
        depths = {0, *found.values()} if len(found) < len(pool.replicas) else set(found.values())
        held.watch.update(chain.hashes[depth] for depth in depths if depth < len(chain.hashes))
    if pool.feedback is not None:  # a replica that was found wrong counts for less, as in a decision
        for slot, scale in pool.feedback.scales.items():
            if slot in cached:
                cached[slot] *= scale
    _weigh(held, pool, cached, doubling)


def _weigh(held: Held, pool: Pool, cached: dict[int, float], doubling: float) -> None:
    """The work that is left on each replica, by the tokens that each slot holds."""
    most = max(held.tokens - 1, 0)
    everywhere = cached and len(cached) >= len(pool.replicas)
    least = min(min(cached.values()), most) if everywhere else 0.0
    held.output = _expected(held.prompt, held.tokens, pool)
    held.base = prefill_work(least, held.tokens, doubling)
    held.better = [
        (i, prefill_work(min(cached[replica.slot], most), held.tokens, doubling))
        for i, replica in enumerate(pool.replicas)
        if cached.get(replica.slot, 0.0) > least
    ]


def _expected(prompt: Prompt, tokens: int, pool: Pool) -> float:
    """Output tokens to expect, as a decision does; else it would go where the room did not mean it to."""
    if prompt.kind != "generate":
        return 0.0
    each = pool.output.predict(prompt.model, prompt.dialect, tokens)
    return (each if prompt.max_output is None else min(each, prompt.max_output)) * prompt.n


def front_of(costs: list[float], charged: list[float]) -> list[int]:
    """Places in the order of cost, each faster than those before it; the others are never best for the same work."""
    if min(charged) == max(charged):
        return [costs.index(min(costs))]
    front: list[int] = []
    fastest = math.inf
    for i in sorted(range(len(costs)), key=costs.__getitem__):
        if charged[i] < fastest:
            front.append(i)
            fastest = charged[i]
    return front
