"""What the hits of one incarnation of a replica say of its cache: is it smaller than believed, emptied, or not there?

- **A prompt came as predicted**, to within a block or a tenth: the cache holds at least what was used since.
- **It was colder.** Then the shortest beginning that was gone says how long ago something may have been used and be
  gone. Was it used longer ago than what is still there as a rule, the cache is smaller than believed, and the miss
  counts against the capacity (core/capacity.py). Else it is a suspect: the cache may have been emptied. Each hit
  meanwhile, of a part of a prompt too, speaks against that: most of all one on something whose last use had ended
  before the first suspect was sent and that was seen in the cache then; then on something older that was only brought
  there, perhaps after the cache was emptied; least on anything newer. When they are enough, the suspects count
  against the capacity. Before that, enough misses make the cache emptied: three of prompts used so lately that such
  were there nearly always so far, or eight others.
- **It keeps being colder** than a smaller capacity explains: of the last predictions (_LEAST and more) less than
  `limit` of the tokens came. Then predictions count for `scale` of their tokens, until it has proved itself: with n
  further predictions of which the share p came, scale is p * n / (n + 4), as if four more had failed (much less than
  p for few, nearly p for many). From _TRUSTED on, which takes 15 that all came, it is trusted again.

An engine that reports no cached tokens is judged by its own counter of hits: what it counted between two samples
against what was predicted of the prompts that ended. Others' traffic counts there too, so it can look better than it
is, never worse. Reports that are zero always, from an engine that has such a counter, are no reports.
"""

from typing import Final, NamedTuple

from extproc.core.capacity import Capacity
from extproc.core.prompt import Chain
from extproc.core.reuse import Reuse, Use

#: Tokens and share by which a prediction may be off: engines cache whole blocks, of 16 tokens where unknown.
_BLOCK: Final = 16
_OFF: Final = 0.1
#: Predictions of fewer blocks than this are no test of a cache.
_BLOCKS: Final = 2
#: What makes a cache emptied, and what a miss speaks for it: one of a prompt used so lately that such were there
#: nearly always so far, and any other. Three of the first kind do, or eight of the other.
_EMPTIED: Final = 24
_SURPRISE: Final = 8
_MISS: Final = 3
#: What clears it, and what a hit speaks for that: on something older that was seen there before, on something older
#: that was only brought there, perhaps since, and any other.
_CLEARED: Final = 24
_SEEN: Final = 24
_BROUGHT: Final = 12
_HIT: Final = 1
#: Predictions needed to distrust a replica, and those after which one has faded to 1/e.
_LEAST: Final = 6.0
_SPAN: Final = 32.0
#: Failed predictions that a distrusted replica starts with, and the scale from which it is trusted again.
_FAILED: Final = 4.0
_TRUSTED: Final = 0.75
#: Share of the tokens predicted between two samples below which the engine's counter calls the cache cold, and the
#: prompts that must have ended in such times in a row, after others of which _WARM and more came, to call it emptied.
_COLD: Final = 0.5
_COLD_PROMPTS: Final = 4
_WARM: Final = 0.75

#: Prompts remembered while a cache is under suspicion.
_REFILLED: Final = 64

CAME: Final = "came"
COLDER: Final = "colder"
WARMER: Final = "warmer"
EMPTIED: Final = "emptied"
UNTESTED: Final = "untested"


class Guess(NamedTuple):
    """One prediction and what came of it, in tokens.

    Attributes:
        chain: of the prompt.
        predicted: what was said to be cached, without what other prompts were only about to bring.
        reach: end of what could have been said: that of the first hash not believed to be held.
        actual: what the engine found cached.
        came: last use of what was found there, as far as known; of the longest beginning.
        gone: last use of what was predicted and not found; of the shortest beginning.
        at: when it was said, in seconds.
    """

    chain: Chain
    predicted: float
    reach: float
    actual: float
    came: Use | None
    gone: Use | None
    at: float


class Trust:
    """Tokens predicted, tokens of them that came, and predictions; all fading."""

    __slots__ = ("came", "count", "predicted")

    def __init__(self) -> None:
        self.predicted = self.came = self.count = 0.0

    def add(self, predicted: float, came: float, count: int = 1) -> None:
        """Take in `count` predictions together."""
        keep = (1 - 1 / _SPAN) ** count
        self.predicted = self.predicted * keep + predicted
        self.came = self.came * keep + came
        self.count = self.count * keep + count

    @property
    def share(self) -> float | None:
        """Share of the predicted tokens that came, 0..1; None before any prediction."""
        return self.came / self.predicted if self.predicted else None


