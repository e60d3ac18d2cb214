"""LoRA adapters: which replica is believed to hold which, and what a request costs where its adapter is not.

A replica computes with `slots` adapters at once; another one has to be loaded first, and where all slots are taken
the one that was used longest ago goes. Best first, as seconds on top of what a request costs anyway:

    held    it is among the last `slots` adapters that were used there             0
    room    a slot was never used, or is free                                      load
    idle    the one used longest ago must go, and may be asked for again           load * (1 + exp(-unused / keep))
    busy    every slot computes now, by the last sample                            the same, and one answer's time

So affinity trades against load and cache in one sum: an adapter much asked for is loaded on a second replica once
the first one's work ahead is worth more than a load. Engines tell activity (`vllm:lora_requests_info`), not what is
loaded; so what this gateway sent counts with what samples show, in the order of use. vLLM loads within a step, so a
load delays all on the replica; `load` is what the operator measured, or what loads through the API took.

Names are those that settings, `/v1/models` or samples tell. What a client names and nobody told is no adapter.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from extproc.core.adapter_loads import Loading
from extproc.core.adapter_waits import Waiter
from extproc.core.fleet import Replica
from extproc.core.prompt import Prompt
from extproc.core.sample import Sample

#: Most names that engines may tell of one pool, and longest name, in characters.
MOST_NAMES: Final = 10_000
LONGEST_NAME: Final = 256

# How a replica stood to the adapter of a request that was bound to it. A closed set: it labels metrics.
HELD: Final = "held"
ROOM: Final = "room"
IDLE: Final = "idle"
BUSY: Final = "busy"
TIERS: Final = (HELD, ROOM, IDLE, BUSY)

#: Why a replica is no candidate: it listed its models, and the adapter is not among them.
NOT_LISTED: Final = "adapter"


@dataclass(slots=True, frozen=True, kw_only=True)
class AdapterRules:
    """What the operator says of adapters.

    Attributes:
        slots: adapters a replica computes with at once, where its metrics don't tell; at least 1.
        load: seconds that loading one takes.
        keep: seconds after which an unused adapter is hardly missed: 1/e of the price of losing it is left then.
        names: adapter -> the model it belongs to ("" for unknown), known beforehand.
    """

    slots: int = 4
    load: float = 0.5
    keep: float = 60.0
    names: Mapping[str, str] = field(default_factory=dict)


class Adapters:
    """The adapters of one pool.

    Attributes:
        load: seconds that a load is believed to take.
        bound: requests by tier, since the start.
        loading: loads them through the engines' API; None where nobody does.
        doubted: index slots of replicas that answered otherwise than they list: they are to be asked again.
    """

    def __init__(self, rules: AdapterRules) -> None:
        self.rules = rules
        self.load = rules.load
        self.bound = dict.fromkeys(TIERS, 0)
        self.loading: Loading | None = None
        self.doubted: set[int] = set()
        self._names: dict[str, str] = dict(rules.names)
        #: Slot of a replica in the index -> adapter -> when it was last used, in the order of use.
        self._held: dict[int, OrderedDict[str, float]] = {}
        #: Adapter -> slots of the replicas that hold it.
        self._holders: dict[str, dict[int, float]] = {}
        #: Slot -> adapters that the replica lists; none where it was not asked or did not answer.
        self._listed: dict[int, frozenset[str]] = {}
        #: Adapters that engines told of, and how many replicas list each of them or of those known beforehand.
        self._listers: Counter[str] = Counter()
        self._told_of: set[str] = set()
        #: Slot -> when that last changed through the API: what the replica was asked before says less.
        self._changed: dict[int, float] = {}
        #: Slot -> when the replica was asked for the list that was taken last.
        self._asked: dict[int, float] = {}

    # -- what is known ---------------------------------------------------------------------------------

    @property
    def names(self) -> Mapping[str, str]:
        """Every adapter that is known, and the model it belongs to; "" for unknown."""
        return self._names

    def of(self, prompt: Prompt | None) -> str:
        """The adapter that a request asks for; "" for none."""
        if prompt is None:
            return ""
        name = prompt.adapter or prompt.model
        return name if name in self._names else ""

    def holders(self, name: str) -> Mapping[int, float]:
        """Index slots of the replicas that are believed to hold an adapter."""
        return self._holders.get(name, {})

    def held(self, replica: Replica) -> Sequence[str]:
        """Adapters that a replica is believed to hold, the one used longest ago first."""
        return list(self._held.get(replica.slot, ()))

    def slots(self, replica: Replica) -> int:
        """How many adapters a replica computes with at once."""
        sample = replica.sample
        told = sample.max_adapters if sample is not None else None
        return told or self.rules.slots

    def lists(self, replica: Replica, name: str) -> bool:
        """Whether a replica may serve an adapter: it lists it, or never told what it lists."""
        listed = self._listed.get(replica.slot)
        return listed is None or name in listed

    def listing(self, replica: Replica) -> frozenset[str] | None:
        """Adapters that a replica lists; None where it is not known."""
        return self._listed.get(replica.slot)

    def listed_since(self, replica: Replica, since: float) -> bool:
        """Whether a replica itself told what it lists, asked at `since` or later."""
        return self._asked.get(replica.slot, -math.inf) >= since

    @property
    def listings(self) -> int:
        """Pairs of a replica and an adapter that it lists."""
        return sum(map(len, self._listed.values()))

    # -- what a decision asks --------------------------------------------------------------------------

    def keeps(
        self, waiter: Waiter, key: int, prompt: Prompt, replicas: Sequence[Replica], now: float
    ) -> bool:
        """Whether a request waits until its adapter is loaded somewhere: `waiter.due` is called then."""
        return self.loading is not None and self.loading.keeps(waiter, key, self.of(prompt), replicas, now)

    @property
    def patience(self) -> bytes:
        """What makes Envoy wait for it."""
        return self.loading.patience if self.loading is not None else b""

    def serving(self, replicas: Sequence[Replica], name: str) -> Sequence[Replica]:
        """Those that may serve an adapter; all of them where none may, as what they list may be old.

        One that is loaded here goes to who lists it, else to who is not known not to; there may be none.
        """
        if self.loading is not None and name in self.loading.rules.paths:
            sure = [replica for replica in replicas if name in self._listed.get(replica.slot, ())]
            return sure or [replica for replica in replicas if self.lists(replica, name)]
        if not self._listed:
            return replicas
        found = [replica for replica in replicas if self.lists(replica, name)]
        return found if found and len(found) < len(replicas) else replicas

    def costs(self, replicas: Sequence[Replica], name: str, output: float, now: float) -> list[float]:
        """Seconds that each replica costs on top, since it has to load the adapter first. `output` in tokens."""
        held = self._holders.get(name, {})
        return [0.0 if r.slot in held else self._price(r, output, now)[1] for r in replicas]

    def _price(self, replica: Replica, output: float, now: float) -> tuple[str, float]:
        """Tier and seconds of a replica that does not hold the adapter."""
        held, slots = self._held.get(replica.slot), self.slots(replica)
        if held is None or len(held) < slots:
            return ROOM, self.load
        unused = now - next(iter(held.values()))
        seconds = self.load * (1.0 + math.exp(-max(unused, 0.0) / self.rules.keep))
        sample = replica.sample
        if sample is not None and sample.adapters is not None and len(sample.adapters) >= slots:
            # Sequences share the decode speed; one of them has to end before a slot is free.
            return BUSY, seconds + output * max(replica.requests, 1.0) / replica.decode_speed
        return IDLE, seconds

    # -- what happens ----------------------------------------------------------------------------------

    def placed(self, replica: Replica, name: str, now: float, key: int = 0) -> None:
        """Request `key` for an adapter ("" for none) was bound to a replica: it holds the adapter from now on."""
        if not name:
            return
        if self.loading is not None:
            self.loading.use.began(key, replica.slot, name, now)
        held = replica.slot in self._holders.get(name, ())
        self.bound[HELD if held else self._price(replica, 0.0, now)[0]] += 1
        self._use(replica.slot, self.slots(replica), (name,), now)

    def sampled(self, replica: Replica, sample: Sample) -> None:
        """A sample shows which adapters are computed with now, of all senders."""
        if not sample.adapters:
            return
        names = [name for name in sample.adapters if self._learn(name, "")]
        self._use(replica.slot, self.slots(replica), names, sample.at)

    def listed(self, replica: Replica, names: Mapping[str, str], asked: float = math.inf) -> None:
        """A replica listed its adapters, each with its model; what it does not list it does not hold.

        It says nothing where something is loaded or unloaded there, or was since it was asked.
        """
        at_it = self.loading is not None and self.loading.is_at(replica)
        if at_it or asked < self._changed.get(replica.slot, -math.inf):
            return
        self._asked[replica.slot] = asked
        self._list(
            replica.slot, frozenset(name for name, parent in names.items() if self._learn(name, parent))
        )

    def forget(self, replicas: Iterable[Replica]) -> None:
        """Know no more what engines told of and no replica lists or holds, if it is known what each of them lists."""
        gone = [name for name in self._told_of if not self._listers[name] and name not in self._holders]
        if gone and all(replica.slot in self._listed for replica in replicas):
            for name in gone:
                self._told_of.remove(name)
                del self._names[name]

    def told(self, replica: Replica, names: Iterable[str], managed: Iterable[str]) -> None:
        """Who loads adapters tells which of `managed` a replica serves now; of others it says nothing."""
        listed = self._listed.get(replica.slot)
        if listed is not None:
            self._list(replica.slot, (listed - frozenset(managed)) | frozenset(names) & self._names.keys())

    def not_found(self, replica: Replica, prompt: Prompt | None) -> None:
        """A replica answered 404 to a request: if that was for an adapter that it lists, it may list it no more."""
        if self.of(prompt) in self._listed.get(replica.slot, ()):
            self.doubted.add(replica.slot)

    def loaded(self, replica: Replica, name: str, now: float, seconds: float) -> None:
        """An adapter was loaded through the API, which took so long."""
        self.load += (seconds - self.load) / 4  # the mean of about the last four
        self._know(replica.slot, self._listed.get(replica.slot, frozenset()) | {name})
        self._changed[replica.slot] = now
        self._use(replica.slot, self.slots(replica), (name,), now)
        if self.loading is not None:
            self.loading.use.touched(replica.slot, name, now)

    def unloaded(self, replica: Replica, name: str, now: float) -> None:
        """An adapter is unloaded through the API."""
        self._changed[replica.slot] = now
        self._list(replica.slot, self._listed.get(replica.slot, frozenset()) - {name})

    def unsure(self, replica: Replica, now: float) -> None:
        """A call to its API failed: what it serves is not known until it lists it again."""
        self._changed[replica.slot] = now
        self._know(replica.slot, None)

    def left(self, slot: int) -> None:
        """The incarnation of this index slot is gone, with all it held."""
        for name in list(self._held.get(slot, ())):
            self._drop(slot, name)
        self._know(slot, None)
        for known in (self._held, self._changed, self._asked):
            known.pop(slot, None)
        self.doubted.discard(slot)
        if self.loading is not None:
            self.loading.left(slot)

    # -- inside ----------------------------------------------------------------------------------------

    def _list(self, slot: int, names: frozenset[str]) -> None:
        """What a replica lists from now on; it holds nothing else."""
        gone = self._listed.get(slot, frozenset()) - names
        self._know(slot, names)
        for name in [name for name in self._held.get(slot, ()) if name not in names]:
            self._drop(slot, name)
        if self.loading is not None:
            for name in gone:
                self.loading.use.forget(slot, name)

    def _know(self, slot: int, names: frozenset[str] | None) -> None:
        """Keep what a replica lists; None for unknown."""
        before = self._listed.pop(slot, frozenset())
        if names is not None:
            self._listed[slot] = names
        for name in before - (names or frozenset()):
            self._listers[name] -= 1
            if not self._listers[name]:
                del self._listers[name]
        self._listers.update((names or frozenset()) - before)

    def _learn(self, name: str, parent: str) -> bool:
        """Know a name that an engine told; False for one too many or too long."""
        if name not in self._names and (len(self._names) >= MOST_NAMES or len(name) > LONGEST_NAME):
            return False
        if name not in self._names:
            self._told_of.add(name)
            self._names[name] = parent
        elif parent:
            self._names[name] = parent
        return True

    def _use(self, slot: int, slots: int, names: Iterable[str], now: float) -> None:
        held = self._held.setdefault(slot, OrderedDict())
        for name in names:
            held[name] = max(now, held.get(name, now))
            held.move_to_end(name)
            self._holders.setdefault(name, {})[slot] = now
        while len(held) > slots:
            self._drop(slot, next(iter(held)))

    def _drop(self, slot: int, name: str) -> None:
        del self._held[slot][name]
        holders = self._holders[name]
        del holders[slot]
        if not holders:
            del self._holders[name]
