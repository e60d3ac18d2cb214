"""What is believed of each replica, and whether it may be chosen.

This module knows samples, books and time as arguments; who fetched a sample, and when, is not its business.
"""

import math
from typing import Final

from extproc.core.bias import cost_of, empty_share
from extproc.core.books import Books
from extproc.core.breaker import CLOSED, HALF_OPEN, Breaker, verdict
from extproc.core.headroom import Headroom, Parts
from extproc.core.lifecycle import (
    HEALTHY,
    MISSED,
    RECOVERED,
    SAMPLE,
    UNDRAIN,
    Lifecycle,
)
from extproc.core.outlook import NOWHERE, Load, Outlook
from extproc.core.progress import Progress, begun, tells
from extproc.core.sample import Sample
from extproc.core.slow import Pace
from extproc.core.speeds import Speeds, Stepped
from extproc.core.traits import Traits

#: Failed scrapes in a row after which a replica gets nothing new (L7). A refused or broken connection says at
#: once that nobody is there; silence may be a busy engine, so it takes a few.
_MISSES = {"connect": 1}
_MISSES_OTHERWISE = 4
#: Scrape failures that say nothing of the engine's health: it answers, but not with metrics we can read.
_HARMLESS = ("status_", "unparsable", "too_large", "internal", "tls")

#: Least seconds a piece of prompt work must take to be learned from.
_LEARN_SECONDS = 0.1
#: Most sequences at once that are believed.
_MOST_RUNNING = 10**6
#: Largest KV cache that is believed, in tokens: a thousand times what one node holds today.
_MOST_TOKENS = 10**12

#: KV use up to which a cache counts as free; above it a penalty sets in (R13).
KV_FREE: Final = 0.8

#: Share of its requests that a replica keeps on another gateway's word that it is broken: enough to see for oneself
#: soon, and never none, so that no word of others takes a replica out.
DOUBTED: Final = 0.25

# Why a replica is no candidate. A closed set: it labels metrics and records.
#: Reasons that say "rather not", from which the last resort is taken when nobody else is left: what an engine
#: answered to some may not hold for others, and metrics that can't be fetched say nothing of requests.
SOFT: Final = frozenset({"breaker", "pushback", "backoff", "warming"})

# Beside these words it may be a state of core/lifecycle.py.
STALE: Final = "stale"
KV_CEILING: Final = "kv_ceiling"
SLOW: Final = "slow"
BREAKER: Final = "breaker"
PUSHBACK: Final = "pushback"
ASLEEP: Final = "asleep"


