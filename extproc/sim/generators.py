"""Workloads made by seeded generators. Each is one shape of traffic; rows are made as they are asked for.

Settings they all have: `requests` (about how many), `rate` (arrivals a second), `seed`. Lengths are tokens, drawn
from a log-normal distribution around the median given, as lengths of real prompts are.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from itertools import count
from random import Random

from extproc.sim.bounds import DAY, MOST_REQUESTS, MOST_TOKENS, shown, whole, within
from extproc.sim.jobs import BLOCK_TOKENS, Row, block_hash
from extproc.sim.workload import Workload, WorkloadError

#: Spread of log-normal lengths: the 90th percentile is 2.8 times the median.
_SIGMA = 0.8
#: Longest length drawn, as a multiple of the median.
_MOST = 20.0


class _Text:
    """Tokens that grow at the end, as the blocks an engine would cache."""

    def __init__(self, numbers: Iterator[int], blocks: list[int] | None = None) -> None:
        self._numbers = numbers
        self._blocks = blocks if blocks is not None else []
        self.tokens = len(self._blocks) * BLOCK_TOKENS

    def extend(self, tokens: int) -> None:
        """Append so many new tokens."""
        self.tokens += tokens
        while len(self._blocks) < self.tokens // BLOCK_TOKENS:
            self._blocks.append(block_hash(next(self._numbers)))

    def fork(self) -> "_Text":
        """A text that begins with this one's full blocks."""
        copy = _Text(self._numbers, list(self._blocks))
        copy.tokens = self.tokens
        return copy

    def row(self, at: float, output: int, think: float = 0.0) -> Row:
        """A request with this text as its prompt."""
        blocks = list(self._blocks)
        if self.tokens % BLOCK_TOKENS or not blocks:
            blocks.append(block_hash(next(self._numbers)))
        return Row(at, self.tokens, output, blocks, think=think)


class _Dice:
    """Seeded draws."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"workload/{seed}")  # noqa: S311 - a simulation's own dice
        self.random = self._rng.random

    def length(self, median: float) -> int:
        """A log-normal length, at least 1."""
        return max(1, int(min(self._rng.lognormvariate(math.log(median), _SIGMA), median * _MOST)))

    def gap(self, rate: float) -> float:
        """Seconds to the next arrival of a Poisson process."""
        return self._rng.expovariate(rate)

    def ranked(self, count: int) -> int:
        """One of `count`, by Zipf's law (continuous approximation for exponent 1): low numbers are asked for more."""
        return min(int((count + 1) ** self._rng.random()) - 1, count - 1)


def _shared_prompts(
    *,
    requests: int,
    rate: float,
    seed: int,
    groups: int = 20,
    prompt: int = 6000,
    question: int = 800,
    output: int = 250,
) -> Iterator[Row]:
    """Groups of requests with one long system prompt each; groups are asked for by Zipf's law."""
    dice, numbers, now = _Dice(seed), count(), 0.0
    systems = [_Text(numbers) for _ in range(groups)]
    for system in systems:
        system.extend(dice.length(prompt))
    for _ in range(requests):
        now += dice.gap(rate)
        text = systems[dice.ranked(groups)].fork()
        text.extend(dice.length(question))
        yield text.row(now, dice.length(output))


def _documents(
    *,
    requests: int,
    rate: float,
    seed: int,
    documents: int = 200,
    length: int = 12_000,
    question: int = 200,
    output: int = 200,
) -> Iterator[Row]:
    """Questions about documents (RAG): a long document first, then a short question."""
    return _shared_prompts(
        requests=requests,
        rate=rate,
        seed=seed,
        groups=documents,
        prompt=length,
        question=question,
        output=output,
    )


def _sessions(
    dice: _Dice,
    numbers: Iterator[int],
    root: _Text,
    at: float,
    turns: int,
    *,
    user: int,
    output: int,
    think: float,
) -> Row:
    """One closed-loop session: every turn holds all before it, answers included."""
    text = root.fork()
    text.extend(dice.length(user))
    answer = dice.length(output)
    first = row = text.row(at, answer)
    for _ in range(turns - 1):
        text.extend(answer + dice.length(user))
        answer = dice.length(output)
        row.after = text.row(0.0, answer, think=think * (0.5 + dice.random()))
        row = row.after
    return first


