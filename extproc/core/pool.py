"""A pool: its replicas, their prefix index, its policy, and how busy it is."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from extproc.core.adapters import Adapters
from extproc.core.candidates import WHOLE, Ring
from extproc.core.domains import Domains
from extproc.core.feedback import Feedback
from extproc.core.fleet import Replica
from extproc.core.index import PrefixIndex
from extproc.core.lifecycle import GONE, QUIESCING
from extproc.core.mirror import Mirror
from extproc.core.outlook import NOWHERE, Outlook
from extproc.core.output import OutputLengths
from extproc.core.policies import Policy, make_policy
from extproc.core.prompt import BYTES_PER_TOKEN_ID, TOKENS_PER_BYTE, Chain, Prompt
from extproc.core.ratios import Ratios
from extproc.core.sample import Sample
from extproc.core.shadow import Shadow
from extproc.core.slow import judge
from extproc.core.traits import Traits

if TYPE_CHECKING:
    from extproc.core.handover import Handover
    from extproc.core.ranks import Ranks

#: Seconds over which the pool's prompt work is averaged for rho: the last minute, as the tuning was done.
_BUSY_SPAN = 60.0

#: Seconds between two comparisons of the replicas' paces.
_JUDGE = 1.0


class Busy:
    """Seconds of prompt work sent per second and replica, averaged over the last minute: rho."""

    __slots__ = ("_at", "_began", "_sum")

    def __init__(self, now: float) -> None:
        self._sum = 0.0
        self._at = self._began = now

    def add(self, seconds: float, now: float) -> None:
        """Note prompt work that was sent."""
        if now > self._at:
            self._decay(now)
        self._sum += seconds

    def rho(self, replicas: int, now: float) -> float:
        """Share of `replicas`' time that prompts take, 0 and up (above 1 in overload)."""
        if now > self._at:
            self._decay(now)
        ran = now - self._began
        # The weights of a decayed sum add up to the span only once it has run that long.
        span = _BUSY_SPAN * (1 - math.exp(-(ran if ran > 1.0 else 1.0) / _BUSY_SPAN))
        return self._sum / (span * (replicas or 1))

    def _decay(self, now: float) -> None:
        self._sum *= math.exp((self._at - now) / _BUSY_SPAN)
        self._at = now


class Room(Protocol):
    """Where requests wait for a replica (core/waiting.py); it must know what changes and what becomes cached.

    Attributes:
        own: requests of this gateway that wait there; its length is how many of all gateways do.
        own_tokens: and their prompt tokens.
    """

    own: int
    own_tokens: int

    def __len__(self) -> int: ...

    def placed(self, chains: Sequence[Chain]) -> None:
        """Prompts are on their way to a replica."""
        ...

    def stir(self) -> None:
        """A replica was heard, came or left."""
        ...

    def adopted(self) -> None:
        """The pool may have another policy."""
        ...


