"""What the hits of one incarnation of a replica say of its cache: is it smaller than believed, emptied, or not there?

- **A prompt came as predicted**, to within a block or a tenth: the cache holds at least what was used since.
- **It was colder.** Then the shortest beginning that was gone says how long ago something may have been used and be
  gone. Was a part of it found, or is what was used so long ago gone as a rule, the cache is smaller than believed,
  and the miss counts against the capacity (core/capacity.py). Else it is a suspect of the case "the cache was emptied
  before this prompt came", of which core/emptied.py judges.
- **It keeps being colder** than a smaller capacity explains: of the last predictions (_LEAST and more) less than
  `limit` of the tokens came. Then predictions count for `scale` of their tokens, until it has proved itself: with n
  further predictions of which the share p came, scale is p * n / (n + 4), as if four more had failed (much less than
  p for few, nearly p for many). From _TRUSTED on, which takes 15 that all came, it is trusted again.

An engine that reports no cached tokens is judged by its own counter of hits: what it counted between two samples
against what was predicted of the prompts that ended. Others' traffic counts there too, so it can look better than it
is, never worse. Reports that are zero always, from an engine that has such a counter, are no reports.
"""

from itertools import takewhile
from typing import Final, NamedTuple

from extproc.core.capacity import Capacity
from extproc.core.emptied import Emptied
from extproc.core.hit_counter import HitCounter
from extproc.core.prompt import Chain
from extproc.core.reuse import Reuse, Unnamed, Use