def _chat(
    *,
    requests: int,
    rate: float,
    seed: int,
    turns: int = 5,
    system: int = 1000,
    user: int = 400,
    output: int = 300,
    think: float = 20.0,
) -> Iterator[Row]:
    """Conversations of several turns behind one system prompt; `rate` is sessions' starts times turns."""
    dice, numbers, now = _Dice(seed), count(), 0.0
    root = _Text(numbers)
    root.extend(system)
    for _ in range(max(requests // turns, 1)):
        now += dice.gap(rate / turns)
        yield _sessions(dice, numbers, root, now, turns, user=user, output=output, think=think)


def _agents(
    *,
    requests: int,
    rate: float,
    seed: int,
    turns: int = 20,
    system: int = 8000,
    user: int = 600,
    output: int = 120,
    think: float = 2.0,
) -> Iterator[Row]:
    """Agents: many short turns over a long and growing context, nearly all of it reused."""
    return _chat(
        requests=requests,
        rate=rate,
        seed=seed,
        turns=turns,
        system=system,
        user=user,
        output=output,
        think=think,
    )


def _hot(
    *,
    requests: int,
    rate: float,
    seed: int,
    share: float = 0.5,
    prompts: int = 1,
    prompt: int = 16_000,
    length: int = 3000,
    output: int = 150,
) -> Iterator[Row]:
    """Hot prompts: a share of all requests begins with one of them; the others have nothing in common.

    All of them are asked for alike. The i-th has 2 * i / (prompts + 1) times `prompt` tokens.
    """
    dice, numbers, now = _Dice(seed), count(), 0.0
    hot = [_Text(numbers) for _ in range(prompts)]
    for place, text in enumerate(hot, 1):
        text.extend(2 * place * prompt // (prompts + 1))
    for _ in range(requests):
        now += dice.gap(rate)
        if dice.random() < share:
            text = hot[int(dice.random() * prompts) if prompts > 1 else 0].fork()
            text.extend(dice.length(300))
        else:
            text = _Text(numbers)
            text.extend(dice.length(length))
        yield text.row(now, dice.length(output))


def _bursts(
    *,
    requests: int,
    rate: float,
    seed: int,
    size: int = 40,
    groups: int = 10,
    prompt: int = 3000,
    question: int = 600,
    output: int = 200,
) -> Iterator[Row]:
    """Requests come `size` at a time in the same instant, with shared system prompts."""
    now = 0.0
    dice = _Dice(seed + 1)
    rows = _shared_prompts(
        requests=requests,
        rate=rate,
        seed=seed,
        groups=groups,
        prompt=prompt,
        question=question,
        output=output,
    )
    for number, row in enumerate(rows):
        if number % size == 0:
            now += dice.gap(rate / size)
        row.at = now
        yield row


def _mixed(
    *,
    requests: int,
    rate: float,
    seed: int,
    long: int = 40_000,
    short: int = 600,
    share: float = 0.1,
    output: int = 200,
) -> Iterator[Row]:
    """Short prompts among which a share is very long; nothing is shared."""
    dice, numbers, now = _Dice(seed), count(), 0.0
    for _ in range(requests):
        now += dice.gap(rate)
        text = _Text(numbers)
        text.extend(dice.length(long if dice.random() < share else short))
        yield text.row(now, dice.length(output))


#: Longest median of a length, in tokens; draws go up to _MOST times that.
_LONGEST = 500_000
#: Most tokens of all shared texts together: 4 million blocks, some 250 MB.
_MOST_SHARED = 2**31
#: Least and most of each setting that is no length.
_BOUNDS: dict[str, tuple[float, float]] = {
    "requests": (1, MOST_REQUESTS), "rate": (0.0001, 1e6), "seed": (-(2**53), 2**53), "groups": (1, 10**6),
    "documents": (1, 10**6), "turns": (1, 1000), "prompts": (1, 10**6), "think": (0, DAY), "share": (0, 1),
    "size": (1, 10**6),
}  # fmt: skip

#: Name on the command line -> generator.
GENERATORS: dict[str, Callable[..., Iterator[Row]]] = {
    "shared_prompts": _shared_prompts,
    "chat": _chat,
    "documents": _documents,
    "agents": _agents,
    "hot": _hot,
    "bursts": _bursts,
    "mixed": _mixed,
}


def generated(name: str, settings: Mapping[str, float]) -> Workload:
    """A generated workload. Settings are the generator's own; `requests`, `rate` and `seed` have defaults.

    Raises:
        WorkloadError: no such generator or setting, or a value out of range.
    """
    if name not in GENERATORS:
        raise WorkloadError(f"there is no generator {shown(name)}; known: {', '.join(GENERATORS)}")
    defaults: dict[str, int | float] = {"requests": 5000, "rate": 4.0, "seed": 0}
    for key, parameter in signature(GENERATORS[name]).parameters.items():
        if parameter.default is not parameter.empty:
            defaults[key] = parameter.default
    unknown = sorted(set(settings) - set(defaults))
    if unknown:
        has = ", ".join(sorted(defaults))
        raise WorkloadError(f"generator {name!r} has no setting {shown(unknown[0])}; it has: {has}")
    try:
        chosen = {key: _checked(key, settings.get(key, usual), usual) for key, usual in defaults.items()}
        _check_sizes(chosen)
    except ValueError as error:
        raise WorkloadError(f"generator {name!r}: {error}") from None
    seconds = chosen["requests"] / chosen["rate"]
    pauses = chosen.get("think", 0) * (chosen.get("turns", 1) - 1)
    return Workload(name, lambda: GENERATORS[name](**chosen), dict(chosen), seconds, pauses)


def _checked(key: str, value: float, usual: float) -> int | float:
    """A setting's value, within its bounds; whole where its default is."""
    low, high = _BOUNDS.get(key, (1, _LONGEST))
    return whole(key, value, int(low), int(high)) if isinstance(usual, int) else within(key, value, low, high)


def _check_sizes(chosen: Mapping[str, float]) -> None:
    """Bound what settings make together: the texts that are shared, and the longest prompt of a session."""
    texts = chosen.get("groups", chosen.get("documents", chosen.get("prompts", 1)))
    shared = texts * chosen.get("prompt", chosen.get("length", 1))
    within("groups (documents, prompts) times their length, in tokens,", shared, 1, _MOST_SHARED)
    context = chosen.get("turns", 1) * (chosen.get("user", 0) + chosen["output"])
    within("turns times the tokens of each", context, 0, MOST_TOKENS)
