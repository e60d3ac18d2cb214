"""One gateway of a simulation: the core as the server runs it, fed with virtual time."""

import math
from dataclasses import dataclass, field
from random import Random

from extproc.core.decide import Decision, bind, decide
from extproc.core.fleet import Replica
from extproc.core.ledger import Ledger
from extproc.core.pool import Pool
from extproc.core.sample import Sample
from extproc.core.traits import Traits
from extproc.core.waiting import RoomSettings, WaitingRoom
from extproc.sim.jobs import Job
from extproc.sim.journal import Ended, FirstToken, News, Placed


@dataclass(slots=True, frozen=True, kw_only=True)
class GatewaySettings:
    """What every gateway of a run is told.

    `signalled`: first tokens are seen, and tell that a prompt is done. `measured`: answers tell how long they were
    (their `usage`), and the pool learns from that how long the next will be.
    """

    policy: str = "charged_cost"
    policy_settings: dict[str, float] = field(default_factory=dict)
    traits: Traits = field(default_factory=Traits)
    signalled: bool = True
    measured: bool = True
    picks: int = 3
    room: RoomSettings | None = None


class Gateway:
    """A gateway's own pool, books and index.

    Attributes:
        troubles: how often something was out of order, by the word of `Decision.trouble`.
    """

    def __init__(self, number: int, settings: GatewaySettings, seed: int, now: float) -> None:
        self.number = number
        self.settings = settings
        self.rng = Random(f"{seed}/{number}")  # noqa: S311 - spreads ties, guards nothing
        self.ledger = Ledger()
        self.pool = Pool(
            "pool",
            policy=settings.policy,
            policy_settings=settings.policy_settings,
            traits=settings.traits,
            now=now,
        )
        self.room = WaitingRoom(self.pool, settings.room) if settings.room is not None else None
        self.waiting: dict[int, Job] = {}
        self._changed = True  # something came since `next_due` last found nothing
        self.wake = math.inf  #: when `next_due` must be asked although nothing happened
        self.alarm = math.inf  #: when the simulation will ask
        self.troubles: dict[str, int] = {}

    def join(self, address: str, now: float) -> None:
        """A replica is there."""
        self.pool.join(address, now)

    def leave(self, address: str) -> None:
        """A replica may not be chosen any more."""
        self.pool.leave(address)

    def observe(self, address: str, sample: Sample) -> None:
        """A sample of a replica came."""
        self.pool.observe(address, sample)

    def arrive(self, job: Job, now: float) -> bool:
        """Take a request in; True when it may have to wait, so that `bind_due` decides."""
        room = self.room
        if room is None or not room.has_space(job.row.tokens):
            return False
        room.hold(job.key, job.row.prompt(), now)
        self._changed = True
        self.waiting[job.key] = job
        return True

    def next_due(self, now: float) -> Job | None:
        """The next waiting request that must be sent now."""
        if self.room is None or not self.waiting or (now < self.wake and not self._changed):
            return None
        key = self.room.next_own(now)
        if key is None:
            self._changed = False
            self.wake = self.room.wake(now)
            return None
        self.room.remove(key)
        return self.waiting.pop(key)

    def decide(self, job: Job, now: float) -> Decision:
        """Choose a replica for a request and charge it."""
        decision = decide(
            self.pool,
            job.row.prompt(),
            self.ledger,
            self.rng,
            key=job.key,
            now=now,
            picks=self.settings.picks,
            told=self.settings.signalled,
        )
        if decision.trouble:
            self.troubles[decision.trouble] = self.troubles.get(decision.trouble, 0) + 1
        return decision

    def fall_back(self, decision: Decision, replica: Replica, now: float) -> None:
        """The chosen replica could not be reached: move the charge to the next."""
        decision.at, decision.replica = now, replica
        bind(decision, replica, self.ledger)

    def first_token(self, key: int, now: float) -> None:
        """The first token of an own request came."""
        if self.settings.signalled:
            self.ledger.prompt_done(key, now)
            self._changed = True

    def ended(self, key: int, now: float, *, answered: bool) -> None:
        """An own request is over; `answered` in full, or not."""
        self._release(key, now, answered=answered)

    def answered(self, job: Job) -> None:
        """An own request was answered in full: its length is learned from, as the server does with `usage`."""
        if self.settings.measured:
            prompt = job.row.prompt()
            self.pool.output.observe(
                prompt.model, prompt.dialect, job.row.tokens, job.row.output, prompt.max_output
            )

    def hear(self, news: News, now: float, lag: float = 0.0) -> None:
        """Take in what another gateway did `lag` seconds ago."""
        if self.room is not None:
            self.room.heard(lag)
        if isinstance(news, Placed):
            self._hear_placed(news, now)
        elif isinstance(news, FirstToken):
            if self.settings.signalled:
                self.ledger.prompt_done(news.key, now, news.at)
                self._changed = True
        elif isinstance(news, Ended):
            self._release(news.key, now)
            if self.room is not None:
                self.room.remove(news.key)
        elif self.room is not None:
            self.room.hear(news.key, news.prompt, news.arrived)

    def _release(self, key: int, now: float, *, answered: bool = False) -> None:
        """Take a charge off. Where all running slots were taken, that makes one free."""
        if self.waiting and self.pool.is_full:
            self._changed = True
        self.ledger.release(key, now, answered=answered)

    def _hear_placed(self, news: Placed, now: float) -> None:
        if self.room is not None:
            self.room.remove(news.key)
        self._changed = True
        replica = self.pool.get(news.address)
        if replica is None:
            return
        told = self.settings.signalled
        self.ledger.charge(news.key, replica, news.work, news.tokens, now, news.at, told=told)
        self.pool.busy.add(news.work / replica.prefill_speed, now)
        self.pool.place(replica, news.chains, now)
