"""Everything by which this gateway and the others act as one: made, started and stopped together.

    decisions -> ledger -> outbox -> journal (Redis) -> other gateways' readers -> their books, index, samples
                                        |
                                        +-- snapshot: where a new gateway begins

Decisions read local memory only. With Redis gone they go on with what is known here, and `state` says so.
"""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from extproc.config import RedisSettings
from extproc.core.announced import ALONE, JUDGE, WATCHER, Ruling
from extproc.core.outbox import Outbox
from extproc.core.pool import Pool
from extproc.core.reach import Reach
from extproc.core.sample import Sample
from extproc.core.shared import Shared, observe
from extproc.core.steering import Steering
from extproc.io import clock as clocks
from extproc.io.journal import Reader, Writer
from extproc.io.journal_counts import JournalCounts
from extproc.io.journal_stream import StreamClock
from extproc.io.lease import Lease
from extproc.io.leases import Leases
from extproc.io.scrape_duty import ScrapeDuty
from extproc.io.snapshot_duty import SnapshotDuty
from extproc.io.state_snapshot import Snapshots
from extproc.io.tasks import Supervisor

_log = structlog.get_logger("kvsteer.sharing")

#: Seconds between looks for silent gateways, and for replicas that were not known when news of them came.
_TICK = 0.25
#: Seconds after which what was concluded of caches is told again.
_AGAIN = 5.0
#: Seconds that a gateway has been with others again when it tells what it found alone: by then it has read what they
#: said meanwhile, and does not say it twice.
_SETTLED = 1.0


