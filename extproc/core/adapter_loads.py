"""Which LoRA adapter is loaded where through the engines' API, and which has to go for it.

Loaded are, in this order:

    missing   requests wait for it and no replica that may serve lists it
    crowded   on each replica that serves it a request waits longer than a load would take elsewhere, and less than
              half of the minute's loads are spent: for it nothing goes that is missed

A load goes to the replica where it costs least, in seconds: the prompt work ahead there, a load's time for the share
of its places that is taken, and up to two more where an adapter has to go first: less, the longer that is unused.
What goes is the one used longest ago of those that can be loaded again and nobody uses: no request of any gateway is
in flight with it, none was for `idle` seconds, and the engine's last sample does not name it. Replicas whose list of
adapters is not known get none. Where more are listed than may be, those go too, one after the other, for nothing.

A failure rests: an adapter that the engine refuses, or a replica that fails, for twice as long each time.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from extproc.core.adapter_use import Use
from extproc.core.adapter_waits import Waiter, Waits
from extproc.core.fleet import SLOW, Replica
from extproc.core.lifecycle import WARMING

if TYPE_CHECKING:
    from extproc.core.adapters import Adapters

#: Seconds of the rate's window.
_MINUTE: Final = 60.0
#: Seconds within which an adapter that was in flight counts as asked for.
_LATELY: Final = 2.0
#: Seconds for which an adapter that nobody served is loaded for those who ask again, if none may wait.
_ASKED: Final = 5.0
#: Share of a minute's loads that second copies may take.
_FOR_COPIES: Final = 0.5
#: For a second copy nothing goes that is missed more than this: what was used within `keep` and is nowhere else.
_MISSED: Final = exp(-1.0)
#: First and longest rest after a failure, seconds.
_REST: Final = 2.0
_LONGEST_REST: Final = 120.0


@dataclass(slots=True, frozen=True, kw_only=True)
class LoadRules:
    """What the operator allows.

    Attributes:
        paths: adapter -> where its weights lie, as the engines see it; those alone are loaded and unloaded.
        most: adapters that a replica has registered at once.
        a_minute: loads begun within any 60 seconds, of the pool.
        wait: seconds that a request may wait for its adapter.
        idle: seconds for which nobody used what is unloaded.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    most: int = 8
    a_minute: int = 30
    wait: float = 10.0
    idle: float = 10.0


class Step(NamedTuple):
    """Something to do: load `name` on a replica ("" for nothing), after `unload` went from there ("" for nothing)."""

    replica: Replica
    name: str
    unload: str = ""


class _Rest(NamedTuple):
    failures: int
    until: float