class Totals:
    """Sums in tokens since the incarnation joined, to be shown."""

    __slots__ = ("actual", "came", "distrusted", "emptied", "predicted", "samples", "unexpected", "voided")

    def __init__(self) -> None:
        self.samples = self.emptied = self.distrusted = self.voided = 0
        self.predicted = self.actual = self.came = self.unexpected = 0.0


class Belief:
    """How far one incarnation's cache is believed in.

    Args:
        capacity: bytes of prompt its cache is configured to hold.
        limit: share of the predicted tokens, 0..1, under which it is distrusted.
    """

    def __init__(self, capacity: int, limit: float) -> None:
        self.capacity = Capacity(capacity)
        self.reuse = Reuse(capacity)
        self.totals = Totals()
        self.trust = Trust()
        #: What a predicted token counts for, 0..1.
        self.scale = 1.0
        #: Tokens of a block of its cache.
        self.block = _BLOCK
        #: Misses that may mean an emptied cache, and prompts sent there since, which filled it again.
        self.suspects: list[Guess] = []
        self.refilled: list[Chain] = []
        self._limit = limit
        self._doubt = 0  # what speaks against an emptied cache
        self._cleared = float("-inf")  # when its entries last went: what was predicted before is void
        self._counter = Counter()
        self._reported = False  # whether its usage ever had cached tokens above 0

    def resize(self, capacity: int) -> None:
        """Its cache is configured to hold so many bytes; the share of them that was learned is kept."""
        if capacity != self.capacity.configured:
            self.capacity.configured = capacity
            self.reuse = Reuse(capacity)

    def refill(self, chain: Chain) -> None:
        """A prompt is sent there while it may have been emptied."""
        if len(self.refilled) < _REFILLED:
            self.refilled.append(chain)

    # -- usage -----------------------------------------------------------------------------------------

    def reports(self, cached: float) -> bool:
        """Whether a report of so many cached tokens is to be believed."""
        self._reported = self._reported or cached > 0
        return self._reported or self._counter.last is None

    def judge(self, guess: Guess) -> str:
        """Take in a comparison. EMPTIED asks for `clear`; else its verdict, a word of this module."""
        off = max(self.block, _OFF * guess.predicted)
        beyond = max(guess.actual - guess.reach - off, 0.0)
        self._total(guess, beyond)
        if guess.at < self._cleared:
            return UNTESTED
        if beyond:
            self.capacity.surprised()
        if guess.predicted < _BLOCKS * self.block:
            return WARMER if beyond else UNTESTED
        self._hit(guess)
        if guess.actual >= guess.predicted - off:
            self._trust(guess)
            return WARMER if beyond else CAME
        return self._colder(guess)

    def divide(self, uses: list[Use], each: float, actual: float) -> tuple[Use | None, Use | None]:
        """Of uses, the shortest beginning first: the last that is within what was found, and the first beyond.

        `each` is tokens a byte, `actual` tokens found.
        """
        came = None
        for use in uses:
            tokens = use.end * each
            if tokens - max(self.block, _OFF * tokens) > actual:
                return came, use
            came = use
        return came, None

    def _total(self, guess: Guess, beyond: float) -> None:
        totals = self.totals
        totals.samples += 1
        totals.predicted += guess.predicted
        totals.actual += guess.actual
        totals.came += min(guess.actual, guess.predicted)
        totals.unexpected += beyond

    def _hit(self, guess: Guess) -> None:
        """A part of what was predicted was found, or all of it."""
        if guess.came is not None:
            self.capacity.hit(guess.came.distance)
            if self.suspects:
                self._clears(guess, guess.came)

    def _clears(self, guess: Guess, use: Use) -> None:
        """Something was in the cache while it is suspected to have been emptied."""
        first = min(suspect.at for suspect in self.suspects)
        is_older = use.at < first <= guess.at
        self._doubt += (_SEEN if use.sure else _BROUGHT) if is_older else _HIT
        if self._doubt >= _CLEARED:
            self._acquit()

    def _colder(self, guess: Guess) -> str:
        if self._is_size(guess):
            self._evicted(guess)
            return COLDER
        self.suspects.append(guess)
        if sum(map(self._speaks, self.suspects)) < _EMPTIED:
            return COLDER
        self.totals.emptied += 1
        return EMPTIED

    def _speaks(self, guess: Guess) -> int:
        """How much a miss speaks for an emptied cache."""
        return _SURPRISE if guess.gone is not None and self.capacity.usual(guess.gone.distance) else _MISS

    def _is_size(self, guess: Guess) -> bool:
        """Whether a miss is most easily put down to a smaller cache: it is of something used longer ago than what is
        still there as a rule."""
        use = guess.gone
        return use is not None and self.capacity.is_known and not self.capacity.usual(use.distance)

    def _evicted(self, guess: Guess) -> None:
        """A miss that the size of the cache explains, or that says how small it is."""
        before = self.capacity.believed
        if guess.gone is not None:
            self.capacity.missed(guess.gone.distance)
        if guess.gone is None or guess.gone.distance < min(before, self.capacity.believed):
            self._trust(guess)

    def _acquit(self) -> None:
        """The cache was not emptied: the suspects were evicted, or it does not keep what it is given."""
        for guess in self._take_suspects():
            self._evicted(guess)

    def _take_suspects(self) -> list[Guess]:
        suspects, self.suspects, self.refilled, self._doubt = self.suspects, [], [], 0
        return suspects

    def clear(self, now: float) -> list[Chain]:
        """Its entries go: it was emptied or is distrusted. Returns the prompts known to have filled it again."""
        refilled = [*(guess.chain for guess in self.suspects), *self.refilled]
        for guess in self._take_suspects():
            self._trust(guess)
        if self.scale == 0.0:  # what made it distrusted does not count once more
            self.trust = Trust()
        self.reuse.clear()
        self._cleared = now
        self._counter.cold = 0
        return refilled

    # -- trust -----------------------------------------------------------------------------------------

    def _trust(self, guess: Guess) -> None:
        self._weigh(guess.predicted, min(guess.actual, guess.predicted), 1)

    def _weigh(self, predicted: float, came: float, count: int) -> None:
        """Bring `scale` up to date with so many predictions."""
        trust = self.trust
        trust.add(predicted, came, count)
        share = trust.share or 0.0
        if self.scale == 1.0:
            if trust.count >= _LEAST and share < self._limit:
                self.totals.distrusted += 1
                self.trust, self.scale = Trust(), 0.0
        else:
            proved = share * trust.count / (trust.count + _FAILED)
            self.scale = 1.0 if proved >= _TRUSTED else proved

    # -- the engine's own counter ----------------------------------------------------------------------

    def untold(self, predicted: float) -> None:
        """A prompt ended whose usage says nothing of its cached tokens; so many were predicted."""
        if predicted >= _BLOCKS * self.block:
            self._counter.predict(predicted)

    def sampled(self, hits: float | None) -> str:
        """The engine's count of hit tokens since it started; EMPTIED asks for `clear`, "" for nothing."""
        told = self._counter.sampled(hits)
        if told is None:
            return ""
        predicted, came, count = told
        self.totals.samples += count
        self.totals.predicted += predicted
        self.totals.actual += came
        self.totals.came += came
        was_warm = self.trust.count >= _LEAST and (self.trust.share or 0.0) >= _WARM
        self._weigh(predicted, came, count)
        if self._counter.cold < _COLD_PROMPTS or not was_warm:
            return ""
        self.totals.emptied += 1
        return EMPTIED


