"""What a replica's counters say of its speed: prompt tokens/s, and output tokens/s when it is full (C8, F4).

Both begin at what is configured, as if that had been seen for some seconds (PRIOR), and forget by 1/e in SPAN
seconds, the configured speed too.

Prompts. A window between two samples has the prompt tokens not found in the cache, and the seconds that prompts
spent in prefill. Prompts overlap, so the seconds are more than the engine took. Their mean number at a time is
L = seconds in prefill / seconds gone by (Little's law), and the share rho of the time in which at least one was under
way follows from how they overlap (`busy_share`). Every step a prompt has a part in also makes output, which takes as
long as one token of an answer did at its fastest lately; that is taken off. A prompt has a part in 1 + its length / a
step's tokens of them where prompts fill steps one after the other. Where that is more than half of the seconds in
prefill, as with short or nearly cached prompts, they say nothing of the speed, and the window is passed over. Engines
tell the seconds when a request ends and the tokens when its prompt does: the tokens of a window are as many mean
prompts as ended in it.

Output. Of a window are known the output tokens a second, and the seconds between two tokens of one answer. More
sequences at once make more tokens a second, and each of them slower. So a full replica makes

    at least  tokens a second now         at most  max_running / seconds between two tokens now

tokens a second, and the configured speed is taken to be right as far as it is within these: a half-empty replica
proves it wrong only when one token takes longer than it should on a full one. Full, both bounds are the speed.
Prompts computed in between slow output down, so this is the speed with the prompts that a replica usually gets.
"""

import math

from extproc.core.cost import prefill_work
from extproc.core.sample import Sample

#: A learned speed moves in steps of this factor, and only when it is off by _PACE_HOLD of one: small chance
#: differences between equal replicas would otherwise draw prompts to the one that seems fastest.
_PACE_STEP = 1.15
_PACE_HOLD = 0.75
#: Most steps away from the configured speed: a factor of 8.
_PACE_STEPS = 15
#: Seconds of prompt work that the configured speed counts for, and over which what was seen is averaged.
PRIOR = 20.0
SPAN = 120.0
#: Seconds within which the configured speed and first tokens count for 1/e once counters tell. Counters miss nothing
#: and are averages of many prompts, so they may overrule a wrong setting within a minute.
_OVERRULED = 30.0
#: Least seconds that the configured speed counts for, however long ago.
_LEAST_PRIOR = 0.01
#: Share of the seconds in prefill from which steps outweigh prompts.
_STEPS_RULE = 0.5
#: Seconds that the configured output speed counts for: it is only asked within bounds.
_OUTPUT_PRIOR = 5.0
#: Least and most seconds between the two samples of a window. Counters move by whole prompts, so a short window is
#: chance; over a long one, who knows what happened.
_WINDOW = 2.0
_LONGEST = 30.0
#: Prompt tokens that engines compute in one step: vLLM's max_num_batched_tokens on large GPUs. Where a step has a
#: quarter of them, prompts of 12,000 tokens seem 8 % faster than they are.
_STEP = 8192.0

#: No counter grows by so much between two samples; it is garbage.
_MOST = 1e12

#: Counters a window is made of.
_COUNTERS = (
    *("prompt_tokens", "hit_tokens", "generated_tokens", "ttft_count"),
    *("prefill_sum", "prefill_count", "tpot_sum", "tpot_count"),
)


