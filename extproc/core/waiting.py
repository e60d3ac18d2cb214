"""The waiting room: a request is bound to a replica only when that replica is about to be free for it.

Rule. A request's best replica is the one with the least charged cost. While that one has more than `theta` seconds
of prompt work ahead, the request waits here instead of there, so that the choice is made with what is known later.
The next to go is the one with the least (own uncached prefill seconds - `alpha` * seconds waited) among those whose
best replica is open: short work first, and age wins in the end. After `cap` seconds a request goes to its best
replica however busy that is: whatever is free would scatter long prefixes. In an idle fleet nothing waits. A
replica where a sequence waits for a running slot is closed until an answer ends there: else prompts that are
cached, and so little work, would queue there for many seconds, ahead of all that waits here for its turn.

Several gateways act in one order without asking each other: each announces what it holds, and runs the rule over
its own and the others' requests. When the next one is another's, it leaves room for it on that replica and goes on;
only the owner binds. What it knows is as old as the journal is late, and three rules keep that cheap:

* Who was there when a replica opened goes before who came later, however short: its owner has taken the place by
  then, and only the news of it is not here yet. Who came less than a journal's delay before counts as later, since
  the others could not know of it.
* Room is left for `patience` seconds without a break, in which the replica stayed open, not longer: gateways may
  differ in what they believe cached, and the owner may see another best replica. None is distrusted later. On one
  that has run dry it is left for twice as long in all, however many of others' requests are next: each gateway may
  leave room for another one's.
* An own request that shares uncached text with another's, for which room is left, waits for the news of where that
  goes: it will be warm there.

Patience does not grow where news or looks come later than that: a replica would stand idle for it. The horizon grows
instead (`heard`, `looked`), by as much as they come later, so that the next prompt is on its way before a replica has
run dry.

Pure: events come in as calls, the caller binds what `next_own` names, and asks `wake` when to look again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from extproc.core.fleet import Replica
from extproc.core.policies.charged_cost import ChargedCost, backlogs_of
from extproc.core.pool import Pool
from extproc.core.prompt import Chain, Prompt
from extproc.core.waiters import Held, look_up, views_of

#: Seconds after which what a held request finds cached is looked up again, since entries get evicted.
_REFRESH = 2.0
#: Another gateway's request that is held longer than `cap` and this was bound or lost with its gateway.
_GRACE = 5.0
#: Longest sleep while something is held: a first token may have gone unseen.
_LONGEST_SLEEP = 0.5
#: Requests of others that are remembered, for each that may wait here.
_OTHERS = 16
#: Journal delays in `patience`: two for the way to the owner and back; the rest is for what is batched or late.
_DELAYS = 10.0
#: Seconds by which news may be late before the horizon grows: a journal's delay, which `theta` covers.
_COVERED = 0.02
#: Most seconds by which it grows: beyond, binding late is hardly better than binding at arrival.
_MOST_SLACK = 0.5
#: Parts by which the measured lag follows one that is longer, or shorter: it settles above the mean, at the expectile
#: of 0.8, since a replica that runs dry costs more than one that is bound a little early.
_RISES, _FALLS = 1 / 8, 1 / 32
#: Times `patience` for which room is left in all on a replica that is dry: with one, prefixes scatter where a gateway
#: is slow (means a fifth longer in the simulator); unbounded, a chain of requests that are not taken leaves it idle.
_IN_ALL = 2.0
#: Float noise in times and backlogs.
_EPSILON = 1e-6


@dataclass(slots=True, frozen=True, kw_only=True)
class RoomSettings:
    """Seconds: `theta` of prompt work ahead at which a replica is open, `cap` of waiting. `alpha` in s/s. `order`:
    "shortest" (least uncached work first, with aging) or "fcfs". `most` bounds the policy's w: what waits here
    keeps to its cached prefix without being charged much for leaving it, and `dry` bounds it on a replica without
    prompt work, which would stand idle else. `patience`: seconds for which room is
    left for another gateway's request, ten journal delays: after a tenth of it the others know of what is held
    here. `requests` and `tokens` bound what one gateway holds; beyond, requests are bound at arrival.
    """

    theta: float = 0.2
    alpha: float = 0.1
    cap: float = 60.0
    order: str = "shortest"
    most: float = 5.0
    dry: float = 1.0
    patience: float = 0.2
    requests: int = 1000
    tokens: int = 50_000_000

    def __post_init__(self) -> None:
        for name in ("theta", "alpha", "cap", "most", "dry", "patience", "requests", "tokens"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"waiting: {name} must be at least 0")
        if self.order not in ("shortest", "fcfs"):
            raise ValueError(f"waiting: there is no order {self.order!r}; known: shortest, fcfs")


def _followed(lag: float, seconds: float) -> float:
    """A measured lag after one more measurement."""
    return lag + (seconds - lag) * (_RISES if seconds > lag else _FALLS)


#: One in the common order, which is that of the first three: whether it came when its replica was open already or too
#: late for all to know of it, its rank, its key; then itself, that replica and the seconds of prompt work there.
_Place = tuple[bool, float, int, Held, int, float]


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
        #: Called when something happened for which `next_own` is worth asking, while something of its own waits.
        self.on_stir: Callable[[], None] = lambda: None
        self.is_open = True  #: whether requests are held; else all that wait go at once, oldest first
        self.lag = 0.0  #: seconds by which news of other gateways come late, as measured
        self.delay = 0.0  #: and by which looks come later than they are due, where the gateway waits for CPU
        self._closed = False
        self._policy = self._bounded(pool.policy)
        self._held: dict[int, Held] = {}  # in the order of coming
        self._replicas: Sequence[Replica] = ()
        self._shut = -math.inf  # when last no replica was open, or nobody looked: room is left anew from then
        self._looked = -math.inf  # when `_opened` was brought up to date
        self._dry: list[float] = []  # since when room is left on each replica that is dry; infinity for not
        self._opened: list[float] = []  # since when each replica is open; infinity for closed
        self._again = math.inf  # when the patience with another's request ends
        pool.room = self

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def _bounded(self, policy: ChargedCost) -> ChargedCost:
        """The pool's policy with w bounded as the settings say, which it chooses by from now on."""
        most, dry = min(policy.most, self.settings.most), min(policy.dry, self.settings.dry)
        bounded = self.pool.policy = replace(policy, most=most, dry=dry)
        return bounded

    # -- events ----------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Something happened at a replica, or to the fleet."""
        if self.own:
            self.on_stir()

    def adopted(self) -> None:
        """The pool may choose by another policy: by any but charged_cost nobody waits."""
        policy = self.pool.policy
        if policy is not self._policy and isinstance(policy, ChargedCost):
            self._policy = self._bounded(policy)
        self.is_open = not self._closed and isinstance(policy, ChargedCost)
        self.stir()

    def close(self) -> None:
        """Nobody waits any more: the gateway stops."""
        self._closed, self.is_open = True, False
        self.stir()

    def has_space(self, tokens: int) -> bool:
        """Whether one more request of so many prompt tokens may wait here."""
        settings = self.settings
        return self.own < settings.requests and self.own_tokens + tokens <= settings.tokens

    def hold(self, key: int, prompt: Prompt, arrived: float, ahead: float = 0.0) -> None:
        """An own request came. Ask `next_own` at once: it need not wait when its best replica is open.

        `ahead`: seconds of work by which it goes before others (below 0: after), for whoever ranks requests.
        """
        held = self._held[key] = Held(key, prompt, arrived, self.tokens_of(prompt), is_own=True)
        held.ahead = ahead
        if not self.own:
            self._shut = arrived  # nobody looked whether room was left in vain
        self.own += 1
        self.own_tokens += held.tokens

    def hear(self, key: int, prompt: Prompt, arrived: float) -> bool:
        """Another gateway announced a request that it holds; whether it is remembered."""
        fits = len(self._held) - self.own < _OTHERS * max(self.settings.requests, 1)
        if fits:
            self._held[key] = Held(key, prompt, arrived, self.tokens_of(prompt), is_own=False)
        return fits

    def remove(self, key: int) -> None:
        """A request was bound, its client left, or its gateway died. Unknown keys are ignored."""
        held = self._held.pop(key, None)
        if held is not None and held.is_own:
            self.own -= 1
            self.own_tokens -= held.tokens

    def placed(self, chains: Sequence[Chain]) -> None:
        """Prompts are on their way to a replica: whoever shares more of them than it knew is looked up again."""
        for chain in chains if self._held else ():
            hashes = set(chain.hashes)
            for held in self._held.values():
                if not held.watch.isdisjoint(hashes):
                    held.looked_up = -math.inf

    def heard(self, seconds: float) -> None:
        """News of other gateways came so many seconds after what they tell of. Call it a few times a second."""
        self.lag = _followed(self.lag, seconds)

    def looked(self, seconds: float) -> None:
        """`next_own` was asked so many seconds later than it was due. Call it a few times a second."""
        self.delay = _followed(self.delay, seconds)

    # -- the rule --------------------------------------------------------------------------------------

    @property
    def horizon(self) -> float:
        """Seconds of prompt work ahead at which a replica is open now: `theta`, and what news or looks come later."""
        late = max(self.lag, self.delay)  # not the sum: who looks late takes news in late
        return self.settings.theta + min(max(late - _COVERED, 0.0), _MOST_SLACK)

    def needs_none(self, now: float) -> bool:
        """Whether a request that comes may go at once: all are open and nobody waits, or none may be chosen."""
        replicas, theta = self.pool.replicas, self._theta
        if all(replica.barred is not None for replica in replicas):
            return True
        return not self._held and all(
            replica.barred is None
            and replica.occupancy <= 1.0
            and replica.books.floor <= theta
            and replica.books.idle_at - now <= theta
            for replica in replicas
        )

    def next_own(self, now: float) -> int | None:
        """The own request to bind now, or None. Bind it (which removes it) and ask again."""
        if not self.own:
            return None
        late = self._capped(now if self.is_open else math.inf)
        if late is not None:
            return late
        backlogs = self._backlogs(now)
        ahead = self._ahead(backlogs)
        if len(self._held) > self.own:
            self._note(ahead, now)
        if not ahead or min(ahead) > self._theta:
            self._shut = now
            return None
        return self._walk(backlogs, ahead, now)

    def _ahead(self, backlogs: list[float]) -> list[float]:
        """The same, and infinity where a sequence waits for a slot already; one may, so that no slot stays empty."""
        pairs = zip(backlogs, self.pool.replicas, strict=True)
        return [waits if replica.occupancy <= 1.0 else math.inf for waits, replica in pairs]

    def _note(self, ahead: list[float], now: float) -> None:
        """Note since when each replica is open: by the clock, but not before it was last seen closed."""
        theta, opened = self._theta, self._opened
        if len(opened) != len(ahead):
            opened[:] = [math.inf] * len(ahead)
        for i, waits in enumerate(ahead):
            if waits > theta:
                opened[i] = math.inf
            elif opened[i] == math.inf:
                opened[i] = max(self._looked, now - theta + waits)
        self._looked = now

    def _backlogs(self, now: float) -> list[float]:
        """Seconds ahead on each replica, infinity where it may not be chosen; stale ones serve when all are stale."""
        replicas = self.pool.replicas
        found = backlogs_of(replicas, now)
        usable = [replica.barred is None and now < replica.fresh_until for replica in replicas]
        if not any(usable):
            usable = [replica.barred is None for replica in replicas]
        return [waits if may else math.inf for waits, may in zip(found, usable, strict=True)]

    def wake(self, now: float) -> float:
        """When to ask `next_own` again although nothing happens; infinity while nothing of its own waits."""
        if not self.own:
            return math.inf
        oldest = next(held.arrived for held in self._held.values() if held.is_own)
        again = self._again if self._again > now else math.inf
        soonest, theta = min(oldest + self.settings.cap, now + _LONGEST_SLEEP, again), self.horizon
        for replica in self.pool.replicas:
            opens = replica.books.falls_to(theta, now)
            if now < opens < soonest:
                soonest = opens
        return max(soonest, now) + _EPSILON

    @property
    def _theta(self) -> float:
        return self.horizon + _EPSILON

    def _capped(self, now: float) -> int | None:
        """The oldest own request that waited for `cap` seconds; others' that should be gone are dropped."""
        limit = now - self.settings.cap
        lost, found = [], None
        for held in self._held.values():  # in the order of coming, which for own ones is that of arrival
            if held.arrived > limit or held.is_own:
                found = held.key if held.arrived <= limit else None
                break
            if held.arrived < limit - _GRACE:
                lost.append(held.key)
        for key in lost:
            del self._held[key]
        return found

    def _walk(self, backlogs: list[float], ahead: list[float], now: float) -> int | None:
        """Go through everybody's requests in the common order; room is left for others'."""
        coming: set[int] = set()
        asked: set[int] = set()
        self._again = math.inf
        for _, _, key, held, best, seconds in self._queue(backlogs, ahead, now):
            if ahead[best] > self._theta:  # room was left there for one before it
                held.yielded = math.inf
            elif not held.is_own:
                asked.add(best)
                if self._trusts(held, now) and self._is_spared(best, backlogs[best], now):
                    ahead[best] += seconds if self.pool.replicas[best].occupancy < 1.0 else math.inf
                    for chain in held.prompt.chains:
                        coming.update(chain.hashes)
            elif coming.isdisjoint(held.watch):
                return key
        self._dry = [since if i in asked else math.inf for i, since in enumerate(self._dry)]
        return None

    def _queue(self, backlogs: list[float], ahead: list[float], now: float) -> list[_Place]:
        """Those whose best replica is open, in the common order."""
        theta, alpha, fcfs = self._theta, self.settings.alpha, self.settings.order == "fcfs"
        shared, delay = len(self._held) > self.own, self.settings.patience / _DELAYS
        view_of = views_of(self.pool, self._policy, backlogs, now)
        queue: list[_Place] = []
        self._refresh(now)
        for held in self._held.values():
            view = view_of(held.output)
            best, work = view.best(held)
            if ahead[best] > theta:
                held.yielded = math.inf
                continue
            seconds = work * view.rates[best]
            rank = (held.arrived if fcfs else seconds - alpha * (now - held.arrived)) - held.ahead
            is_late = shared and held.arrived + delay > self._opened[best]
            queue.append((is_late, rank, held.key, held, best, seconds))
        queue.sort()
        return queue

    def wanted(self, places: Sequence[int], now: float) -> int:
        """On how many of these replicas a request that waits would be computed sooner than on its best one."""
        self._refresh(now)
        view_of = views_of(self.pool, self._policy, self._backlogs(now), now)
        views = [(view_of(held.output), held) for held in self._held.values()]
        return sum(any(view.is_sooner(held, place) for view, held in views) for place in places)

    def _refresh(self, now: float) -> None:
        """Look up again what is old. With another fleet, places have changed."""
        if self._replicas is not self.pool.replicas:
            self._replicas = self.pool.replicas
            self._dry = [math.inf] * len(self._replicas)
            for held in self._held.values():
                held.looked_up = -math.inf
        for held in self._held.values():
            if now - held.looked_up > _REFRESH:
                look_up(held, self.pool, now)

    def _trusts(self, held: Held, now: float) -> bool:
        """Whether to leave room for another's request. Its owner, who may see the fleet otherwise, may not take it:
        then the replica would stand idle, so after `patience` others go first."""
        if not self._shut <= held.yielded <= now:
            held.yielded = now
        until = held.yielded + self.settings.patience
        if until >= now:
            self._again = min(self._again, until)
        return until >= now

    def _is_spared(self, best: int, waits: float, now: float) -> bool:
        """Whether a replica, with so many seconds ahead, has work or has not been dry for long with room left."""
        since = self._dry[best] if waits <= _EPSILON else math.inf
        if not self._shut <= since <= now:
            since = now
        self._dry[best] = since if waits <= _EPSILON else math.inf
        until = since + _IN_ALL * self.settings.patience
        if now <= until < self._again:
            self._again = until
        return until >= now

    def tokens_of(self, prompt: Prompt) -> int:
        """Prompt tokens of a request, as the room counts them."""
        return math.ceil(prompt.size * self.pool.tokens_per_byte(prompt))
