"""The waiting room: a request is bound to a replica only when that replica is about to be free for it.

Rule. A request's best replica is the one with the least charged cost. While that one has more than `theta` seconds
of prompt work ahead, the request waits here instead of there, so that the choice is made with what is known later.
The next to go is the one with the least (own uncached prefill seconds - `alpha` * seconds waited) among those
whose best replica is open: short work first, and age wins in the end. After `cap` seconds a request goes to its
best replica however busy that is. (To send it to whatever is free instead would scatter long prefixes.) In an
idle fleet nothing waits.

Several gateways act in one order without asking each other: each announces what it holds, and runs the rule over
its own and the others' requests. When the next one is another's, it leaves room for it on that replica and goes
on; only the owner binds. What it knows may be as old as the journal is late, and gateways may differ in what they
believe cached, so room is left for a request for `patience` seconds only.

Pure: events come in as calls, the caller binds what `next_own` names, and asks `wake` when to look again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from extproc.core.cost import prefill_work
from extproc.core.fleet import Replica
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt

#: Seconds after which what a held request finds cached is looked up again, since entries get evicted.
_REFRESH = 2.0
#: Another gateway's request that is held longer than `cap` and this was bound or lost with its gateway.
_GRACE = 5.0
#: Longest sleep while something is held: a first token may have gone unseen.
_LONGEST_SLEEP = 0.5
#: A request that room was left for in vain gets it again after so many seconds.
_TRUST_AGAIN = 1.0
#: Requests of others that are remembered, for each that may wait here.
_OTHERS = 16
#: Float noise in times and backlogs.
_EPSILON = 1e-6


@dataclass(slots=True, frozen=True, kw_only=True)
class RoomSettings:
    """Seconds: `theta` of prompt work ahead at which a replica is open, `cap` of waiting. `alpha` in s/s.

    `order`: "shortest" (least uncached work first, with aging) or "fcfs". `most` bounds the policy's w: what waits
    here keeps to its cached prefix without being charged much for leaving it. `patience`: seconds for which room is
    left for another gateway's request; some five journal delays. `requests` and `tokens` bound what one gateway
    holds; beyond, requests are bound at arrival.
    """

    theta: float = 0.2
    alpha: float = 0.1
    cap: float = 60.0
    order: str = "shortest"
    most: float = 5.0
    patience: float = 0.1
    requests: int = 1000
    tokens: int = 50_000_000

    def __post_init__(self) -> None:
        for name in ("theta", "alpha", "cap", "most", "patience", "requests", "tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"waiting: {name} must be at least 0")
        if self.order not in ("shortest", "fcfs"):
            raise ValueError(f"waiting: there is no order {self.order!r}; known: shortest, fcfs")


class _Held:
    """One waiting request.

    Attributes:
        works: uncached work on each replica, in the order of `Pool.replicas`, as of `looked_up`.
        watch: hashes that, once placed somewhere, make more of it cached there.
        yielded: since when room was left for it, when it is another gateway's.
    """

    __slots__ = ("arrived", "is_own", "key", "looked_up", "prompt", "tokens", "watch", "works", "yielded")

    def __init__(self, key: int, prompt: Prompt, arrived: float, tokens: int, is_own: bool) -> None:
        self.key = key
        self.prompt = prompt
        self.arrived = arrived
        self.tokens = tokens
        self.is_own = is_own
        self.works: list[float] = []
        self.looked_up = self.yielded = -math.inf
        self.watch: set[int] = set()


class _View(NamedTuple):
    """The replicas at one moment: seconds ahead (infinity where excluded), other cost, s per unit of work."""

    backlogs: list[float]
    costs: list[float]
    rates: list[float]
    charged: list[float]


class WaitingRoom:
    """Holds the requests of one gateway and pool, and knows those that other gateways hold.

    Raises:
        ValueError: the pool's policy is not charged_cost, which alone says what waiting is worth.
    """

    def __init__(self, pool: Pool, settings: RoomSettings) -> None:
        if not isinstance(pool.policy, ChargedCost):
            name = pool.policy_name
            raise ValueError(f"late binding needs the policy charged_cost, not {name!r}")  # noqa: TRY004
        self.pool = pool
        self.settings = settings
        self.own = 0  #: requests of this gateway that wait
        self.own_tokens = 0  #: and their prompt tokens
        self._policy = pool.policy = replace(pool.policy, most=min(pool.policy.most, settings.most))
        self._held: dict[int, _Held] = {}  # in the order of coming
        self._replicas: Sequence[Replica] = ()
        pool.room = self

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    # -- events ----------------------------------------------------------------------------------------

    def has_space(self, tokens: int) -> bool:
        """Whether one more request of so many prompt tokens may wait here."""
        settings = self.settings
        return self.own < settings.requests and self.own_tokens + tokens <= settings.tokens

    def hold(self, key: int, prompt: Prompt, arrived: float) -> None:
        """An own request came. Ask `next_own` at once: it need not wait when its best replica is open."""
        held = _Held(key, prompt, arrived, self._tokens(prompt), is_own=True)
        self._held[key] = held
        self.own += 1
        self.own_tokens += held.tokens

    def hear(self, key: int, prompt: Prompt, arrived: float) -> None:
        """Another gateway announced a request that it holds."""
        if len(self._held) - self.own < _OTHERS * max(self.settings.requests, 1):
            self._held[key] = _Held(key, prompt, arrived, self._tokens(prompt), is_own=False)

    def remove(self, key: int) -> None:
        """A request was bound, its client left, or its gateway died. Unknown keys are ignored."""
        held = self._held.pop(key, None)
        if held is not None and held.is_own:
            self.own -= 1
            self.own_tokens -= held.tokens

    def placed(self, chains: Sequence[Chain]) -> None:
        """Prompts are on their way to a replica: whoever shares more of them than it knew is looked up again."""
        if not self._held:
            return
        for chain in chains:
            hashes = set(chain.hashes)
            for held in self._held.values():
                if not held.watch.isdisjoint(hashes):
                    held.looked_up = -math.inf

    # -- the rule --------------------------------------------------------------------------------------

    def next_own(self, now: float) -> int | None:
        """The own request to bind now, or None. Bind it (which removes it) and ask again."""
        if not self.own:
            return None
        late = self._capped(now)
        if late is not None:
            return late
        backlogs = self._backlogs(now)
        if not backlogs or min(backlogs) > self._theta:
            return None
        return self._walk(self._view(backlogs, now), now)

    def _backlogs(self, now: float) -> list[float]:
        """Seconds ahead on each replica, infinity where it may not be chosen; stale ones serve when all are stale."""
        replicas = self.pool.replicas
        found = backlogs_of(replicas, now)
        usable = [replica.excluded(now) is None for replica in replicas]
        if not any(usable):
            usable = [replica.barred is None for replica in replicas]
        return [waits if may else math.inf for waits, may in zip(found, usable, strict=True)]

    def wake(self, now: float) -> float:
        """When to ask `next_own` again although nothing happens; infinity while nothing of its own waits."""
        if not self.own:
            return math.inf
        oldest = next(held.arrived for held in self._held.values() if held.is_own)
        soonest = min(oldest + self.settings.cap, now + _LONGEST_SLEEP)
        for replica in self.pool.replicas:
            opens = replica.books.falls_to(self.settings.theta, now, replica.prefill_speed)
            if now < opens < soonest:
                soonest = opens
        return max(soonest, now) + _EPSILON

    @property
    def _theta(self) -> float:
        return self.settings.theta + _EPSILON

    def _capped(self, now: float) -> int | None:
        """The oldest own request that waited for `cap` seconds; others' that should be gone are dropped."""
        limit = now - self.settings.cap
        lost = [held.key for held in self._held.values() if not held.is_own and held.arrived < limit - _GRACE]
        for key in lost:
            del self._held[key]
        return next((h.key for h in self._held.values() if h.is_own and h.arrived <= limit), None)

    def _view(self, backlogs: list[float], now: float) -> _View:
        replicas = self.pool.replicas
        rho = self.pool.busy.rho(len(replicas), now)
        charge = 1.0 + self._policy.weight(rho)
        pressures = self._policy.pressures(replicas, self.pool.traits.output_tokens, rho)
        costs = [waits + pressed for waits, pressed in zip(backlogs, pressures, strict=True)]
        rates = [1.0 / replica.prefill_speed for replica in replicas]
        return _View(backlogs, costs, rates, [charge * rate for rate in rates])

    def _walk(self, view: _View, now: float) -> int | None:
        """Go through everybody's requests in the common order, leaving room for others'."""
        queue = []
        for held in self._held.values():
            works = self._works(held, now)
            sums = [
                cost + rate * work for cost, rate, work in zip(view.costs, view.charged, works, strict=True)
            ]
            best = sums.index(min(sums))
            if view.backlogs[best] <= self._theta:
                queue.append((self._rank(held, works[best] * view.rates[best], now), held.key, held, best))
        queue.sort()
        for _, key, held, best in queue:
            if view.backlogs[best] > self._theta:
                continue  # room was left there for one before it; the next event looks again
            if held.is_own:
                return key
            if self._trusts(held, now):
                view.backlogs[best] += held.works[best] * view.rates[best]
        return None

    def _trusts(self, held: _Held, now: float) -> bool:
        """Whether to leave room for another's request. Its owner, who may see the fleet otherwise, may not take it:
        then the replica would stand idle, so after `patience` others go first for a while."""
        if now - held.yielded > _TRUST_AGAIN:
            held.yielded = now
        return now - held.yielded <= self.settings.patience

    def _rank(self, held: _Held, seconds: float, now: float) -> float:
        if self.settings.order == "fcfs":
            return held.arrived
        return seconds - self.settings.alpha * (now - held.arrived)

    def _works(self, held: _Held, now: float) -> list[float]:
        """Uncached work on each replica, looked up again when it may have changed."""
        if self._replicas is not self.pool.replicas:  # another fleet: columns have other places
            self._replicas = self.pool.replicas
            for other in self._held.values():
                other.looked_up = -math.inf
        if now - held.looked_up > _REFRESH:
            self._look_up(held)
            held.looked_up = now
        return held.works

    def _look_up(self, held: _Held) -> None:
        pool, prompt = self.pool, held.prompt
        ratio, doubling = pool.tokens_per_byte(prompt), pool.traits.prefill_doubling
        cached: dict[int, float] = {}
        held.watch = set()
        for chain in prompt.chains:
            found = pool.index.match(chain.hashes)
            for slot, depth in found.items():
                cached[slot] = cached.get(slot, 0.0) + chain.ends[depth - 1] * ratio
            depths = {0, *found.values()} if len(found) < len(pool.replicas) else set(found.values())
            held.watch.update(chain.hashes[depth] for depth in depths if depth < len(chain.hashes))
        cold = prefill_work(0, held.tokens, doubling)
        most = max(held.tokens - 1, 0)
        held.works = [
            prefill_work(min(cached[r.slot], most), held.tokens, doubling) if r.slot in cached else cold
            for r in pool.replicas
        ]

    def _tokens(self, prompt: Prompt) -> int:
        return math.ceil(prompt.size * self.pool.tokens_per_byte(prompt))