class Counter:
    """Hits an engine counts for itself against predictions whose usage was silent."""

    __slots__ = ("_count", "_credit", "_predicted", "cold", "last")

    def __init__(self) -> None:
        self.last: float | None = None
        #: Prompts of the last samples in a row by which too little had come of what was predicted.
        self.cold = 0
        self._predicted = 0.0  # tokens predicted of prompts that ended since the last sample
        self._count = 0
        self._credit = 0.0  # hits counted that no prompt has claimed: it may still be answered

    def predict(self, tokens: float) -> None:
        """A prompt ended of which so many tokens were predicted."""
        self._predicted += tokens
        self._count += 1

    def sampled(self, hits: float | None) -> tuple[float, float, int] | None:
        """Tokens predicted and come since the last sample and prompts they are of; None when it says nothing."""
        before, self.last = self.last, hits
        predicted, count = self._predicted, self._count
        if before is None or hits is None or hits < before:
            self._predicted, self._count, self._credit = 0.0, 0, 0.0
            return None
        self._credit += hits - before
        if not count:
            return None
        self._predicted, self._count = 0.0, 0
        came = min(self._credit, predicted)
        # A prompt's hits are counted when it is read, before it ends. What is kept for those is bounded, or others'
        # traffic would pay for everything to come.
        self._credit = min(self._credit - came, predicted)
        self.cold = self.cold + count if came < _COLD * predicted else 0
        return predicted, came, count
