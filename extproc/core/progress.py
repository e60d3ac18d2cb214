"""How far an engine is with the prompts it was sent, by its own counters.

What was sent is known prompt by prompt, what is finished only as a sum that counts up. Both are cumulative, so lost
and late samples lose nothing: at each sample the counter's growth that is not yet explained is laid over the prompts
not yet known to be computed, oldest first, since engines compute first come first served.

Two counters can tell, and the better one that an engine has is used:

    prompts         first tokens counted (`ttft_count`): whole prompts, whatever was estimated of their lengths
    prompt tokens   not found in the cache (`prompt_tokens` - `hit_tokens`), which move when a prompt is finished or
                    with each piece of it; a prompt's length is an estimate, so it counts as finished when the rest
                    is within `_NEAR` of it

Growth that no prompt explains is of others: requests that did not come this way, or of which more came in one.
Growth that should be there and is not belongs to prompts that were given up, or were shorter than estimated. Both are
seen at the ends of what is possible (more finished than sent; less finished than proved), set right there, and
remembered as a share of the growth, which forgets by 1/e in `_SPAN` seconds. Between these ends two gauges hold it:
what waits in the engine is not begun, and what runs and is not finished fits into one step.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from extproc.core.cost import prefill_work, tokens_at_start
from extproc.core.sample import Sample

#: Share of a prompt's length by which estimates are off, as a rule: a prompt of which less is missing is done.
_NEAR = 0.1
#: Seconds in which the share of others is forgotten by 1/e.
_SPAN = 60.0
#: Bounds of that share: what else an engine may have finished, and what estimates may be too long.
_LEAST_SHARE, _MOST_SHARE = -0.5, 0.95
#: Prompt tokens of one step: twice the largest default (vLLM's max_num_batched_tokens on large GPUs, 8,192).
_STEP = 16_384.0
#: Seconds by which a first token may be seen before the counter shows it.
_SLACK = 0.1
#: No counter grows by so much between two samples; it is garbage.
_MOST = 1e12


class Prompt(NamedTuple):
    """One that is not known to be computed: its key, when it was sent (s), and its uncached work (core/cost.py)."""

    key: int
    sent: float
    work: float


class Known(NamedTuple):
    """One that is, or was given up: when that became known, and its uncached work."""

    at: float
    work: float


class Found(NamedTuple):
    """What a sample proves: the oldest `done` prompts are finished, and `part` work of the next; no others."""

    done: int
    part: float


class Begun(NamedTuple):
    """What gauges prove: the oldest `done` prompts are finished, and at most `most` work of those behind them."""

    done: int
    most: float


_NOTHING = Begun(0, 0.0)


class Tally:
    """How far a prediction was off when the truth came: how often that was, and sums of seconds."""

    __slots__ = ("news", "off", "seen")

    def __init__(self) -> None:
        self.news = 0
        self.off = 0.0
        self.seen = 0.0

    def note(self, off: float, seen: float) -> None:
        """Take one in: it was `off` seconds (of either sign) from the `seen` seconds that it truly was."""
        if math.isfinite(off) and math.isfinite(seen):
            self.news += 1
            self.off += abs(off)
            self.seen += max(seen, 0.0)


class Progress:
    """The counters of one incarnation of an engine.

    Args:
        doubling: position in tokens where a prompt token takes twice as long. Of how many tokens work is, is known
            only where they start at 0 or each costs the same, so tokens are the weaker counter.

    Attributes:
        share: of the counter's growth that is not of prompts sent this way, lately; negative when these are
            finished with less growth than was expected.
    """

    __slots__ = ("_at", "_base", "_by_prompts", "_doubling", "_grown", "_last", "_others", "_short", "share")

    def __init__(self, doubling: float = math.inf) -> None:
        self._doubling = doubling
        self.share = 0.0
        self._by_prompts = False
        self._last: float | None = None  # the counter at the last sample
        self._at = -math.inf  # when that was taken
        self._base = 0.0  # of it, what prompts explain that are known to be computed, and others
        self._grown = self._others = 0.0  # decayed sums: growth, and what of it was not ours
        self._short = 0.0  # by how much it fell short of what was known at the last sample

    def observe(
        self, sample: Sample, unknown: Sequence[Prompt], known: Iterable[Known], strangers: float | None
    ) -> Found | None:
        """Reconcile what was sent with what a sample says is finished.

        Args:
            sample: of this incarnation, and `tells` something.
            unknown: prompts not known to be computed, oldest first.
            known: those that became so since the last call, by first tokens and ends.
            strangers: requests on the engine that did not come this way, 0 and up; None when the sample does not yet
                show all that did.

        Returns:
            What is proved of those of `unknown` that were sent before the sample; None when it is the first that
            has this counter.
        """
        counter, by_prompts = _counter(sample)
        if counter is None or not self._take(counter, sample.at, by_prompts):
            return None
        late = 0.0
        for each in known:
            amount = self._amount(each)
            self._base += amount
            if each.at > sample.at - _SLACK:
                late += amount
        sent = [prompt for prompt in unknown if prompt.sent < sample.at]
        found = self._lay(sent, late)
        done = self._held_by_gauges(found.done, sent, sample, strangers)
        if done != found.done:
            found = Found(done, 0.0)
        self._settle(sent, found)
        return found

    def _take(self, counter: float, at: float, by_prompts: bool) -> bool:
        """Take in the counter's growth; False when it can't be told: it is new, or ran backwards."""
        last, self._last = self._last, counter
        before, self._at = self._at, at
        if last is None or by_prompts != self._by_prompts or not 0 <= counter - last < _MOST:
            self._by_prompts = by_prompts
            self._base, self._short = counter, 0.0
            self._grown = self._others = self.share = 0.0
            return False
        keep = math.exp(min(before - at, 0.0) / _SPAN)
        grown = counter - last
        self._grown = self._grown * keep + grown
        self._others *= keep
        self._allow(self.share * grown)
        if self._grown > 0:
            self.share = min(max(self._others / self._grown, _LEAST_SHARE), _MOST_SHARE)
        return True

    def _allow(self, amount: float) -> None:
        """So much of the growth is of others (below 0: so much is missing)."""
        self._base += amount
        self._others += amount

    def _lay(self, sent: Sequence[Prompt], late: float) -> Found:
        """Lay the growth that nothing explains over the prompts, oldest first."""
        assert self._last is not None
        left = self._last - self._base
        short, self._short = self._short, min(left + late, 0.0)
        if short and self._short:  # twice: it is not only late
            missing = max(short, self._short)
            self._allow(missing)
            left -= missing
            self._short -= missing
        done = 0
        for prompt in sent:
            amount = self._amount(prompt)
            if left < amount * (1.0 - _NEAR):
                part = 0.0 if self._by_prompts else max(left, 0.0)
                return Found(done, prefill_work(0.0, part, self._doubling))
            left -= amount
            done += 1
        return Found(done, 0.0)

    def _held_by_gauges(
        self, done: int, sent: Sequence[Prompt], sample: Sample, strangers: float | None
    ) -> int:
        """`done` within what gauges allow: who waits is not begun, and who runs unfinished fits into one step.

        The oldest prompt of a step may have been begun before it, and the last be finished after it.
        """
        if sample.waiting is None or strangers is None:
            return done
        begun = max(len(sent) - math.ceil(sample.waiting), 0)
        done = min(done, max(len(sent) - math.ceil(max(sample.waiting - strangers, 0.0)), 0))
        least, within = begun, 0.0
        while least > done:
            if least < begun - 1:
                within += tokens_at_start(sent[least].work, self._doubling)
            if within > _STEP:
                break
            least -= 1
        return max(done, least)

    def _settle(self, sent: Sequence[Prompt], found: Found) -> None:
        """Count the prompts that were found done as explained, and what is more than the next one as of others."""
        assert self._last is not None
        self._base += sum(self._amount(prompt) for prompt in sent[: found.done])
        rest = self._last - self._base
        if found.done < len(sent):
            rest -= self._amount(sent[found.done])
        if rest > 0:
            self._allow(rest)

    def _amount(self, prompt: Prompt | Known) -> float:
        return 1.0 if self._by_prompts else tokens_at_start(prompt.work, self._doubling)


def begun(
    sample: Sample, unknown: Sequence[Prompt], requests: int, strangers: float, doubling: float = math.inf
) -> Begun | None:
    """What an engine without such counters shows by what waits in it: who waits is not begun, whoever is begun and
    not finished is in the step that runs, and prompts are begun in the order of sending.

        finished at least   all but the newest `waiting` + `unseen`, and but what fits into a step before those
        finished at most    all but the newest that wait, of which as large a share is ours as of all on the engine
        unseen              what this side counts beyond the sample: gauges move at the end of a step, so they may
                            not show yet what came in it

    Args:
        sample: of this incarnation.
        unknown: prompts not known to be computed, oldest first.
        requests: exchanges in flight, 0 and up.
        strangers: requests on the engine that did not come this way, 0 and up.
        doubling: as in core/cost.py.

    Returns:
        What is proved of those of `unknown` that were sent before the sample; None when the engine has no such
        gauges.
    """
    if sample.waiting is None or sample.running is None or sample.asleep:
        return None
    if not unknown:
        return _NOTHING
    sent = [prompt for prompt in unknown if prompt.sent < sample.at]
    came_since = len(unknown) - len(sent)
    unseen = max(requests - came_since - sample.running - sample.waiting, 0.0)
    last = max(len(sent) - math.ceil(sample.waiting + unseen), 0)
    done = _before_the_step(sent, last, doubling)
    ours = 1.0 - min(strangers / (sample.running + sample.waiting), 1.0) if strangers else 1.0
    most = max(len(sent) - math.floor(sample.waiting * ours), done)
    return Begun(done, sum(prompt.work for prompt in sent[done:most]))


def _before_the_step(sent: Sequence[Prompt], last: int, doubling: float) -> int:
    """How many of the `last` prompts begun are finished for sure. The oldest prompt of a step may have been begun
    before it, and its last be finished after it; what is between them fits into the step."""
    least, within = last, 0.0
    while least > 0:
        if least < last - 1:
            within += tokens_at_start(sent[least].work, doubling)
        if within > _STEP:
            break
        least -= 1
    return least


def tells(sample: Sample) -> bool:
    """Whether a sample has a counter of finished prompts."""
    return _counter(sample)[0] is not None


def _counter(sample: Sample) -> tuple[float | None, bool]:
    """The counter of finished work that a sample has, and whether it counts prompts."""
    prompts, tokens, hits = sample.ttft_count, sample.prompt_tokens, sample.hit_tokens
    if prompts is not None:
        return prompts, True
    return (tokens - hits, False) if tokens is not None and hits is not None else (None, False)