class Replica:
    """One incarnation of one engine endpoint.

    Args:
        address: ip:port.
        slot: its number in the prefix index.
        traits: what holds for the pool.
        now: seconds, monotonic.
        incarnation: counts up at each restart of the engine.
        started: when the engine started, on the same clock; None takes it for warm (core/lifecycle.py).
        outlook: what holds for all replicas of its pool; it is told when this one changes.

    Attributes:
        place: its place in the pool's list; NOWHERE while it is in none.
        failed_tries: tries of requests that it failed and others served.
        passed_over: when the newest request was picked for it that Envoy sent elsewhere at once; -inf for none.
        share: 0..1, of the requests for which it is a candidate: below 1 while it warms up (L1) or is slow (L6).
        sample: the last one; None before the first.
        occupancy: sequences on it (running, waiting or sent) per running slot; above 1 some must wait.
        crowded: whether the next sequence would wait for a slot, or find KV use above KV_FREE.
        kv_load: share of its KV cache that live requests take: by telemetry, and own books for what was sent since.
        context: tokens of its sequences per token of its KV cache, prefixes shared between them counted each time:
            what every step reads. Above 1 where much is shared.
        barred: reason it may not be chosen whatever the time; None when it may.
        fresh_until: time from which its telemetry is too old to choose it (R8).
        headroom: score 0..1; None while unknown.
        lean: how much more of that there is for long requests than for short ones (core/headroom.py).
        cost, bias: what a second of it costs against the others'; and with the favour of a cold cache (core/bias.py).
        is_settled: whether time alone changes neither `barred` nor `share` nor `bias`: only events do, and each
            refreshes.
        unheard: why the last scrape failed, as the collector words it; "" when it did not.
    """

    __slots__ = (
        "_counted", "_decode", "_failures", "_headroom", "_outlook", "_prefill", "_progress", "_seen_beyond",
        "_shown", "_speeds", "_strangers", "address", "barred", "bias", "books", "breaker", "context", "cost",
        "crowded", "decode_speed", "failed_tries", "fresh_until", "headroom", "incarnation", "is_settled",
        "kv_load", "kv_tokens", "lean", "life", "max_running", "occupancy", "pace", "passed_over", "place",
        "prefill_speed", "sample", "share", "slot", "traits", "unheard",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        slot: int,
        traits: Traits,
        now: float,
        incarnation: int = 1,
        started: float | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        self._outlook = outlook or Outlook()
        self.address = address
        self.slot = slot
        self.place = NOWHERE
        self.traits = traits
        self.incarnation = incarnation
        self.books = Books()
        self.life = Lifecycle(traits.warm_up, now, started)
        self.breaker = Breaker(traits.breaker)
        self.failed_tries = 0
        self.passed_over = -math.inf
        self.pace = Pace()
        self.share = self.life.share(now)
        self.prefill_speed = traits.prefill_speed
        self.decode_speed = traits.decode_speed
        self.max_running = traits.max_running
        self.kv_tokens = traits.kv_tokens
        self.sample: Sample | None = None
        self.occupancy = self.kv_load = self.context = 0.0
        self.crowded = False
        self.barred: str | None = None if self.share else self.life.state
        self.fresh_until = now + traits.stale_after  # a new replica has the benefit of one span
        self.headroom: float | None = None
        self.lean = 0.0
        self.cost = self.bias = traits.costs.get(address, 1.0)
        self._headroom = Headroom(traits.weights)
        self.is_settled = False
        self.unheard, self._failures = "", 0
        self._speeds = Speeds(traits.prefill_speed, traits.decode_speed, traits.prefill_doubling)
        self._prefill, self._decode = Stepped(traits.prefill_speed), Stepped(traits.decode_speed)
        #: Requests of other senders at the last two samples. A sample is late, and shows what ended since; only
        #: what both show counts.
        self._strangers = 0.0
        self._seen_beyond: float | None = None  # at the last sample
        #: What the last sample that knew it said of KV use, and the share of the cache that the books' tokens took
        #: then: what came since is not in it. 0 and 0 where the last one did not know.
        self._shown = self._counted = 0.0
        self._progress = Progress(traits.prefill_doubling)

    def observe(self, sample: Sample) -> None:
        """Take in a sample of this incarnation."""
        self.sample = sample
        if sample.max_running:
            self.max_running = sample.max_running
        if sample.kv_capacity and sample.kv_capacity <= _MOST_TOKENS:
            self.kv_tokens = sample.kv_capacity
        self.cost = cost_of(self.traits.costs.get(self.address, 1.0), self.traits.factor, sample)
        self.pace.observe(sample)
        if self._speeds.observe(sample, self.max_running):
            self._follow()
        self._headroom.update(sample, self.max_running)
        self.headroom, self.lean = self._headroom.score, self._headroom.lean
        self._count_strangers(sample)
        if self.traits.counters and tells(sample):
            self._reconcile(sample)
        else:
            self._hold(sample)
        self.recount()
        self._failures, self.unheard = 0, ""
        before, self.fresh_until = self.fresh_until, sample.at + self.traits.stale_after
        self._outlook.heard(before, self.fresh_until)
        self.life.apply(SAMPLE, "metrics", sample.at)
        if self.life.cause == "metrics":  # what missed scrapes began, a scrape ends; the breaker ends its own
            self.life.apply(RECOVERED, "metrics", sample.at)
        self.refresh(sample.at)

    def presume(
        self, kv_tokens: int, max_running: int = 0, prefill: float = 0.0, decode: float = 0.0
    ) -> None:
        """Until it is heard, take it for what another gateway learned; nonsense and 0 (unknown) are ignored.

        Args:
            kv_tokens, max_running: tokens of its KV cache, sequences at once.
            prefill, decode: as `estimates`.
        """
        self.kv_tokens = kv_tokens if 0 < kv_tokens <= _MOST_TOKENS else self.kv_tokens
        self.max_running = max_running if 0 < max_running <= _MOST_RUNNING else self.max_running
        self._speeds.presume(prefill, decode)
        self._follow()
        self.recount()

    def _follow(self) -> None:
        """Bring the speeds up to date with what was learned."""
        before, self.prefill_speed = self.prefill_speed, self._prefill.follow(self._speeds.prefill)
        self.decode_speed = self._decode.follow(self._speeds.decode)
        if self.prefill_speed != before:
            self._outlook.changed()

    @property
    def estimates(self) -> tuple[float, float]:
        """What was learned of its speeds, before rounding to steps: prompt work and output tokens a second."""
        return self._speeds.prefill, self._speeds.decode

    def _count_strangers(self, sample: Sample) -> None:
        seen = (sample.running or 0.0) + (sample.waiting or 0.0)
        beyond = max(seen - self.books.requests, 0.0)
        self._shown = self._counted = 0.0
        if sample.kv_used is not None:
            self._shown, self._counted = sample.kv_used, self.books.tokens / self.kv_tokens
        self._strangers = min(beyond, self._seen_beyond) if self._seen_beyond is not None else beyond
        self._seen_beyond = beyond

    def _reconcile(self, sample: Sample) -> None:
        """Put the prompt work that is believed left within what the engine's counters prove."""
        books = self.books
        known, unknown = books.known(), books.unknown()
        shown = (sample.running or 0.0) + (sample.waiting or 0.0) >= books.requests
        strangers = self._strangers if shown else None
        found = self._progress.observe(sample, unknown, known, strangers)
        if found is not None:
            books.correct(unknown, found.done, found.part, sample.at)

    def _hold(self, sample: Sample) -> None:
        """Without such counters: within what its gauges prove."""
        if self.books.awaits:
            return
        unknown = self.books.unknown()
        doubling = self.traits.prefill_doubling
        found = begun(sample, unknown, self.books.requests, self._strangers, doubling)
        if found is not None:
            self.books.hold(unknown, found.done, found.most, sample.at)

    def refresh(self, now: float) -> None:
        """Let time pass and bring `barred`, `share` and `bias` up to date.

        At every event, and a few times a second while it is not settled.
        """
        before = self.barred, self.share, self.bias
        self.life.tick(now)
        self.breaker.tick(now)
        self.share = self.life.share(now) * self.pace.share * (DOUBTED if self.is_doubted(now) else 1.0)
        self.barred = self._reason(now)
        age = now - self.life.born
        # While it warms up it gets less, not more.
        if age < self.traits.cold.span and self.life.state == HEALTHY:
            self.bias = self.cost * self.traits.cold.factor(age, empty_share(self.sample, self.kv_tokens))
        else:
            self.bias = self.cost
        if (self.barred, self.share, self.bias) != before:
            self._outlook.changed()
        breaker = self.breaker
        self.is_settled = (
            self.barred is None
            and self.share == 1.0
            and self.life.state == HEALTHY
            and age >= self.traits.cold.span
            and breaker.state == CLOSED
            and now >= breaker.wary_until
        )

    def is_doubted(self, now: float) -> bool:
        """Whether another gateway found it broken a moment ago, and this one knows nothing of it yet."""
        return now < self.breaker.wary_until and self.breaker.state == CLOSED

    def doubt(self, until: float, now: float, said: float = math.inf) -> None:
        """Another gateway found it broken, and leaves it alone until then; in the past: it is well again."""
        self.breaker.warn(until, now, said)
        self.refresh(now)

    @property
    def parts(self) -> Parts:
        """What each part of the headroom score was at the last sample."""
        return self._headroom.parts

    def _reason(self, now: float) -> str | None:
        sample = self.sample
        if self.share == 0.0:
            return self.life.state
        if not self.breaker.allows(now):
            return BREAKER
        if now < self.breaker.pushed_until:
            return PUSHBACK
        if sample is None:
            return None
        if sample.asleep:
            return ASLEEP
        if now >= self.fresh_until:
            return None  # what it said of its KV is too old to hold against it; it is stale
        full = sample.kv_used is not None and sample.kv_used >= self.traits.kv_ceiling
        return KV_CEILING if full else None

    @property
    def requests(self) -> float:
        """Requests on it: own books (exact at once), and what telemetry shows beyond them (other senders)."""
        return self.occupancy * self.max_running

    @property
    def load(self) -> Load:
        """What is on it now."""
        return self.books.idle_at, self.books.floor, self.context, self.prefill_speed

    def backlog(self, now: float) -> float:
        """Seconds of prompt work still ahead, at its speed now (`Books.backlog`)."""
        left = self.books.backlog(now, self.prefill_speed)
        self.recount()  # books that were looked at foresee anew
        return left

    def recount(self) -> None:
        """Bring `occupancy`, `kv_load` and what the outlook keeps up to date, when books, sample or speed changed.

        They change with one replica at a time and are read for all of them at every decision.
        """
        books, used = self.books, self._shown
        requests = books.requests
        context = self.context = books.tokens / self.kv_tokens
        if context > self._counted:  # what telemetry shows has shared prefixes once
            used += context - self._counted
        occupancy = self.occupancy = (requests + self._strangers) / self.max_running
        self.kv_load = used
        crowded = occupancy >= 1 or used > KV_FREE
        if crowded != self.crowded:
            self.crowded = crowded
            self._outlook.crowding()
        if (place := self.place) != NOWHERE:
            self._outlook.in_flight[place] = requests
            self._outlook.loads[place] = books.idle_at, books.floor, context, self.prefill_speed

    def learn(self, work: float, seconds: float) -> None:
        """It did so much prompt work (core/cost.py) in so many seconds: learn `prefill_speed` from it.

        Short pieces are passed over: they show the engine's step time more than its speed.
        """
        if work >= _LEARN_SECONDS * self.prefill_speed:
            self._speeds.computed(work, seconds)
            self._follow()

    def failed(self, reason: str, now: float) -> None:
        """A scrape failed; `reason` as the collector words it."""
        self.unheard = reason
        if reason.startswith(_HARMLESS):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= _MISSES.get(reason, _MISSES_OTHERWISE):
            self.life.apply(MISSED, "metrics", now)
            self.refresh(now)

    def sent(self, request_id: str, now: float) -> None:
        """A request was sent there; while the breaker is half open it is the one probe."""
        if self.breaker.state == HALF_OPEN:
            self.breaker.sent(request_id, now)
            self.refresh(now)

    def answered(
        self,
        request_id: str,
        status: int | None,
        retry_after: float | None,
        now: float,
        picked: float = -math.inf,
    ) -> None:
        """How a request ended there: an HTTP status, or None for a reset, no connection or a time-out.

        `picked`: when it was decided; -inf for unknown.
        """
        said = verdict(status, retry_after)
        if self.breaker.ended(request_id, said, now, retry_after, picked) or said == "pushback":
            self.refresh(now)

    def drain(self, cause: str, now: float, deadline: float | None = None) -> bool:
        """Take nothing new; True when that is news. `deadline` is when `refresh` calls it gone."""
        changed = self.life.drain(cause, now, deadline)
        self.refresh(now)
        return changed

    def undrain(self, cause: str, now: float) -> bool:
        """Take new work again; True when it was drained."""
        changed = self.life.apply(UNDRAIN, cause, now)
        self.refresh(now)
        return changed

    def excluded(self, now: float) -> str | None:
        """Why it is no candidate now; None when it is one."""
        return self.barred or (STALE if now >= self.fresh_until else None)
