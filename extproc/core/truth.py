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

Of several gateways one judges, whom all tell how their prompts ended: it predicts for others' prompts what it does
for its own, by its own index, when it hears of them. What it concludes (`Ruling`) it tells, and applies it itself
only when it hears it, as the others do: the journal's order is the same for all. The others measure, and take over
what is told. A gateway alone judges, and acts at once. When it hears others again it goes by what the judge says of
every replica, concluded or not; what it cleared alone it tells, and all clear the same: emptied is emptied, whoever
found it.

A prediction that leans on a prompt still being computed there says nothing of the cache: only what was held before
that prompt is compared. Usage without cached tokens is unknown, not zero.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Final, NamedTuple

from extproc.core.announced import ALONE, JUDGE, WATCHER, Announced, Cache, Key, Ruling
from extproc.core.belief import CAME, EMPTIED, UNTESTED, WARMER, Belief, Guess
from extproc.core.index import PrefixIndex
from extproc.core.prompt import TOKENS_PER_BYTE, Chain

#: Exchanges that may be open at a time; the oldest is forgotten beyond.
_OPEN: Final = 65_536
#: Prompts kept of those sent since a cache was cleared, as many as are told (core/verdicts.py).
_KEPT: Final = 64
#: No prompt has as many tokens; who says so is not believed.
_MOST_TOKENS: Final = 1_000_000_000
#: Seconds after which a prompt is computed, whatever is told of its exchange; what is lost leaves nothing behind.
_LONG: Final = 600.0
#: Verdicts on prompts that were found as predicted, at least.
_FOUND: Final = (CAME, WARMER)


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
    `voided` prompts that were never computed there, without those it refused.
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