#: Tokens and share by which a prediction may be off: engines cache whole blocks, of 16 tokens where unknown.
_BLOCK: Final = 16
_OFF: Final = 0.1
#: Predictions of fewer blocks than this are no test of a cache.
_BLOCKS: Final = 2
#: Odds that a miss must give an emptied cache to be a suspect of one: else such are gone as a rule.
_SUSPECT: Final = 0.5
#: Predictions needed to distrust a replica, and those after which one has faded to 1/e.
_LEAST: Final = 6.0
_SPAN: Final = 32.0
_KEEP: Final = 1 - 1 / _SPAN
#: Failed predictions that a distrusted replica starts with, and the scale from which it is trusted again.
_FAILED: Final = 4.0
_TRUSTED: Final = 0.75
#: Share of the tokens predicted that came, from which on a cache is warm by its engine's counter.
_WARM: Final = 0.75
#: Prompts remembered while a cache is under suspicion.
_REFILLED: Final = 64
#: Prompts in a row without a word of cached tokens after which an engine is taken for one that says none of them:
#: many do by default (vLLM, SGLang). An error has no usage either, so a few say nothing.
_SILENT: Final = 64

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
        depth: bytes that `predicted` is of.
    """

    chain: Chain
    predicted: float
    reach: float
    actual: float
    came: Use | None
    gone: Use | None
    at: float
    depth: int


class Trust:
    """Tokens predicted, tokens of them that came, and predictions; all fading."""

    __slots__ = ("came", "count", "predicted")

    def __init__(self) -> None:
        self.predicted = self.came = self.count = 0.0

    def add(self, predicted: float, came: float, count: int = 1) -> None:
        """Take in `count` predictions together."""
        keep = _KEEP if count == 1 else _KEEP**count
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
        self.suspects: Emptied[Guess] = Emptied()
        self.refilled: list[Chain] = []
        #: When its entries last went: what was predicted before is void.
        self.cleared = float("-inf")
        self._before = capacity  # bytes believed before the first suspect
        self._limit = limit
        self._counter = HitCounter()
        #: Whether its usage ever had cached tokens above 0, so that all of it is believed.
        self.reported = False
        #: Prompts in a row whose usage said nothing of them.
        self.silence = 0

    def resize(self, capacity: int) -> None:
        """Its cache is configured to hold so many bytes; the share of them that was learned is kept."""
        if capacity != self.capacity.configured:
            self.capacity.configured = capacity
            self.reuse = Reuse(capacity)

    def use(self, chain: Chain, held: int, now: float, depth: int = 0) -> list[Unnamed]:
        """As `Reuse.use`. While its usage is silent of cached tokens nobody will ask, and nothing is kept."""
        return self.reuse.use(chain, held, now, depth) if self.silence < _SILENT else []

    def refill(self, chain: Chain) -> None:
        """A prompt is sent there while it may have been emptied."""
        if len(self.refilled) < _REFILLED:
            self.refilled.append(chain)

    # -- usage -----------------------------------------------------------------------------------------

    def reports(self, cached: float) -> bool:
        """Whether a report of so many cached tokens is to be believed."""
        self.reported = self.reported or cached > 0
        return self.reported or self._counter.last is None

    def agrees(self, predicted: float, reach: float, actual: float, uses: list[Unnamed]) -> str | None:
        """Take in a comparison of which nothing is to be concluded, as of nearly all. Its verdict: CAME or UNTESTED.

        None, and nothing taken in, where more is to be asked (`judge`): of one that was colder or warmer, or comes
        while the cache may have been emptied. It was predicted since the entries last went.

        Args:
            predicted, reach, actual: as in `Guess`.
            uses: last uses of what was predicted, the shortest beginning first; with nearly all that was predicted,
                all of them were found.
        """
        block, off = self.block, _OFF * predicted
        if off < block:
            off = block
        if actual < predicted - off or actual - reach > off or self.suspects.cases:
            return None
        came = actual if actual < predicted else predicted
        totals = self.totals
        totals.samples += 1
        totals.predicted += predicted
        totals.actual += actual
        totals.came += came
        if predicted < _BLOCKS * block:
            return UNTESTED
        if uses:
            self.capacity.hit(uses[-1][1])
        trust = self.trust
        trust.add(predicted, came)
        if self.scale != 1.0 or trust.came < self._limit * trust.predicted:
            self._rescale()
        return CAME

    def judge(self, guess: Guess) -> str:
        """Take in a comparison. EMPTIED asks for `clear`; else its verdict, a word of this module.

        What was proved while another gateway judged is concluded with the first.
        """
        verdict = self._judged(guess)
        if not self.suspects.is_proved:
            return verdict
        self.totals.emptied += 1
        self.capacity.pardon(self.suspects.distances, self._before)
        return EMPTIED

    def _judged(self, guess: Guess) -> str:
        predicted, actual, block = guess.predicted, guess.actual, self.block
        off = max(block, _OFF * predicted)
        beyond = max(actual - guess.reach - off, 0.0)
        self._total(predicted, actual, beyond)
        if guess.at < self.cleared:
            return UNTESTED
        if beyond:
            self.capacity.surprised()
        if predicted < _BLOCKS * block:
            return WARMER if beyond else UNTESTED
        if guess.came is not None:  # a part of what was predicted was found, or all of it
            self.capacity.hit(guess.came.distance)
            self._clears(guess, guess.came)
        if actual >= predicted - off:
            self._weigh(predicted, min(actual, predicted), 1)
            return WARMER if beyond else CAME
        return self._colder(guess)

    def watch(self, guess: Guess) -> None:
        """Take in a comparison of which another gateway judges, who sees all of them.

        Evidence is kept as who judges keeps it, and nothing concluded: this gateway may be the next. What misses once
        an emptied cache is proved says nothing more.
        """
        off = max(self.block, _OFF * guess.predicted)
        self._total(guess.predicted, guess.actual, max(guess.actual - guess.reach - off, 0.0))
        if guess.at < self.cleared or guess.predicted < _BLOCKS * self.block:
            return
        if guess.came is not None:
            self.capacity.note(guess.came.distance, found=True)
            self._clears(guess, guess.came)
        gone = guess.gone
        if gone is not None and guess.actual < guess.predicted - off and not self.suspects.is_proved:
            odds = self._surprise(gone)
            self.capacity.note(gone.distance, found=False)
            self._suspect(guess, gone, odds)

    def excuse(self) -> None:
        """Another gateway found the cache emptied: the misses of open cases say nothing of its size."""
        self.capacity.pardon(self.suspects.distances, 0)

    def adopt(self, step: int, scale: float) -> None:
        """What another gateway found, who judges."""
        self.capacity.adopt(step)
        self.totals.distrusted += scale == 0.0 < self.scale
        self.scale = scale

    def divide(self, uses: list[Unnamed], each: float, actual: float) -> tuple[Use | None, Use | None]:
        """Of uses, the shortest beginning first: the last that is within what was found, and the first beyond.

        `each` is tokens a byte, `actual` tokens found.
        """
        gone = None
        for use in reversed(uses):
            tokens = use[0] * each
            if tokens - max(self.block, _OFF * tokens) <= actual:
                return Use._make(use), gone
            gone = Use._make(use)
        return None, gone

    def _total(self, predicted: float, actual: float, beyond: float) -> None:
        totals = self.totals
        totals.samples += 1
        totals.predicted += predicted
        totals.actual += actual
        totals.came += min(actual, predicted)
        totals.unexpected += beyond

    def _clears(self, guess: Guess, use: Use) -> None:
        """Something was in the cache, which may be suspected to have been emptied."""
        if self.suspects.cases:
            self.suspects.found(use, guess.at)
            if not self.suspects.cases:
                self.refilled = []

    def _colder(self, guess: Guess) -> str:
        gone = guess.gone
        odds = self._surprise(gone) if gone is not None else 0.0
        self._evicted(guess)
        if gone is not None:
            self._suspect(guess, gone, odds)
        return COLDER

    def _surprise(self, gone: Use) -> float:
        """How surprising a miss is; call it before the miss is counted."""
        if not self.suspects.cases:
            self._before = self.capacity.believed
        return self.capacity.surprise(gone.distance, self.suspects.distances)

    def _suspect(self, guess: Guess, gone: Use, odds: float) -> None:
        """A miss may speak for an emptied cache, or show what was in it."""
        if odds < _SUSPECT:
            return
        if self._is_cut(guess, gone):
            self._clears(guess, gone)
        else:
            self.suspects.missed(guess, gone, guess.at, odds)

    def _is_cut(self, guess: Guess, gone: Use) -> bool:
        """Whether a part of what was used together was found: the rest was evicted, as engines evict ends first."""
        before = guess.came.end if guess.came is not None else 0
        each = guess.predicted / guess.depth if guess.depth else 0.0
        return guess.actual - before * each > max(self.block, _OFF * (gone.end - before) * each)

    def _evicted(self, guess: Guess) -> None:
        """A miss that the size of the cache explains, or that says how small it is."""
        before = self.capacity.believed
        if guess.gone is not None:
            self.capacity.missed(guess.gone.distance)
        if guess.gone is None or guess.gone.distance < min(before, self.capacity.believed):
            self._weigh(guess.predicted, min(guess.actual, guess.predicted), 1)

    def clear(self, now: float) -> list[Chain]:
        """Its entries go: it was emptied or is distrusted. Returns the prompts known to have filled it again."""
        refilled = [*(guess.chain for guess in self.suspects.take()), *self.refilled]
        self.refilled = []
        if self.scale == 0.0:  # what made it distrusted does not count once more
            self.trust = Trust()
        self.reuse.clear()
        self.cleared = now
        self._counter.cleared()
        return refilled

    def use_again(self, chains: list[Chain], now: float) -> None:
        """Prompts that stay after `clear` are all that it was given."""
        seen: set[int] = set()
        for chain in chains:
            self.reuse.use(chain, sum(1 for _ in takewhile(seen.__contains__, chain.hashes)), now)
            seen.update(chain.hashes)

    # -- trust -----------------------------------------------------------------------------------------

    def _weigh(self, predicted: float, came: float, count: int) -> None:
        """Take in so many predictions, of one token at least."""
        self.trust.add(predicted, came, count)
        self._rescale()

    def _rescale(self) -> None:
        """Bring `scale` up to date."""
        trust = self.trust
        if self.scale == 1.0:
            if trust.came < self._limit * trust.predicted and trust.count >= _LEAST:
                self.totals.distrusted += 1
                self.trust, self.scale = Trust(), 0.0
        else:
            proved = (trust.share or 0.0) * trust.count / (trust.count + _FAILED)
            self.scale = 1.0 if proved >= _TRUSTED else proved

    # -- the engine's own counter ----------------------------------------------------------------------

    def untold(self, predicted: float, chain: Chain, now: float) -> None:
        """A prompt ended whose usage says nothing of its cached tokens; so many were predicted."""
        self.silence += 1
        if self.silence < _SILENT:
            self.reuse.ended(chain, now, found=False)
        elif self.silence == _SILENT:
            self.reuse.clear()
        if predicted >= _BLOCKS * self.block:
            self._counter.predict(predicted)

    def watched(self, hits: float | None) -> None:
        """The engine's count of hit tokens, where another gateway judges: evidence is kept, as by `watch`.

        Others' hits are in the count, so it never looks worse than it is.
        """
        told = self._counter.sampled(hits)
        if told is not None:
            was_warm = self._was_warm()
            if not self._counter.found_cold(was_warm):
                self.trust.add(*told)

    def _was_warm(self) -> bool:
        return self.trust.count >= _LEAST and (self.trust.share or 0.0) >= _WARM

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
        was_warm = self._was_warm()
        self._weigh(predicted, came, count)
        if not self._counter.found_cold(was_warm):
            return ""
        self.totals.emptied += 1
        return EMPTIED