class Sharing:
    """One gateway's part in the fleet.

    Args:
        settings: where Redis is.
        steering: whose decisions are told, and whose pools learn of others'.
        gateway_id: who this is.
        on_sample: given a pool, an address and another gateway's sample.
        clock: seconds, monotonic.

    Attributes:
        identity: name and start of this gateway, as the others know it.
    """

    def __init__(
        self,
        settings: RedisSettings,
        steering: Steering,
        gateway_id: str,
        on_sample: Callable[[Pool, str, Sample], None] = observe,
        clock: Callable[[], float] = clocks.monotonic,
    ) -> None:
        boot = secrets.randbits(62)
        self._steering = steering
        self._clock = clock
        self._on_sample = on_sample
        self.leases = Leases(settings, gateway_id)
        self._collects = {pool.name: self.leases.of(f"collector:{pool.name}") for pool in steering.pools}
        self._duties: dict[str, ScrapeDuty] = {}
        self.shared = Shared(steering.pools, (gateway_id, boot), self._heard)
        self.shared.collects = lambda pool, gateway: self._collects[pool].holder == gateway[:64]
        self.shared.epoch = clocks.wall
        self.shared.on_news = steering.holding.stir
        self.shared.on_first_token = lambda key, seen: steering.first_token(key, clock(), seen)
        self.identity = gateway_id, boot
        self.counts = JournalCounts(gateway_id, boot)
        self.outbox = Outbox(gateway_id, boot, steering.pools, steering.ledger, lambda: self._writer.wake())
        stream_clock = StreamClock()
        parts = (self.counts, stream_clock, clock)
        self._writer = Writer(settings, self.outbox, self.shared, *parts)
        self.reach = Reach(self.shared.pools)
        self._reader = Reader(settings, self.shared, *parts, self.reach)
        writes = {pool.name: self.leases.of(f"snapshot:{pool.name}") for pool in steering.pools}
        end = lambda: self._reader.last  # noqa: E731 - the reader's is another after each entry
        self.snapshots = Snapshots(settings, self.shared, writes, gateway_id, end, clock)
        self._duty = SnapshotDuty(self.snapshots, self.shared, self.reach, writes, end, clock)
        self.snapshots.on_refused = self._snapshot_refused
        for name, lease in writes.items():
            lease.willing = partial(self._duty.is_willing, name)
        for pool in steering.pools:
            if pool.feedback is None:  # who collects judges caches, too: that is for others, if any can
                self._collects[pool.name].willing = lambda: not self.shared.peers.can_judge
        self._is_crowded = False
        self._told = float("-inf")  # when rulings were last told again
        self._alone = float("-inf")  # when this gateway last was cut off, or heard nobody
        self._peers: set[tuple[str, int]] = set()  # who was heard at the last look
        self._tasks = Supervisor(lambda name: self.on_task_failure(name))
        #: Called with a task's name when it failed and is started again.
        self.on_task_failure: Callable[[str], None] = lambda _name: None

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to tell and to listen. Returns at once: this gateway serves cold until the snapshot is loaded."""
        self._steering.ledger.listener = self._steering.holding.listener = self.outbox
        self._steering.on_breaker = self.outbox.troubled
        self._steering.relay = self._relay
        for pool in self._steering.pools:
            self._share_truth(pool)
        self.leases.start(self._tasks)
        self._tasks.start("journal out", self._writer.run)
        self._tasks.start("journal in", self._read)
        self._tasks.start("snapshots", self._duty.run)
        self._tasks.every("peers", _TICK, self._tick)

    async def stop(self) -> None:
        """Tell the others that this gateway leaves, and end."""
        self._steering.ledger.listener = self._steering.holding.listener = self._steering.relay = None
        self._steering.on_breaker = lambda _pool, _replica, _seconds: None
        self._writer.closing = self._reader.closing = True
        await self._tasks.close()
        await self._writer.close()
        await self._reader.close()
        await self.snapshots.close()
        await self.leases.stop()

    # -- state -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """`ok`, or `degraded` while Redis does not take or give batches."""
        return "ok" if self._writer.up and self._reader.up is not False else "degraded"

    @property
    def why(self) -> str:
        """Why leases or snapshots can't be had, as Redis answers; "" while they can."""
        return self.leases.why or self._duty.trouble.why

    def shown(self) -> dict[str, Any]:
        """For /state: gateways heard, requests of others, what waits and what was lost."""
        now, shared = self._clock(), self.shared
        return {
            "shared": self.state,
            "peers": [
                {"gateway": peer.name, "boot": boot, "silent": round(now - peer.heard, 3),
                 "requests": len(peer.flights), "newest": peer.seen.newest}
                for (_, boot), peer in shared.peers.items()
            ],
            "requests_of_others": shared.requests,
            "held_by_others": shared.held,
            "entries": {pool.name: len(pool.index) for pool in shared.pools.values()},
            "delay": round(self.counts.delay_last, 4),
            "queue": len(self.outbox),
            "position": "{}-{}".format(*self._reader.last),
            "dropped": self.dropped,
            "refused": self.refused,
            "gaps": shared.gaps,
            "snapshot": {
                "loaded": self.snapshots.loaded, "written": self.snapshots.written, "whole": self.reach.whole
            },
        }  # fmt: skip

    @property
    def dropped(self) -> dict[str, int]:
        """News that were never sent, by kind."""
        dropped = {**self.outbox.dropped, **self.counts.drops}
        dropped["other"] += self.outbox.verdicts.dropped
        return dropped

    @property
    def refused(self) -> dict[str, int]:
        """What was told and could not be used or believed, by reason: those of it that there were."""
        others = {"no_room": self.shared.peers.passed_over, "not_collector": self.shared.uncalled}
        return {**self.counts.refusals, **{reason: n for reason, n in others.items() if n}}

    # -- what the collector says -----------------------------------------------------------------------

    def duty(self, pool: str, interval: float) -> ScrapeDuty:
        """Whether this gateway scrapes a pool's replicas, every `interval` seconds: the collector's `lease`."""
        lease = self._collects[pool]
        duty = self._duties[pool] = ScrapeDuty(lambda: lease.held, interval, self._clock)
        return duty

    def sampled(self, pool: Pool, address: str, sample: Sample) -> None:
        """This gateway scraped a replica: if it holds the pool's lease it tells the others."""
        if self._collects[pool.name].held:
            self.outbox.sampled(pool, address, sample)

    def scrape_failed(self, pool: Pool, address: str, reason: str) -> None:
        """This gateway could not scrape a replica."""
        if self._collects[pool.name].held:
            self.outbox.scrape_failed(pool, address, reason, self._clock())

    def _heard(self, pool: Pool, address: str, sample: Sample) -> None:
        duty = self._duties.get(pool.name)
        if duty is not None:
            duty.heard(address, self._clock() - sample.at)
        self._on_sample(pool, address, sample)

    def _snapshot_refused(self, schema: str) -> None:
        """Of another release, more than one version away, or garbled: as with batches, told once."""
        if not self.counts.refusals.get("snapshot"):
            _log.warning("a snapshot can't be read and is passed over; only the first is told", schema=schema)
        self.counts.refused("snapshot")

    def _share_truth(self, pool: Pool) -> None:
        """Who collects a pool's samples judges its caches too; the others tell it how their prompts ended."""
        if pool.feedback is None:
            pool.on_forgot = lambda slot, hashes: self._forgot(pool, slot, hashes)
            return
        truth, lease, outbox = pool.feedback.truth, self._collects[pool.name], self.outbox
        truth.tells_later = True
        truth.role = partial(self._role, lease)
        truth.on_forgot = lambda slot, hashes: self._forgot(pool, slot, hashes)
        truth.on_ruling = lambda slot, ruling: self._ruled(pool, slot, ruling)
        truth.on_outcome = lambda key, tokens, cached: (
            outbox.verdicts.outcome(key, tokens, cached) if self.shared.peers and not lease.held else None
        )

    def _role(self, lease: Lease) -> str:
        """With Redis gone each judges for itself, as soon as it hears no others."""
        if lease.held and self.state == "ok":
            return JUDGE
        return WATCHER if self.shared.peers else ALONE

    def _ruled(self, pool: Pool, slot: int, ruling: Ruling) -> None:
        place = pool.places.get(slot)
        if place is not None:
            lease = self._collects[pool.name]
            token = lease.token if lease.held else 0
            self.outbox.verdicts.ruled(pool, pool.replicas[place], token, ruling)

    def _rule_again(self, now: float) -> None:
        """Who is new, or was away, learns what holds at once; who missed something, soon."""
        peers = set(self.shared.peers)
        is_due = now - self._told >= _AGAIN or peers - self._peers
        self._peers = peers
        if not is_due:
            return
        self._told = now
        for pool in self._steering.pools:
            if pool.feedback is not None and pool.feedback.truth.role() == JUDGE:
                for slot, ruling in pool.feedback.truth.rulings():
                    self._ruled(pool, slot, ruling)

    def _tell_lone(self, now: float) -> None:
        """What this gateway cleared while it was alone, all hear when it is back."""
        if self.state != "ok" or not self.shared.peers:
            self._alone = now
        if now - self._alone < _SETTLED:
            return
        for pool in self._steering.pools:
            if pool.feedback is not None:
                for slot, ruling in pool.feedback.truth.found_alone():
                    self._ruled(pool, slot, ruling)

    def _forgot(self, pool: Pool, slot: int, hashes: list[int]) -> None:
        for replica in pool.replicas:
            if replica.slot == slot:
                self.outbox.forgot(pool, replica.address, hashes)

    def _relay(self, gateway: tuple[str, int], key: int) -> None:
        """The first token of another gateway's exchange was seen here."""
        self.shared.first_token(gateway, key, self._clock())
        self.outbox.relay(gateway, key)

    # -- tasks -----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        for name in self.shared.expire(now):
            _log.info("a gateway is silent; what it had in flight is not counted any more", gateway=name)
        self.shared.rebind(now)
        for pool, replica, word in self.shared.leavings.look(now):
            self.outbox.leaving(pool, replica, word.said, word.leaves)
        self._tell_lone(now)
        self._rule_again(now)
        if self.shared.peers.passed_over and not self._is_crowded:
            self._is_crowded = True
            _log.warning(
                "more gateways write to the journal than are heard; give each fleet a redis.prefix of its own",
                heard=len(self.shared.peers),
            )
        self._tell_lag()
        for name in self.shared.arrived():
            self._duty.arrived(name)
        for name, duty in self._duties.items():
            duty.keep_only({replica.address for replica in self.shared.pools[name].replicas})

    def _tell_lag(self) -> None:
        """Tell the waiting rooms how late news come; others hear of us as late as we hear of ourselves."""
        late = self.counts.lately()
        if late is not None:
            for hall in self._steering.holding.halls.values():
                hall.room.heard(late)

    async def _read(self) -> None:
        await self._duty.begin()
        await self._reader.run()