class Truth:
    """Compares the predictions of one pool with what came, and corrects its index.

    Args:
        index: of the pool; entries are taken out of it and its capacities set.
        limit: share of the predicted tokens, 0..1, under which a replica is distrusted.
    """

    def __init__(self, index: PrefixIndex, limit: float = 0.5) -> None:
        self._index = index
        self._limit = limit
        self._slots: dict[int, Cache] = {}
        self._open: OrderedDict[Key, Announced] = OrderedDict()  # whose first key is found at once
        self._stale = 0.0  # until then none is open too long
        #: What this gateway does at present.
        self.role: Callable[[], str] = lambda: ALONE
        #: Given a slot and what was concluded of it, by who judges for others too.
        self.on_ruling: Callable[[int, Ruling], None] = lambda slot, ruling: None
        #: Given an exchange of ours, its prompt tokens (0: never computed; None: unknown) and the cached ones.
        self.on_outcome: Callable[[int, float | None, float | None], None] = lambda key, tokens, cached: None
        #: Given a slot and hashes that it was never to hold, which others were told it does.
        self.on_forgot: Callable[[int, list[int]], None] = lambda slot, hashes: None
        #: Whether others are to hear later what this gateway clears while it is alone.
        self.tells_later = False
        #: Slots whose entries all went, until somebody who must know empties it.
        self.cleared: set[int] = set()
        #: Slot -> what a predicted token counts for, 0..1; only those where that is not 1.
        self.scales: dict[int, float] = {}

    @property
    def open(self) -> int:
        """Prompts announced that have not ended."""
        return len(self._open)

    # -- replicas --------------------------------------------------------------------------------------

    def join(self, slot: int, capacity: int) -> None:
        """A new incarnation has this slot of the index, and by configuration a cache of so many bytes."""
        self._slots[slot] = Cache(slot, Belief(capacity, self._limit))
        self.scales.pop(slot, None)

    def leave(self, slot: int) -> None:
        """The incarnation at a slot is gone, and what is open for it says nothing more. Unknown ones are ignored."""
        self._slots.pop(slot, None)
        self.scales.pop(slot, None)

    def resize(self, slot: int, capacity: int) -> None:
        """The engine says that its cache holds so many bytes; the share learned is kept, in the index too."""
        belief = self._slots[slot].belief
        belief.resize(capacity)
        self._index.set_capacity(slot, belief.capacity.believed)

    def sampled(self, slot: int, hits: float | None, block: int | None, now: float) -> None:
        """A sample came: the engine's count of hit tokens and its tokens per block, where it tells."""
        known = self._slots.get(slot)
        if known is not None:
            known.belief.block = block or known.belief.block
            if self.role() == WATCHER:
                known.belief.watched(hits)
                return
            self._conclude(known, known.belief.sampled(hits), known.belief.capacity.step, now)

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
        if key in self._open:
            self.void(key)
        if known is None:
            return
        if held is None:
            held = self._index.match(chain.hashes).get(slot, 0)
        self._announce(key, known, chain, held, ratio, now)

    def heard(self, slot: int, chain: Chain, held: int, now: float, key: Key | None = None) -> None:
        """Another gateway sent a prompt there: what it uses is not unused.

        `held`: how many of its leading hashes the index had there before. `key`: by which `told` will say how it
        ended; None where nobody will. Unknown slots are ignored.
        """
        known = self._slots.get(slot)
        if known is None:
            return
        if key is not None and key not in self._open and self.role() == JUDGE:
            self._announce(key, known, chain, held, TOKENS_PER_BYTE, now)
        else:
            known.belief.use(chain, held, now)

    def _announce(self, key: Key, known: Cache, chain: Chain, held: int, ratio: float, now: float) -> None:
        belief, opened = known.belief, self._open
        opened[key] = known.sends(chain, held, ratio, now)
        if belief.suspects.cases:
            belief.refill(chain)
        if known.alone is not None and len(known.alone) < _KEPT:
            known.alone.append(chain)
        if now > self._stale or len(opened) > _OPEN:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Prompts that are open too long, and the oldest of too many, are not waited for any more."""
        opened = self._open
        while len(opened) > _OPEN or next(iter(opened.values())).at < now - _LONG:
            oldest = opened.pop(next(iter(opened)))
            oldest.slot.came(oldest)
        self._stale = next(iter(opened.values())).at + _LONG

    def computed(self, key: Key) -> None:
        """The first token was seen: the prompt is in the cache. Unknown keys are ignored."""
        prompt = self._open.get(key)
        if prompt is not None:
            prompt.slot.came(prompt)

    def void(self, key: int, *, refused: bool = False) -> None:
        """The prompt was never computed there: what it alone brought is not held. Unknown keys are ignored.

        One that its engine `refused` is none to count: it computes none of those.
        """
        prompt = self._open.pop(key, None)
        if prompt is None:
            return
        self.on_outcome(key, 0.0, None)
        if not refused:
            prompt.slot.belief.totals.voided += 1
        if prompt.fresh is None:
            return
        known, hashes = prompt.slot, prompt.chain.hashes[prompt.fresh :]
        known.came(prompt)
        if self._slots.get(known.number) is known and hashes[0] not in known.arriving:
            self._index.forget(known.number, hashes)
            self.on_forgot(known.number, hashes)

    def observe(self, key: int, tokens: float | None, cached: float | None, now: float) -> Seen | None:
        """As `ended`, with names to what it returns."""
        seen = self.ended(key, tokens, cached, now)
        return Seen._make(seen) if seen is not None else None

    def ended(
        self, key: int, tokens: float | None, cached: float | None, now: float
    ) -> tuple[float, float, str] | None:
        """The prompt was computed where it was announced, and its exchange has ended.

        `tokens` are the prompt's by the engine's usage, `cached` those that came out of the cache; None where it does
        not say. Returns the comparison as in `Seen`; None when nothing was to be compared: the key is unknown, the
        replica gone, or the usage absent, nonsense or not to be believed.
        """
        prompt = self._open.pop(key, None)
        if prompt is None:
            return None
        self.on_outcome(key, tokens, cached)
        return self._compare(prompt, tokens, cached, now)

    def told(self, key: Key, tokens: float, cached: float | None, now: float) -> None:
        """Another gateway says how a prompt ended that was `heard`: as `observe`; 0 tokens: it was never computed.

        What such a prompt alone had brought its own gateway takes back. Unknown keys are ignored.
        """
        prompt = self._open.pop(key, None)
        if prompt is None:
            return
        if tokens:
            self._compare(prompt, tokens, cached, now)
        else:
            prompt.slot.came(prompt)

    def lost(self, starts: Container[int]) -> None:
        """Gateways whose start is not among these tell nothing more."""
        gone = [key for key in self._open if not isinstance(key, int) and key[0] not in starts]
        for key in gone:
            prompt = self._open.pop(key)
            prompt.slot.came(prompt)

    def _compare(
        self, prompt: Announced, tokens: float | None, cached: float | None, now: float
    ) -> tuple[float, float, str] | None:
        known, chain, depth = prompt.slot, prompt.chain, prompt.depth
        if prompt.fresh is not None:
            known.came(prompt)
        if self._slots.get(known.number) is not known:
            return None
        belief, (_, ends) = known.belief, chain
        said = ends[depth - 1] if depth else 0
        if (
            tokens is None
            or cached is None
            or not (0 < tokens < _MOST_TOKENS and 0 <= cached <= tokens)  # nor is NaN any number
            or not (belief.reported or belief.reports(cached))
        ):
            belief.untold(said * prompt.ratio, chain, now)
            return None
        belief.silence, each = 0, tokens / ends[-1]
        predicted, reach = said * each, ends[prompt.held if prompt.held < len(ends) else -1] * each
        before, watches, verdict = belief.capacity.step, self.role() == WATCHER, None
        if not watches and prompt.at >= belief.cleared:
            verdict = belief.agrees(predicted, reach, cached, prompt.uses)
        if verdict is None:
            came, gone = belief.divide(prompt.uses, each, cached)
            guess = Guess(chain, predicted, reach, cached, came, gone, prompt.at, said)
            if watches:
                belief.watch(guess)
                belief.reuse.ended(chain, now, found=gone is None)
                return predicted, cached, UNTESTED
            verdict = belief.judge(guess)
        belief.reuse.ended(chain, now, found=verdict in _FOUND)
        self._conclude(known, verdict, before, now)
        return predicted, cached, verdict

    # -- what follows ----------------------------------------------------------------------------------

    def _conclude(self, known: Cache, verdict: str, before: int, now: float) -> None:
        """Bring the index and `scales` up to date; `before` is the step of the capacity believed so far."""
        slot, belief = known.number, known.belief
        before_scale = known.told[1] if known.told else 1.0
        if verdict != EMPTIED and belief.capacity.step == before and belief.scale == before_scale:
            return
        is_cleared = verdict == EMPTIED or (belief.scale == 0.0 and before_scale != 0.0)
        known.told = state = belief.capacity.step, belief.scale
        kept = self._clear(known, now) if is_cleared else []
        ruling = Ruling(*state, is_cleared, kept)
        if self.role() == JUDGE:
            self.on_ruling(slot, ruling)
            return
        if is_cleared and self.tells_later:
            known.alone = kept[:_KEPT]
        self._apply(known, ruling)
        for chain in kept:
            self._index.place(slot, chain, now)

    def _clear(self, known: Cache, now: float) -> list[Chain]:
        """All entries go. Returns prompts on their way, or sent since the cache was found empty, of which they stay.

        What is used again is first out of `reuse`, too.
        """
        on_their_way = [prompt.chain for prompt in self._open.values() if prompt.slot is known]
        kept = [*known.belief.clear(now), *on_their_way]
        known.belief.use_again(kept, now)
        return kept

    def _apply(self, known: Cache, ruling: Ruling) -> None:
        slot = known.number
        if ruling.emptied:
            self._index.set_capacity(slot, 0)
            self.cleared.add(slot)
        self._index.set_capacity(slot, known.belief.capacity.at(ruling.step))
        if ruling.scale < 1.0:
            self.scales[slot] = ruling.scale
        else:
            self.scales.pop(slot, None)

    def rulings(self) -> list[tuple[int, Ruling]]:
        """What holds of each replica, to be told again: also that nothing was concluded, as others may have."""
        return [(slot, Ruling(*known.state, False, [])) for slot, known in self._slots.items()]

    def found_alone(self) -> list[tuple[int, Ruling]]:
        """Replicas whose entries went while this gateway was alone, to be told to all; each is given once."""
        alone = [(slot, known, known.alone) for slot, known in self._slots.items() if known.alone is not None]
        for _, known, _ in alone:
            known.alone = None
        return [(slot, Ruling(*known.state, True, kept)) for slot, known, kept in alone]

    def presume(self, slot: int, step: int, scale: float) -> None:
        """A snapshot says what was concluded of a replica: where nothing was here yet. Unknown slots are ignored."""
        known = self._slots.get(slot)
        if known is not None and known.told is None and (step, scale) != (known.belief.capacity.step, 1.0):
            known.told = step, scale
            known.belief.adopt(step, scale)
            self._apply(known, Ruling(step, scale, False, []))

    def emptied(self, slot: int, ruling: Ruling, now: float, *, own: bool) -> None:
        """As `rule`, but of who does not judge, or not any more: only that it was emptied counts."""
        known = self._slots.get(slot)
        if known is not None:
            if not own:
                self._empty(known, ruling, now)
            self._apply(known, Ruling(*known.state, True, ruling.kept))

    def rule(self, slot: int, ruling: Ruling, now: float, *, own: bool) -> None:
        """A ruling was heard, ours or another's; the kept are still to be placed. Unknown slots are ignored."""
        known = self._slots.get(slot)
        if known is None:
            return
        if not own:
            known.told = ruling.step, ruling.scale
            known.belief.adopt(ruling.step, ruling.scale)
            if ruling.emptied:
                self._empty(known, ruling, now)
        self._apply(known, ruling)

    def _empty(self, known: Cache, ruling: Ruling, now: float) -> None:
        """Another gateway found the cache emptied, or its replica not to be trusted; this one may have, alone."""
        belief = known.belief
        belief.totals.emptied += ruling.scale > 0.0 and known.alone is None
        known.alone = None
        belief.excuse()
        belief.clear(now)
        belief.use_again(ruling.kept, now)