class Loading:
    """Plans loads of one pool, and keeps what waits for them.

    Args:
        adapters: what is known of them.
        rules: the operator's.
        now: seconds; what was used before is not known.

    Attributes:
        use: who uses what.
        waits: requests that wait.
        wanted: adapters that requests of other gateways wait for, by the gateway.
        patience: the message that makes Envoy wait; b"" where nothing may wait.
        on_wanted: called when a request begins to wait.
        calls: calls to engines that ended, by what was asked ("load", "unload") and what came of it.
    """

    def __init__(self, adapters: "Adapters", rules: LoadRules, now: float = 0.0) -> None:
        self.rules = rules
        self._since = now
        self.use = Use()
        self.waits = Waits(rules.wait)
        self.wanted: dict[str, tuple[str, ...]] = {}
        self.patience = b""
        self.on_wanted: Callable[[], None] = lambda: None
        self.calls: Counter[tuple[str, str]] = Counter()
        self._adapters = adapters
        self._leads_since = -inf
        self._asked: dict[str, float] = {}  # what nobody served: when it was last asked for
        self._begun: deque[float] = deque()
        self._under_way: dict[int, Step] = {}  # by the replica's slot
        self._rests: dict[str | int, _Rest] = {}  # of adapters and of slots
        self._above_since: dict[int, float] = {}  # slots with more than may be

    # -- requests --------------------------------------------------------------------------------------

    def keeps(self, waiter: Waiter, key: int, name: str, replicas: Sequence[Replica], now: float) -> bool:
        """Whether a request for an adapter ("" for none) waits: `waiter.due` is called unless it leaves before."""
        is_ours = name in self.rules.paths
        if not is_ours or self.serves(name, replicas, now) or self.is_hopeless(name, replicas, now):
            return False
        self._asked[name] = now
        held = self.waits.hold(waiter, key, name, now)
        self.on_wanted()
        return held

    def missed(self, now: float) -> list[str]:
        """Adapters that requests of this gateway wait for, or could not wait for a moment ago."""
        self._asked = {name: at for name, at in self._asked.items() if now - at < _ASKED}
        return list(dict.fromkeys([*self.waits.names(), *self._asked]))

    def ended(self, key: int, now: float) -> None:
        """A request is over, or its client did not wait: it won't ask again. Unknown keys are ignored."""
        left = self.waits.leave(key)
        if left and left not in self.waits.names():
            self._asked.pop(left, None)
        self.use.ended(key, now)

    def serves(self, name: str, replicas: Iterable[Replica], now: float) -> bool:
        """Whether a replica that may be chosen is known to serve it."""
        return any(name in self._listed(replica) and _may_serve(replica, now) for replica in replicas)

    def is_hopeless(self, name: str, replicas: Sequence[Replica], now: float) -> bool:
        """Whether it is not tried for a while: engines refuse it, or each replica that may be chosen fails."""
        if self._rests_now(name, now):
            return True
        open_ = [replica for replica in replicas if _may_serve(replica, now)]
        return all(self._rests_now(replica.slot, now) for replica in open_) if open_ else False

    def let_go(self, replicas: Sequence[Replica], now: float) -> None:
        """Let requests go on whose adapter is there, or for which waiting is over; what is there is not missed."""
        self._asked = {it: at for it, at in self._asked.items() if not self.serves(it, replicas, now)}
        self.waits.let_go(
            lambda name: self.serves(name, replicas, now),
            lambda name: self.is_hopeless(name, replicas, now),
            now,
        )

    # -- the plan --------------------------------------------------------------------------------------

    def plan(self, replicas: Sequence[Replica], now: float) -> Step | None:
        """The next thing to do; None for nothing now. Tell `began` before it is asked again."""
        ready = [replica for replica in replicas if self._is_ready(replica, now)]
        if (step := self._above(ready, now)) is not None:
            return step
        left = self.rules.a_minute - len(self.begun(now))
        if left <= 0:
            return None
        for name in self._missing(replicas, now):
            if (step := self._place(name, ready, now, copy=False)) is not None:
                return step
        if left <= self.rules.a_minute * _FOR_COPIES:
            return None
        copies = (self._place(name, ready, now, copy=True) for name in self._crowded(replicas, now))
        return next((step for step in copies if step is not None), None)

    def leads(self, replicas: Sequence[Replica], now: float) -> None:
        """This gateway loads from now on: each replica is asked what it lists before it is given anything.

        What who loaded before did last may not be known here.
        """
        self._leads_since = now
        self._adapters.doubted.update(replica.slot for replica in replicas)

    def began(self, step: Step, now: float) -> None:
        """It is being done: what goes gets no more requests."""
        if step.name:
            self._begun.append(now)
        self._under_way[step.replica.slot] = step
        if step.unload:
            self._adapters.unloaded(step.replica, step.unload, now)

    def begun(self, now: float) -> Sequence[float]:
        """When the loads of the last minute began, in order."""
        while self._begun and now - self._begun[0] >= _MINUTE:
            self._begun.popleft()
        return self._begun

    def others_began(self, times: Iterable[float], now: float) -> None:
        """Who loads, or did before, tells of the last minute's loads, and it knows of those begun here before.

        The longer of both lists holds: by two gateways' clocks one load can't be told from two.
        """
        told = sorted(min(at, now) for at in times if now - at < _MINUTE)
        if len(told) >= len(self.begun(now)):
            self._begun = deque(told)

    def cleared(self, step: Step) -> None:
        """What was too many there went, and nothing comes for it."""
        self._under_way.pop(step.replica.slot, None)
        self._rests.pop(step.replica.slot, None)

    def stuck(self, replicas: Sequence[Replica], now: float) -> list[Replica]:
        """Those that no load fits, now and likely later.

        As many are listed as may be that have no path, so none of them ever goes; or more than may be are there, and
        were at each call for a minute, as they are used.
        """
        most, found = self.rules.most, []
        known = [(replica, self._listed(replica)) for replica in replicas]
        above = {it.slot: self._above_since.get(it.slot, now) for it, names in known if len(names) > most}
        self._above_since = above
        for replica, names in known:
            lasts = now - above.get(replica.slot, now) >= _MINUTE + self.rules.idle
            if lasts or (len(names) >= most and len(names - self.rules.paths.keys()) >= most):
                found.append(replica)
        return found

    def done(self, step: Step, seconds: float, now: float) -> None:
        """It is loaded, which took so long."""
        self._under_way.pop(step.replica.slot, None)
        self._rests.pop(step.name, None)
        self._rests.pop(step.replica.slot, None)
        self._adapters.loaded(step.replica, step.name, now, seconds)

    def failed(self, step: Step, now: float, *, refused: bool) -> None:
        """It is not. `refused`: the engine will not have this adapter; else the replica fails, and is asked again."""
        self._under_way.pop(step.replica.slot, None)
        if not refused:
            self._adapters.unsure(step.replica, now)
        key: str | int = step.name if refused else step.replica.slot
        failures = self._rests[key].failures + 1 if key in self._rests else 1
        self._rests[key] = _Rest(failures, now + min(_REST * 2.0 ** min(failures - 1, 10), _LONGEST_REST))

    def refused(self, now: float) -> dict[str, float]:
        """Adapters that engines refuse, and for how many seconds they are not tried."""
        rests = self._rests.items()
        return {key: it.until - now for key, it in rests if isinstance(key, str) and it.until > now}

    def rest(self, name: str, seconds: float, now: float) -> None:
        """Who loads says that an adapter is refused."""
        failures = self._rests[name].failures if name in self._rests else 1
        if name in self.rules.paths:
            self._rests[name] = _Rest(failures, now + min(seconds, _LONGEST_REST))

    def dropped(self, step: Step, now: float) -> None:
        """It was given up, as what was to go is used again; nobody failed."""
        self._under_way.pop(step.replica.slot, None)
        self._adapters.told(step.replica, self._listed(step.replica) | {step.unload}, ())
        self.use.touched(step.replica.slot, step.unload, now)

    def is_under_way(self, step: Step) -> bool:
        """Whether nobody said yet what came of it."""
        return self._under_way.get(step.replica.slot) is step

    def is_at(self, replica: Replica) -> bool:
        """Whether something is being done there."""
        return replica.slot in self._under_way

    def is_used(self, step: Step, since: float, now: float) -> bool:
        """Whether what is to go was used after all."""
        return self.use.last(step.replica, step.unload, now) > since or step.unload in _computed(step.replica)

    def left(self, slot: int) -> None:
        """The incarnation of this index slot is gone."""
        self.use.left(slot)
        self._rests.pop(slot, None)
        self._under_way.pop(slot, None)

    # -- inside ----------------------------------------------------------------------------------------

    def _listed(self, replica: Replica) -> frozenset[str]:
        return self._adapters.listing(replica) or frozenset()

    def _rests_now(self, key: str | int, now: float) -> bool:
        rest = self._rests.get(key)
        return rest is not None and now < rest.until

    def _is_ready(self, replica: Replica, now: float) -> bool:
        """Whether a replica can be given something: it may be chosen, is known, and is not at it."""
        return (
            replica.slot not in self._under_way
            and not self._rests_now(replica.slot, now)
            and _may_serve(replica, now)
            and self._adapters.listing(replica) is not None
            and self._adapters.listed_since(replica, self._leads_since)
        )

    def _missing(self, replicas: Sequence[Replica], now: float) -> list[str]:
        """Adapters that requests wait for, and nobody serves."""
        asked = [*self.missed(now), *(name for names in self.wanted.values() for name in names)]
        return [
            name
            for name in dict.fromkeys(asked)
            if self._may_load(name, now) and not self.serves(name, replicas, now)
        ]

    def _may_load(self, name: str, now: float) -> bool:
        at_it = any(step.name == name for step in self._under_way.values())
        return name in self.rules.paths and not at_it and not self._rests_now(name, now)

    def _crowded(self, replicas: Sequence[Replica], now: float) -> list[str]:
        """Adapters whose replicas all have more to do than a load takes beyond what others have, the worst first."""
        ahead = {r.slot: r.backlog(now) for r in replicas if _may_serve(r, now)}
        found = []
        for name in self.use.lately(_LATELY, now):
            serving = [ahead[r.slot] for r in replicas if r.slot in ahead and name in self._listed(r)]
            others = [ahead[r.slot] for r in replicas if r.slot in ahead and name not in self._listed(r)]
            if not (serving and others and self._may_load(name, now)):
                continue
            gain = min(serving) - min(others) - self._adapters.load
            if gain > 0:
                found.append((-gain, name))
        return [name for _, name in sorted(found)]

    def _above(self, ready: Sequence[Replica], now: float) -> Step | None:
        """What goes where more are listed than may be, be it by another bound before or another gateway; or None."""
        for replica in ready:
            listed = self._listed(replica)
            if len(listed) > self.rules.most and (goes := self._goes(replica, listed, ready, now)[0]):
                return Step(replica, "", goes)
        return None

    def _place(self, name: str, ready: Sequence[Replica], now: float, *, copy: bool) -> Step | None:
        """Where it costs least; None where it can't be had."""
        best, least = None, inf
        for replica in ready:
            listed = self._listed(replica)
            if name in listed or len(listed) > self.rules.most:  # one that goes makes no room there
                continue
            goes, seconds = "", replica.backlog(now) + self._adapters.load * len(listed) / self.rules.most
            if len(listed) >= self.rules.most:
                goes, missed = self._goes(replica, listed, ready, now)
                if not goes or (copy and missed > _MISSED):
                    continue
                seconds += self._adapters.load * (1.0 + missed)
            if seconds < least:
                best, least = Step(replica, name, goes), seconds
        return best

    def _goes(
        self, replica: Replica, listed: frozenset[str], ready: Sequence[Replica], now: float
    ) -> tuple[str, float]:
        """What is used least lately of what may go ("" for nothing), and how much it is missed, 0..1.

        As where slots are taken (core/adapters.py): less, the longer it is unused; not at all where another has it.
        """
        if replica.sample is None:
            return "", 0.0  # never heard
        wanted = {*self.missed(now), *(name for names in self.wanted.values() for name in names)}
        computed, before, oldest, found = _computed(replica), now - self.rules.idle, inf, ""
        for one in sorted(listed & self.rules.paths.keys()):
            last = max(self.use.last(replica, one, now), self._since)
            if last <= before and last < oldest and one not in wanted and one not in computed:
                oldest, found = last, one
        if any(other is not replica and found in self._listed(other) for other in ready):
            return found, 0.0
        return found, exp((oldest - now) / self._adapters.rules.keep) if found else 0.0


def _may_serve(replica: Replica, now: float) -> bool:
    """Whether requests may go there, be it few: one that warms up or is slow serves what nobody else does."""
    return replica.excluded(now) in (None, WARMING, SLOW)


def _computed(replica: Replica) -> tuple[str, ...]:
    """Adapters that the engine says it computes with, or that wait there; none where it does not tell."""
    return (replica.sample.adapters or ()) if replica.sample is not None else ()
