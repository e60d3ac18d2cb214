"""Whether replicas hold what they are believed to hold: predicted against actual cached tokens (F1-F3).

A prompt is announced when it is bound to a replica, with what the index says is cached there, and compared when its
usage comes; core/belief.py concludes. What follows in the index:

- A prompt that was colder than predicted has been computed there by now, so its own hashes are right again and stay.
  What is wrong is what else is believed: entries unused for longer, which go when the capacity believed shrinks, or
  all of them, when the cache was emptied. Then prompts sent since the first miss stay: they filled it again.
- A replica that is distrusted loses all entries, and predictions for it count for `scales[slot]` of their tokens.
- A prompt that was never computed where it was sent (no connection, served elsewhere) takes the hashes with it that
  it brought.
- A prompt that was warmer than predicted is placed as a whole anyway; the capacity believed may grow.

A prediction that leans on a prompt still being computed there says nothing of the cache: only what was held before
that prompt is compared. Usage without cached tokens is unknown, not zero.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from extproc.core.belief import CAME, EMPTIED, WARMER, Belief, Guess
from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain
from extproc.core.reuse import Use

#: Exchanges that may be open at a time; the oldest is forgotten beyond.
_OPEN: Final = 65_536
#: No prompt has as many tokens; who says so is not believed.
_MOST_TOKENS: Final = 1e9


class Seen(NamedTuple):
    """One comparison, in tokens; `verdict` is "came", "colder", "emptied", "warmer" or "untested"."""

    predicted: float
    actual: float
    verdict: str


class View(NamedTuple):
    """What is known of one replica. Tokens are sums since it joined; shares are None before any prediction.

    `precision` is the share of the predicted tokens that came, `recent` that of the last predictions, without those
    that the capacity believed explains; `unexpected` are tokens that came beyond what was predicted. `scale` is what
    predicted tokens count for now, 0..1. Capacities are bytes of prompt. `emptied` and `distrusted` count how often,
    `voided` prompts that were never computed there.
    """

    samples: int
    predicted: float
    actual: float
    unexpected: float
    precision: float | None
    recent: float | None
    scale: float
    believed: int
    configured: int
    emptied: int
    distrusted: int
    voided: int


class _Open:
    """A prompt that was announced and has not ended."""

    __slots__ = ("at", "chain", "depth", "fresh", "held", "ratio", "slot", "uses")

    def __init__(self, slot: "_Slot", chain: Chain, held: int, ratio: float, at: float) -> None:
        self.slot = slot
        self.chain = chain
        self.ratio = ratio
        self.at = at
        self.held = held  # leading hashes that the index says are held
        self.depth = slot.settled(chain.hashes, held)  # those that lean on no prompt still being computed
        self.fresh: int | None = None  # the first hash it brings, while it is being computed
        self.uses: list[Use] = slot.belief.reuse.look(chain, self.depth)

    def end(self, depth: int) -> int:
        """Bytes of the first `depth` hashes."""
        return self.chain.ends[depth - 1] if depth else 0


class _Slot:
    """One incarnation, and what is being computed there."""

    __slots__ = ("arriving", "belief", "number")

    def __init__(self, number: int, belief: Belief) -> None:
        self.number = number
        self.belief = belief
        self.arriving: dict[
            int, int
        ] = {}  # first hash that a prompt being computed brings -> how many bring it

    def settled(self, hashes: list[int], held: int) -> int:
        """Of the first `held` hashes, how many come before the first that is still on its way."""
        arriving = self.arriving
        if not arriving or arriving.keys().isdisjoint(hashes[:held]):
            return held
        return next(place for place, key in enumerate(hashes) if key in arriving)

    def comes(self, prompt: _Open) -> None:
        """A prompt is being computed."""
        if prompt.held < len(prompt.chain.hashes):
            prompt.fresh = prompt.held
            first = prompt.chain.hashes[prompt.held]
            self.arriving[first] = self.arriving.get(first, 0) + 1

    def came(self, prompt: _Open) -> None:
        """It is computed, or will never be."""
        if prompt.fresh is not None:
            first = prompt.chain.hashes[prompt.fresh]
            self.arriving[first] -= 1
            if not self.arriving[first]:
                del self.arriving[first]
            prompt.fresh = None


class Truth:
    """Compares the predictions of one pool with what came, and corrects its index.

    Args:
        index: of the pool; entries are taken out of it and its capacities set.
        limit: share of the predicted tokens, 0..1, under which a replica is distrusted.
    """

    def __init__(self, index: PrefixIndex, limit: float = 0.5) -> None:
        self._index = index
        self._limit = limit
        self._slots: dict[int, _Slot] = {}
        self._open: dict[int, _Open] = {}
        #: Whether conclusions change the index. Not while other gateways place into it too: each sees a part of what
        #: is computed, and a correction that only one of them makes would leave them at odds for good.
        self.acts: Callable[[], bool] = lambda: True
        #: Given a slot and hashes that it was never to hold, which others were told it does.
        self.on_forgot: Callable[[int, list[int]], None] = lambda slot, hashes: None
        #: Slot -> what a predicted token counts for, 0..1; only those where that is not 1.
        self.scales: dict[int, float] = {}

    @property
    def open(self) -> int:
        """Prompts announced that have not ended."""
        return len(self._open)

    # -- replicas --------------------------------------------------------------------------------------

    def join(self, slot: int, capacity: int) -> None:
        """A new incarnation has this slot of the index, and by configuration a cache of so many bytes."""
        self._slots[slot] = _Slot(slot, Belief(capacity, self._limit))
        self.scales.pop(slot, None)

    def leave(self, slot: int) -> None:
        """The incarnation at a slot is gone, and what is open for it says nothing more. Unknown ones are ignored."""
        self._slots.pop(slot, None)
        self.scales.pop(slot, None)

    def resize(self, slot: int, capacity: int) -> None:
        """The engine says that its cache holds so many bytes; the share learned is kept, in the index too."""
        belief = self._slots[slot].belief
        belief.resize(capacity)
        self._index.set_capacity(slot, belief.capacity.believed if self.acts() else capacity)

    def sampled(self, slot: int, hits: float | None, block: int | None, now: float) -> None:
        """A sample came: the engine's count of hit tokens and its tokens per block, where it tells."""
        known = self._slots.get(slot)
        if known is not None:
            known.belief.block = block or known.belief.block
            self._conclude(known, known.belief.sampled(hits), known.belief.capacity.believed, now)

    def view(self, slot: int) -> View:
        """What is known of the replica at a slot. Raises KeyError for an unknown one."""
        belief = self._slots[slot].belief
        totals, capacity = belief.totals, belief.capacity
        return View(
            totals.samples,
            totals.predicted,
            totals.actual,
            totals.unexpected,
            totals.came / totals.predicted if totals.predicted else None,
            belief.trust.share,
            belief.scale,
            capacity.believed,
            capacity.configured,
            totals.emptied,
            totals.distrusted,
            totals.voided,
        )

    # -- prompts ---------------------------------------------------------------------------------------

    def expect(
        self, key: int, slot: int, chain: Chain, ratio: float, now: float, held: int | None = None
    ) -> None:
        """A prompt of one chain is bound to a replica, and not yet placed in the index. Unknown slots are ignored.

        `ratio` is tokens a byte, as believed; `held` how many leading hashes the index has there, where that was just
        asked, else None. An exchange that is announced again was not computed where it was sent
        first.
        """
        known = self._slots.get(slot)
        self.void(key)
        if known is None:
            return
        belief = known.belief
        if held is None:
            held = self._index.match(chain.hashes).get(slot, 0)
        prompt = self._open[key] = _Open(known, chain, held, ratio, now)
        belief.reuse.use(chain, held, now)
        known.comes(prompt)
        if belief.suspects:
            belief.refill(chain)
        if len(self._open) > _OPEN:
            oldest = self._open.pop(next(iter(self._open)))
            oldest.slot.came(oldest)

    def heard(self, slot: int, chain: Chain, held: int, now: float) -> None:
        """Another gateway sent a prompt there: what it uses is not unused.

        `held`: how many of its leading hashes the index had there before. How it ends is not heard. Unknown slots are
        ignored.
        """
        known = self._slots.get(slot)
        if known is not None:
            known.belief.reuse.use(chain, held, now)

    def computed(self, key: int) -> None:
        """The first token was seen: the prompt is in the cache. Unknown keys are ignored."""
        prompt = self._open.get(key)
        if prompt is not None:
            prompt.slot.came(prompt)

    def void(self, key: int) -> None:
        """The prompt was never computed there: what it alone brought is not held. Unknown keys are ignored."""
        prompt = self._open.pop(key, None)
        if prompt is None:
            return
        prompt.slot.belief.totals.voided += 1
        if prompt.fresh is None:
            return
        known, hashes = prompt.slot, prompt.chain.hashes[prompt.fresh :]
        known.came(prompt)
        if self._slots.get(known.number) is known and hashes[0] not in known.arriving:
            self._index.forget(known.number, hashes)
            self.on_forgot(known.number, hashes)

    def observe(self, key: int, tokens: float | None, cached: float | None, now: float) -> Seen | None:
        """The prompt was computed where it was announced, and its exchange has ended.

        Args:
            key: of the exchange.
            tokens: prompt tokens by the engine's usage; None when it has none.
            cached: those of them that came out of the cache; None when it does not say.
            now: seconds.

        Returns:
            The comparison; None when nothing was to be compared: the key is unknown, the replica gone, or the usage
            absent, nonsense or not to be believed.
        """
        prompt = self._open.pop(key, None)
        if prompt is None:
            return None
        known = prompt.slot
        known.came(prompt)
        if self._slots.get(known.number) is not known:
            return None
        belief = known.belief
        if tokens is None or cached is None or not _is_usage(tokens, cached) or not belief.reports(cached):
            belief.untold(prompt.end(prompt.depth) * prompt.ratio)
            belief.reuse.ended(prompt.chain, now, found=False)
            return None
        each = tokens / prompt.chain.ends[-1]
        reach = prompt.end(min(prompt.held + 1, len(prompt.chain.ends))) * each
        came, gone = belief.divide(prompt.uses, each, cached)
        depth = prompt.end(prompt.depth)
        guess = Guess(prompt.chain, depth * each, reach, cached, came, gone, prompt.at, depth)
        before = belief.capacity.believed
        verdict = belief.judge(guess)
        belief.reuse.ended(prompt.chain, now, found=verdict in (CAME, WARMER))
        self._conclude(known, verdict, before, now)
        return Seen(guess.predicted, cached, verdict)

    # -- what follows ----------------------------------------------------------------------------------

    def _conclude(self, known: _Slot, verdict: str, before: int, now: float) -> None:
        """Bring the index and `scales` up to date; `before` is the capacity believed so far."""
        if not self.acts():
            return
        slot, belief = known.number, known.belief
        if verdict == EMPTIED or (belief.scale == 0.0 and self.scales.get(slot) != 0.0):
            self._clear(known, now)
        if belief.capacity.believed != before:
            self._index.set_capacity(slot, belief.capacity.believed)
        if belief.scale < 1.0:
            self.scales[slot] = belief.scale
        else:
            self.scales.pop(slot, None)

    def _clear(self, known: _Slot, now: float) -> None:
        """Take out all entries but those of prompts on their way, or sent since the cache was found empty."""
        slot, belief = known.number, known.belief
        on_their_way = [prompt.chain for prompt in self._open.values() if prompt.slot is known]
        self._index.set_capacity(slot, 0)
        self._index.set_capacity(slot, belief.capacity.believed)
        for chain in [*belief.clear(now), *on_their_way]:
            belief.reuse.use(chain, self._index.match(chain.hashes).get(slot, 0), now)
            self._index.place(slot, chain, now)


def _is_usage(tokens: float, cached: float) -> bool:
    """Whether two numbers can be a prompt's tokens and the cached ones of them; NaN is no number."""
    return 0 < tokens < _MOST_TOKENS and 0 <= cached <= tokens