class Speeds:
    """Estimates for one incarnation.

    Args:
        prefill: configured prompt tokens/s, of a prompt's first tokens.
        decode: configured output tokens/s of a full replica.
        doubling: position in tokens where a prompt token takes twice as long (core/cost.py).
    """

    __slots__ = (
        "_base",
        "_configured",
        "_decode",
        "_doubling",
        "_fastest",
        "_models",
        "_prefill",
        "_prompts",
        "_signalled",
    )

    def __init__(self, prefill: float, decode: float, doubling: float = math.inf) -> None:
        self._configured = (prefill, decode)
        self._doubling = doubling
        self._base: Sample | None = None
        self._models: frozenset[str] = frozenset()
        self._reset()

    def _reset(self) -> None:
        self._prefill = (self._configured[0] * PRIOR, PRIOR)  # work, seconds
        self._prompts = _Prompts()
        self._decode = (self._configured[1] * _OUTPUT_PRIOR, _OUTPUT_PRIOR)  # tokens, seconds
        self._signalled = False
        self._fastest: float | None = None  # seconds for an output token at its fastest, let grow with time

    def presume(self, prefill: float, decode: float) -> None:
        """Begin with what another gateway learned, as if it were configured; what is no speed is passed over.

        Args:
            prefill, decode: as the properties below; 0 for unknown.
        """
        if 0 < prefill < math.inf:
            self._prefill = (prefill * PRIOR, PRIOR)
        if 0 < decode < math.inf:
            self._decode = (decode * _OUTPUT_PRIOR, _OUTPUT_PRIOR)

    @property
    def prefill(self) -> float:
        """Prompt work (core/cost.py) a second."""
        (done, took), (more, longer) = self._prefill, self._prompts.computed(self._doubling)
        return (done + more) / (took + longer)

    @property
    def decode(self) -> float:
        """Output tokens a second of a full replica."""
        return self._decode[0] / self._decode[1]

    def computed(self, work: float, seconds: float) -> None:
        """First tokens showed that prompt work took so long. Samples then add nothing: they'd count it twice."""
        if math.isfinite(work) and math.isfinite(seconds):
            self._signalled = True
            keep = math.exp(-seconds / SPAN)
            self._fade(keep)
            self._prompts.fade(keep)
            done, took = self._prefill
            self._prefill = done + work, took + seconds

    def observe(self, sample: Sample, max_running: int) -> bool:
        """Take in a sample of a replica with so many slots; True when there was something to learn from it."""
        base = self._base
        models = frozenset(sample.models)
        if models and self._models and models.isdisjoint(self._models):  # another model, or version of it
            self._reset()
            base = None
        self._models = models or self._models
        if base is None or not 0 <= sample.at - base.at <= _LONGEST:
            self._base = sample
            return base is None
        if sample.at - base.at < _WINDOW:
            return False
        self._base = sample
        grown = _grown(base, sample)
        if not (base.running or sample.running or any(grown.values())):  # idle time is no measure of anything
            return False
        self._learn_decode(grown, sample.at - base.at, max_running)
        self._learn_prefill(grown, sample.at - base.at)
        return True

    def _learn_prefill(self, grown: dict[str, float], seconds: float) -> None:
        signalled, self._signalled = self._signalled, False
        if signalled or not {"prompt_tokens", "hit_tokens", "prefill_sum"} <= grown.keys():
            return
        ended = grown.get("prefill_count", 0.0)
        uncached = max(grown["prompt_tokens"] - grown["hit_tokens"], 0.0)
        steps = (ended + uncached / _STEP) * (self._fastest or 0.0) if ended else 0.0
        if steps <= _STEPS_RULE * grown["prefill_sum"]:
            self._fade(math.exp(-seconds / _OVERRULED))
            self._prompts.fade(math.exp(-seconds / SPAN))
            self._prompts.add(grown, seconds, steps)

    def _learn_decode(self, grown: dict[str, float], seconds: float, max_running: int) -> None:
        tokens, spent, count = (
            grown.get(name, 0.0) for name in ("generated_tokens", "tpot_sum", "tpot_count")
        )
        if tokens > 0 and spent > 0 and count > 0:
            now = tokens / seconds
            aged = math.inf if self._fastest is None else self._fastest * math.exp(seconds / SPAN)
            self._fastest = min(spent / count, aged)
            full = max(min(self._configured[1], max_running * count / spent), now)
            keep = math.exp(-seconds / SPAN)
            done, took = self._decode
            self._decode = done * keep + full * seconds, took * keep + seconds

    def _fade(self, keep: float) -> None:
        done, took = self._prefill
        keep = max(keep, min(_LEAST_PRIOR / took, 1.0))
        self._prefill = done * keep, took * keep


