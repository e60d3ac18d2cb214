"""What is believed of each replica, and whether it may be chosen.

This module knows samples, books and time as arguments; who fetched a sample, and when, is not its business.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from extproc.core.headroom import Headroom, Weights
from extproc.core.ledger import Books
from extproc.core.sample import Sample

#: Scrapes in a row that could not connect before a replica is held for dead. One may be a restart's blink.
_DEAD_AFTER = 2

#: The configured prefill speed counts like so many seconds of observed prompt work.
_PRIOR_SECONDS = 20.0
#: Seconds of prompt work over which the learned speed is averaged.
_PACE_SPAN = 120.0
#: Least seconds a piece of prompt work must take to be learned from.
_LEARN_SECONDS = 0.1
#: The learned speed moves in steps of this factor, and only when it is off by _PACE_HOLD of one: small chance
#: differences between equal replicas would otherwise draw prompts to the one that seems fastest.
_PACE_STEP = 1.15
_PACE_HOLD = 0.75
#: Most steps away from the configured speed: a factor of 8.
_PACE_STEPS = 15

#: KV use up to which a cache counts as free; above it a penalty sets in (R13).
KV_FREE: Final = 0.8

# Why a replica is no candidate. A closed set: it labels metrics and records.
UNREACHABLE: Final = "unreachable"
STALE: Final = "stale"
KV_CEILING: Final = "kv_ceiling"


@dataclass(slots=True, frozen=True, kw_only=True)
class Traits:
    """What holds for every replica of a pool until an engine says otherwise. Tokens, seconds, tokens/s.

    `prefill_speed` is that of a prompt's first tokens; at position `prefill_doubling` one takes twice as long.
    """

    prefill_speed: float = 8000.0
    prefill_doubling: float = math.inf
    decode_speed: float = 2000.0
    max_running: int = 256
    kv_tokens: int = 500_000
    output_tokens: int = 256
    stale_after: float = 15.0
    kv_ceiling: float = 0.97
    floor: float = 0.15
    weights: Weights = field(default_factory=Weights)


class Replica:
    """One incarnation of one engine endpoint."""

    __slots__ = (
        "_failures",
        "_headroom",
        "_pace",
        "_pace_step",
        "_strangers",
        "address",
        "barred",
        "books",
        "context",
        "crowded",
        "decode_speed",
        "fresh_until",
        "headroom",
        "incarnation",
        "kv_load",
        "kv_tokens",
        "max_running",
        "occupancy",
        "prefill_speed",
        "sample",
        "slot",
        "traits",
    )

    def __init__(self, address: str, slot: int, traits: Traits, now: float, incarnation: int = 1) -> None:
        self.address = address
        self.slot = slot
        self.traits = traits
        self.incarnation = incarnation
        self.books = Books()
        self.prefill_speed = traits.prefill_speed
        self.decode_speed = traits.decode_speed
        self.max_running = traits.max_running
        self.kv_tokens = traits.kv_tokens
        #: Last sample; None before the first.
        self.sample: Sample | None = None
        #: Sequences on it (running, waiting or sent) per running slot; above 1 some must wait.
        self.occupancy = 0.0
        #: Whether the next sequence would wait for a slot, or find KV use above KV_FREE.
        self.crowded = False
        #: Share of its KV cache that live requests take, by telemetry or own books, whichever is more.
        self.kv_load = 0.0
        #: Tokens of its sequences per token of its KV cache, prefixes shared between them counted each time: what
        #: every step reads. Above 1 where much is shared.
        self.context = 0.0
        #: Reason it may not be chosen whatever the time; None when it may.
        self.barred: str | None = None
        #: Time from which its telemetry is too old to choose it (R8). A new replica has the benefit of one span.
        self.fresh_until = now + traits.stale_after
        #: Score 0..1; None while unknown.
        self.headroom: float | None = None
        self._headroom = Headroom(traits.weights)
        self._failures = 0
        self._pace_step = 0
        self._pace = (traits.prefill_speed * _PRIOR_SECONDS, _PRIOR_SECONDS)  # work and seconds, decayed
        #: Requests of other senders at the last two samples. A sample is late, and shows what ended since; only
        #: what both show counts.
        self._strangers: tuple[float, float] | None = None

    def observe(self, sample: Sample) -> None:
        """Take in a sample of this incarnation."""
        self.sample = sample
        if sample.max_running:
            self.max_running = sample.max_running
        if sample.kv_capacity:
            self.kv_tokens = sample.kv_capacity
        self._headroom.update(sample, self.max_running)
        self.headroom = self._headroom.score
        seen = (sample.running or 0.0) + (sample.waiting or 0.0)
        beyond = max(seen - self.books.requests, 0.0)
        self._strangers = (self._strangers[1] if self._strangers else beyond, beyond)
        self.recount()
        self._failures = 0
        self.fresh_until = sample.at + self.traits.stale_after
        full = sample.kv_used is not None and sample.kv_used >= self.traits.kv_ceiling
        self.barred = KV_CEILING if full else None

    @property
    def requests(self) -> float:
        """Requests on it: own books (exact at once), and what telemetry shows beyond them (other senders)."""
        return self.occupancy * self.max_running

    def recount(self) -> None:
        """Bring `occupancy` and `kv_load` up to date; call it when the books or the sample changed.

        They change with one replica at a time and are read for all of them at every decision.
        """
        used = self.context = self.books.tokens / self.kv_tokens
        if self.sample is not None:
            used = max(used, self.sample.kv_used or 0.0)
        strangers = min(self._strangers) if self._strangers else 0.0
        self.occupancy = (self.books.requests + strangers) / self.max_running
        self.kv_load = used
        self.crowded = self.occupancy >= 1 or used > KV_FREE

    def learn(self, work: float, seconds: float) -> None:
        """It did so much prompt work (core/cost.py) in so many seconds: learn `prefill_speed` from it.

        Short pieces are passed over: they show the engine's step time more than its speed.
        """
        if work < _LEARN_SECONDS * self.prefill_speed:
            return
        keep = math.exp(-seconds / _PACE_SPAN)
        done, took = self._pace
        self._pace = (done * keep + work, took * keep + seconds)
        prior = self.traits.prefill_speed
        seen = math.log(self._pace[0] / self._pace[1] / prior, _PACE_STEP)
        if abs(seen - self._pace_step) > _PACE_HOLD:
            self._pace_step = min(max(round(seen), -_PACE_STEPS), _PACE_STEPS)
            self.prefill_speed = prior * _PACE_STEP**self._pace_step

    def failed(self, reason: str) -> None:
        """A scrape failed. Only a refused or broken connection says the engine itself is gone."""
        self._failures = self._failures + 1 if reason == "connect" else 0
        if self._failures >= _DEAD_AFTER:
            self.barred = UNREACHABLE

    def excluded(self, now: float) -> str | None:
        """Why it is no candidate now; None when it is one."""
        return self.barred or (STALE if now >= self.fresh_until else None)