class Pool:
    """Replicas that can answer for the same models.

    Args:
        name: as configured.
        models: models it answers for; empty for every model.
        policy: a policy's name, and `policy_settings` its settings.
        ttl: seconds an unused index entry lives.
        max_entries: most index entries over all replicas.
        distrust: share 0..1 of predicted cached tokens that must come true; None to learn nothing from outcomes.
    """

    def __init__(
        self,
        name: str,
        *,
        models: Iterable[str] = (),
        policy: str = "charged_cost",
        policy_settings: dict[str, float] | None = None,
        traits: Traits | None = None,
        ttl: float = 1800.0,
        max_entries: int = 4_000_000,
        distrust: float | None = None,
        now: float = 0.0,
    ) -> None:
        self.name = name
        self.models = frozenset(models)
        #: A model -> the name under which the replicas serve it, where that is another.
        self.renames: Mapping[str, str] = {}
        #: Whether answers tell the model by the name that the client asked by, whatever the replicas call it.
        self.tells_asked = False
        #: What it serves of its models, where other pools serve other versions; else "".
        self.version = ""
        #: Which requests Envoy sends to another pool too; None for none.
        self.mirror: Mirror | None = None
        #: What fails together, for fallbacks.
        self.domains = Domains()
        #: Who computes prompts for others; None where each replica computes its own.
        self.handover: Handover | None = None
        #: Which data-parallel rank computes a request; None where that is left to the engines.
        self.ranks: Ranks | None = None
        self.traits = traits or Traits()
        self.policy_name = policy
        self.policy_settings = dict(policy_settings or {})
        self.policy_version = 0
        self.policy: Policy = make_policy(policy, self.policy_settings)
        #: Who holds which LoRA adapters; None where nobody asks.
        self.adapters: Adapters | None = None
        #: Decides beside the policy, to compare; None for none.
        self.shadow: Shadow | None = None
        self.output = OutputLengths(self.traits.output_tokens)
        self.index = PrefixIndex(ttl, max_entries)
        #: Tokens per byte, learned where there is feedback.
        self.ratios = Ratios()
        #: What outcomes teach; None where nothing tells them.
        #: Exchanges that another replica served than the one they were sent to.
        self.retried = 0
        #: Given a slot and hashes that it was never to hold, where nothing is learned (core/feedback.unlearned).
        self.on_forgot: Callable[[int, list[int]], None] = lambda slot, hashes: None
        self.feedback = None if distrust is None else Feedback(self.index, self.output, self.ratios, distrust)
        self.busy = Busy(now)
        self.outlook = Outlook()
        self.room: Room | None = None
        #: Never changed in place: who joins or leaves makes another list.
        self.replicas: list[Replica] = []
        #: Slot in the index -> place in `replicas`.
        self.places: dict[int, int] = {}
        #: The fleet as a decision looks at it in parts; None where it is to look at all of it.
        self.ring: Ring | None = None
        self._by_address: dict[str, Replica] = {}
        self._together = 0  # how many `at_once` are open
        self._judged = now  # when the replicas' paces were last compared

    def adopt(
        self, policy: str, settings: Mapping[str, float], shadow: Shadow | None = None, version: int = 0
    ) -> None:
        """Choose by this policy from the next decision on; `version` is 0 for what the configuration says.

        The same policy with the same settings goes on with what it remembers (sessions, turns).

        Raises:
            ValueError: no such policy, or settings it does not take. Nothing changes then.
        """
        if (policy, settings) != (self.policy_name, self.policy_settings):
            self.policy = make_policy(policy, settings)
        self.policy_name = policy
        self.policy_settings = dict(settings)
        self.policy_version = version
        self.shadow = shadow
        self._arrange()
        if self.room is not None:
            self.room.adopted()

    def rho(self, among: Sequence[Replica], now: float) -> float:
        """How busy the pool is, by what is scarcer: time for prompts, or the running slots of the replicas `among`.

        Either is the chance that a request has to wait for others: for prompts the share of time they take, as in a
        queue with one server (0 and up), for slots the share of replicas on which all are taken (0..1), since nobody
        waits while one is free. Where they are taken, whatever a replica computes slows down the answers that have
        to end before the next request may begin.
        """
        prompts = self.busy.rho(len(self.replicas), now)
        if prompts >= 1.0 or not among or not self.outlook.is_crowded(self.replicas):
            return prompts
        slots = len([replica for replica in among if replica.occupancy >= 1.0]) / len(among)
        return slots if slots > prompts else prompts

    @property
    def is_full(self) -> bool:
        """Whether all running slots of a replica are taken."""
        return any(replica.occupancy >= 1.0 for replica in self.replicas)

    def get(self, address: str) -> Replica | None:
        """The living incarnation at an address."""
        return self._by_address.get(address)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What joins and leaves within is arranged once, at the end: with thousands each time takes milliseconds.

        Until then `get` alone knows of it; nothing may be decided within.
        """
        before = self._by_address.copy()
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            if before != self._by_address:
                self._arrange()

    def join(self, address: str, now: float, started: float | None = None) -> Replica:
        """Add a replica; one that is there already is returned as it is.

        `started` is when its engine started, where that is known to be lately: it warms up (L1).
        """
        replica = self._by_address.get(address)
        if replica is None:
            slot = self.index.add_slot(self._capacity(self.traits.kv_tokens), now)
            replica = Replica(address, slot, self.traits, now, started=started, outlook=self.outlook)
            if self.feedback is not None:
                self.feedback.truth.join(slot, self._capacity(replica.kv_tokens))
            self.domains.join(address)
            self._set(replica)
        return replica

    def leave(self, address: str) -> None:
        """Remove a replica and everything believed of it. Unknown addresses are ignored."""
        replica = self._by_address.pop(address, None)
        if replica is not None:
            self.domains.leave(address)
            self._drop(replica)
            self._arrange()

    def restarted(self, address: str, now: float) -> Replica | None:
        """The engine at an address started anew: a new incarnation with a cold cache and empty books."""
        old = self._by_address.get(address)
        if old is None:
            return None
        self._drop(old)
        slot = self.index.add_slot(self._capacity(old.kv_tokens), now)
        if self.feedback is not None:
            self.feedback.truth.join(slot, self._capacity(old.kv_tokens))
        replica = Replica(address, slot, self.traits, now, old.incarnation + 1, now, self.outlook)
        if old.life.state == QUIESCING:  # who drained it meant the endpoint, not the process
            replica.drain(old.life.cause, now, old.life.deadline)
        self._set(replica)
        return replica

    def observe(self, address: str, sample: Sample) -> Replica | None:
        """Take in a sample; a changed start time or counters that ran backwards mean a restart (L5)."""
        replica = self._by_address.get(address)
        if replica is None:
            return None
        if replica.sample is not None and has_restarted(replica.sample, sample):
            replica = self.restarted(address, sample.at)
            assert replica is not None
        before = replica.kv_tokens
        replica.observe(sample)
        if replica.kv_tokens != before:
            self._resize(replica)
        if self.feedback is not None:
            self.feedback.truth.sampled(replica.slot, sample.hit_tokens, sample.block_size, sample.at)
        if self.adapters is not None:
            self.adapters.sampled(replica, sample)
        if self.room is not None:
            self.room.stir()
        return replica

    def _resize(self, replica: Replica) -> None:
        capacity = self._capacity(replica.kv_tokens)
        if self.feedback is None:
            self.index.set_capacity(replica.slot, capacity)
        else:
            self.feedback.truth.resize(replica.slot, capacity)

    def _drop(self, replica: Replica) -> None:
        """An incarnation is gone: forget what was believed of its cache."""
        replica.place = NOWHERE
        if self.feedback is not None:  # first: what still waits to be compared may change the index's slot
            self.feedback.truth.leave(replica.slot)
        self.index.remove_slot(replica.slot)
        if self.adapters is not None:
            self.adapters.left(replica.slot)

    def presume(
        self,
        replica: Replica,
        kv_tokens: int,
        max_running: int = 0,
        prefill: float = 0.0,
        decode: float = 0.0,
    ) -> None:
        """Until it is heard, take a replica for what another gateway learned of it (`Replica.presume`)."""
        replica.presume(kv_tokens, max_running, prefill, decode)
        self._resize(replica)

    def failed(self, address: str, reason: str, now: float) -> None:
        """A scrape of a replica failed; `reason` as the collector words it."""
        replica = self._by_address.get(address)
        if replica is not None:
            replica.failed(reason, now)

    def tick(self, now: float) -> list[str]:
        """Let time pass for every replica; returns the addresses of those that are gone and were removed."""
        if self.feedback is not None:
            self.feedback.catch_up()
        is_judged = now - self._judged >= _JUDGE
        if is_judged:
            self._judged = now
            judge(self.replicas, self.traits.slow_floor)
        moved = [replica for replica in self.replicas if is_judged or not replica.is_settled]
        for replica in moved:
            replica.refresh(now)
        gone = [replica.address for replica in moved if replica.life.state == GONE]
        if gone:
            with self.at_once():
                for address in gone:
                    self.leave(address)
        if self.room is not None:
            self.room.stir()  # one may be back that was barred
        return gone

    def place(self, replica: Replica, chains: Sequence[Chain], now: float) -> list[int]:
        """Prompts are on their way to a replica: from now on it is believed to hold them.

        Returns:
            For each chain how many leading hashes it was believed to hold before.
        """
        index, slot = self.index, replica.slot
        if len(chains) == 1:  # as of all but batches; a comprehension is a call
            held = [index.place(slot, chains[0], now)]
        else:
            held = [index.place(slot, chain, now) for chain in chains]
        if self.room is not None:
            self.room.placed(chains)
        return held

    def tokens_per_byte(self, prompt: Prompt) -> float:
        """Tokens a byte of this prompt makes, what its template adds included, by what was learned of its model.

        Exact for token ids.
        """
        if prompt.token_ids:
            return 1.0 / BYTES_PER_TOKEN_ID
        ratio, template = self.ratios.line(prompt.model, prompt.script)
        return ratio + template / prompt.size if template and prompt.size else ratio

    def _capacity(self, kv_tokens: int) -> int:
        """Bytes of prompt that fit into a KV cache of so many tokens, at the starting ratio."""
        return int(kv_tokens / TOKENS_PER_BYTE)

    def _set(self, replica: Replica) -> None:
        self._by_address[replica.address] = replica
        self._arrange()

    def _arrange(self) -> None:
        if self._together:
            return
        self.replicas = replicas = list(self._by_address.values())
        self.outlook.changed()
        self.places = {replica.slot: place for place, replica in enumerate(replicas)}
        self.outlook.in_flight = [replica.books.requests for replica in replicas]
        self.outlook.loads = [replica.load for replica in replicas]
        for place, replica in enumerate(replicas):
            replica.place = place
        policies = [self.policy, *([self.shadow.policy] if self.shadow else [])]
        in_parts = len(replicas) > WHOLE and all(getattr(policy, "sampled", False) for policy in policies)
        self.ring = Ring(replicas) if in_parts else None
        if self.room is not None:
            self.room.stir()


def has_restarted(before: Sample, after: Sample) -> bool:
    """Whether the engine process changed between two samples.

    A start time that moved by more than a second says so; else prompt or output counters that ran backwards.
    """
    if before.started is not None and after.started is not None:
        return abs(after.started - before.started) > 1.0
    return _fell(before.prompt_tokens, after.prompt_tokens) or _fell(
        before.generated_tokens, after.generated_tokens
    )


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before
