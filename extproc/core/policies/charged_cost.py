"""charged_cost, the default: the least expected time, with uncached work charged for what it takes from others.

cost(r) = (backlog(r) + (1 + w) * uncached(r) / prefill_speed(r) + decode(r) + kv(r)) * bias(r)      in seconds
w       = gain * rho / (1 - rho), at most `most`

backlog is prompt work already sent and not yet computed. `w` is why this beats the greedy "least time to
first token": a prompt sent where its prefix is not cached costs everybody behind it too, and the busier the
pool (rho: prompts take all its time, or answers all its running slots; core/pool.py), the more are behind. In an
idle pool w is 0 and the rule is greedy; in overload it keeps long prefixes where they are. gain 3 and cap 20 came
out best on public traces (docs/policies.md). Where a replica has nothing to compute nobody is behind yet, so there w
can be bounded by `dry`; late binding does (core/waiting.py).
decode is charged for the context that is on a replica already; each of its steps reads all of it.

A hot prefix that is cheap to follow would draw everybody to the one replica that had it first. So what requests
lose by following is added up, and when it exceeds the work of computing the prefix elsewhere, one request does
that (policies/copies.py).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from extproc.core.fleet import KV_FREE, Replica
from extproc.core.policies.base import Ask, Choice, Rng, best_of_less, biased, led_by, lowest
from extproc.core.policies.copies import Copies
from extproc.core.policies.shortlist import shortlisted

#: Float noise in a number of bytes, and in seconds of backlog.
_EPSILON = 1e-6


@dataclass(slots=True)
class ChargedCost:
    """Settings: gain and most shape w; decode and kv are seconds charged at full; near ties within `near` s.

    `decode` is for a replica whose sequences hold as many tokens as its KV cache, in a pool with no prompts to
    compute: each step reads all of them, so everything on it goes slower. `copy`: how many times its price in rent
    a prefix pays before it is computed elsewhere too; 0 for never. `dry`: most of w on a replica without prompt work.
    """

    sampled: ClassVar[bool] = True

    gain: float = 3.0
    most: float = 20.0
    decode: float = 2.0
    kv: float = 1.0
    near: float = 0.002
    copy: float = 1.0
    dry: float = 1000.0
    _copies: Copies = field(init=False, repr=False, compare=False, default_factory=Copies)

    def __post_init__(self) -> None:
        for name in ("gain", "most", "decode", "kv", "near", "copy", "dry"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ValueError(f"charged_cost: {name} must be within 0..1000")

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates with the least charged cost."""
        charge, decode = 1.0 + self.weight(ask.rho), self.decode_weight(ask.rho)
        if ask.whole is not None and ask.holders and not ask.may_be_crowded and charge <= 1.0 + self.dry:
            shortlist = shortlisted(ask, ask.whole, ask.holders, charge, decode, picks, self.near, rng)
            if shortlist is not None:
                found = shortlist.best_of_less(ask.cached) if self.copy else None
                if found is not None:
                    home, mine, other, theirs = found
                    if self._pays(ask, home, mine, charge, other, theirs, charge):
                        shortlist.copied(other, picks)
                return shortlist
        return self._chosen_of_all(ask, charge, decode, picks, rng)

    def _chosen_of_all(self, ask: Ask, charge: float, decode: float, picks: int, rng: Rng) -> Choice:
        backlogs, costs = self._costs(ask, charge, decode)
        scores = costs if ask.is_even and ask.extra is None else biased(costs, ask, rng)
        order = lowest(scores, picks, rng, self.near)
        parts: dict[str, Sequence[float]] = {"backlog": backlogs}
        if ask.extra is not None:
            parts["adapter"] = ask.extra
        if self.copy and ask.cached[order[0]] > 0:
            other = self._copied(ask, charge, scores, order, backlogs)
            if other is not None:
                return Choice(led_by(other, scores, picks), scores, "copied", parts)
        return Choice(order, scores, "least_cost", parts)

    def _costs(self, ask: Ask, charge: float, decode: float) -> tuple[list[float], list[float]]:
        """Columns over the candidates: backlog, and the cost without the bias.

        One loop over plain attributes, as if nobody held any of the prompt: a pass for each part of the sum, or a
        call for each candidate, takes two to three times as long. What holds for few of them, or for none as a
        rule, comes after it.
        """
        now, tokens, half = ask.now, ask.tokens, ask.per_doubling
        whole = tokens * (1.0 + tokens * half)  # of which what is cached is saved
        speed = seconds = math.nan  # mostly all have the same speed
        backlogs: list[float] = []
        costs: list[float] = []
        for replica in ask.replicas:
            books = replica.books
            waits = books.idle_at - now
            if waits < books.floor:
                waits = books.floor
            backlogs.append(waits)
            if replica.prefill_speed != speed:
                speed = replica.prefill_speed
                seconds = charge * whole / speed
            costs.append(waits + decode * replica.context + seconds)
        for i in ask.holders if ask.holders is not None else range(len(costs)):
            replica, cached = ask.replicas[i], ask.cached[i]
            price = charge * (whole - cached * (1.0 + cached * half))
            costs[i] = backlogs[i] + decode * replica.context + price / replica.prefill_speed
        if 1.0 + self.dry < charge:
            self._relieve(ask, charge, backlogs, costs)
        if ask.may_be_crowded:
            for i, replica in enumerate(ask.replicas):
                if replica.crowded:
                    costs[i] += self._pressed(replica, ask.output)
        return backlogs, costs

    def _relieve(self, ask: Ask, charge: float, backlogs: Sequence[float], costs: list[float]) -> None:
        """Work out the costs of dry replicas anew, where less is charged for uncached work."""
        decode, half = self.decode_weight(ask.rho), ask.per_doubling
        whole = ask.tokens * (1.0 + ask.tokens * half)
        for i, (replica, waits, cached) in enumerate(zip(ask.replicas, backlogs, ask.cached, strict=True)):
            price = self._charge(replica, waits, charge) * (whole - cached * (1.0 + cached * half))
            costs[i] = waits + decode * replica.context + price / replica.prefill_speed

    def pressures(self, replicas: Sequence[Replica], output: float, rho: float) -> list[float]:
        """Seconds charged for the sequences and the KV that are on each replica already."""
        decode, pressed = self.decode_weight(rho), self._pressed
        return [
            decode * replica.context + (pressed(replica, output) if replica.crowded else 0.0)
            for replica in replicas
        ]

    def decode_weight(self, rho: float) -> float:
        """Seconds charged for a replica whose sequences fill its KV cache: none where prompts take all time.

        The square was fitted: with the plain difference, late binding lets replicas stand idle at rho 0.9.
        """
        idle = 1.0 - rho
        return 0.0 if idle < 0.0 else self.decode * idle**2

    def weight(self, rho: float) -> float:
        """w for a pool that spends the share `rho` of its time on prompts."""
        if rho >= 1:
            return self.most
        weight = self.gain * rho / (1 - rho)
        return weight if weight < self.most else self.most

    def charges(self, replicas: Sequence[Replica], backlogs: Sequence[float], rho: float) -> list[float]:
        """What a second of uncached work is charged on each replica: 1 + w, with so many seconds ahead there."""
        charge = 1.0 + self.weight(rho)
        return [self._charge(r, waits, charge) for waits, r in zip(backlogs, replicas, strict=True)]

    def _charge(self, replica: Replica, waits: float, charge: float) -> float:
        """`charge`, or less on a replica that is dry: nothing is left to compute and no first token is missing."""
        low = 1.0 + self.dry
        return low if low < charge and waits <= _EPSILON and not replica.books.awaits else charge

    def _copied(
        self, ask: Ask, charge: float, scores: Sequence[float], order: list[int], backlogs: Sequence[float]
    ) -> int | None:
        """The replica that this request should make a copy on, of what it would find at `order[0]`; None for none."""
        home = order[0]
        other = best_of_less(order, scores, ask.cached)
        if other is None:
            return None
        here = there = charge
        if 1.0 + self.dry < charge:
            here = self._charge(ask.replicas[home], backlogs[home], charge)
            there = self._charge(ask.replicas[other], backlogs[other], charge)
        pays = self._pays(ask, home, scores[home], here, other, scores[other], there)
        return other if pays else None

    def _pays(
        self, ask: Ask, home: int, mine: float, charge: float, other: int, theirs: float, charged_there: float
    ) -> bool:
        """Whether this request should make a copy at `other`, which holds less, of what it would find at `home`.

        Of each its score, and what is charged there for a second of work. The rent is how much less there is to do
        at `other`.
        """
        if ask.prompt is None:
            return False
        replica = ask.replicas[other]
        tokens, half, held, less = ask.tokens, ask.per_doubling, ask.cached[home], ask.cached[other]
        price = charged_there * ((tokens - less) * (1.0 + (tokens + less) * half) / replica.prefill_speed)
        price -= charge * (
            (tokens - held) * (1.0 + (tokens + held) * half) / ask.replicas[home].prefill_speed
        )
        rent = mine + price - theirs
        if rent <= 0:
            return False
        chain = ask.prompt.chains[0]
        depth = bisect_right(chain.ends, less / ask.ratio + _EPSILON)
        if depth >= len(chain.hashes):
            return False
        price *= self.copy * (1.0 + ask.fill(replica.slot))
        return self._copies.pays(chain.hashes[depth], rent, price, ask.now)

    def _pressed(self, replica: Replica, output: float) -> float:
        """Seconds charged where sequences must wait for a running slot, and for KV above 80 %."""
        cost = 0.0
        if replica.occupancy >= 1:  # the next one waits for a slot: the longer, the more are over
            over = replica.requests + 1 - replica.max_running
            cost = over * output / replica.decode_speed
        if replica.kv_load > KV_FREE:
            cost += self.kv * (replica.kv_load - KV_FREE) / (1 - KV_FREE)
        return cost


def backlogs_of(replicas: Sequence[Replica], now: float) -> list[float]:
    """Seconds of prompt work still ahead on each replica, by own books."""
    every = [replica.books for replica in replicas]
    return [left if (left := books.idle_at - now) > books.floor else books.floor for books in every]