class _Prompts:
    """Decayed sums over windows in which the engine worked."""

    __slots__ = ("_begun", "_ended", "_hits", "_spent", "_steps", "_time", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._hits = self._begun = 0.0  # prompt tokens, cached ones of them, first tokens
        self._spent = self._steps = self._ended = (
            0.0  # seconds in prefill, steps' part of them, of how many prompts
        )
        self._time = 0.0  # seconds gone by

    def add(self, grown: dict[str, float], seconds: float, steps: float) -> None:
        """Take in a window. `steps` are the seconds in prefill that made output."""
        ended = grown.get("prefill_count", 0.0)
        self._tokens += grown["prompt_tokens"]
        self._hits += grown["hit_tokens"]
        self._begun += grown.get("ttft_count", ended)
        self._spent += grown["prefill_sum"]
        self._steps += steps
        self._ended += ended
        self._time += seconds

    def fade(self, keep: float) -> None:
        """Let what was seen count for less: `keep` of it, 0..1."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) * keep)

    def computed(self, doubling: float) -> tuple[float, float]:
        """Work that the engine did on prompts that ended, and the seconds it took."""
        uncached = self._tokens - self._hits
        if self._spent <= 0 or uncached <= 0 or (self._ended and not self._begun):
            return 0.0, 0.0
        at_once = self._spent / self._time
        busy = busy_share(at_once, uncached / self._begun if self._begun else 0.0)
        if not self._ended:  # the engine does not count prompts
            return uncached, busy * self._time
        each = prefill_work(self._hits / self._begun, self._tokens / self._begun, doubling)
        return each * self._ended, busy * self._time * (1.0 - self._steps / self._spent)


def busy_share(at_once: float, tokens: float) -> float:
    """The share rho of the time, 0..1, in which at least one prompt is in prefill.

    An engine fills each step of `s` seconds with prompts, first come first served. A prompt that takes it T seconds
    shares its first step with the end of one before it, and its last with the next one's start, as far as others
    wait: with a chance of rho, and half a step each. So it is in prefill for T + rho * s seconds. Short prompts fill
    no steps; they overlap as those who begin independently of each other do, 1 - exp(-L) (the busy share of an
    M/G/infinity queue). Whatever overlaps less holds:

        L = rho + rho^2 * s / T   or   L = -ln(1 - rho),   the rho that is more

    Args:
        at_once: L, mean number of prompts in prefill at a time, 0 and up.
        tokens: uncached ones of a mean prompt; 0 for unknown, and then they count as short.
    """
    overlap = _STEP / max(tokens, 1.0)
    filled = (math.sqrt(1.0 + 4.0 * overlap * at_once) - 1.0) / (2.0 * overlap)
    return min(max(filled, -math.expm1(-at_once)), 1.0)


def _grown(before: Sample, after: Sample) -> dict[str, float]:
    """What each counter did; without those that are unknown, and nothing at all where one ran backwards."""
    grown = {}
    for name in _COUNTERS:
        first, last = getattr(before, name), getattr(after, name)
        if first is not None and last is not None and last - first < _MOST:
            grown[name] = float(last - first)
    return grown if all(value >= 0 for value in grown.values()) else {}


class Stepped:
    """A learned speed as it is used: the configured one times a whole number of steps, kept until it is well off."""

    __slots__ = ("_prior", "_step", "value")

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._step = 0
        self.value = prior

    def follow(self, estimate: float) -> float:
        """The value after an estimate; what is no speed (NaN, 0, infinity) changes nothing."""
        if not 0 < estimate < math.inf:
            return self.value
        seen = math.log(estimate / self._prior, _PACE_STEP)
        if abs(seen - self._step) > _PACE_HOLD:
            self._step = min(max(round(seen), -_PACE_STEPS), _PACE_STEPS)
            self.value = self._prior * _PACE_STEP**self._step
        return self.value
