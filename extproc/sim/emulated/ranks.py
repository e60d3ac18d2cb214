"""The data-parallel ranks of an emulated engine: several engines behind one address, as in vLLM.

x-data-parallel-rank names the one that computes a request: 400 for one that there is not, and as if it were not there
where it is no number. A request without it goes where fewest requests are, and of those in turn.
"""

import asyncio
import re
from collections.abc import Iterator

from extproc.sim.emulated.life import Life
from extproc.sim.emulated.problems import Problem
from extproc.sim.emulated.settings import EngineSettings

HEADER = "x-data-parallel-rank"
_NUMBER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)


class Ranks:
    """One life of an engine, all its ranks. What is counted of requests as such is on the books of the first."""

    def __init__(self, settings: EngineSettings, slow: float = 1.0) -> None:
        self.lives = [Life(settings, slow, rank) for rank in range(settings.ranks)]
        self._turn = 0

    @property
    def first(self) -> Life:
        """Rank 0, the only one of most engines."""
        return self.lives[0]

    def of(self, named: str | None) -> Life:
        """The rank that computes a request, by the header's value. Raises `Problem` for one that there is not."""
        if named is not None and _NUMBER.fullmatch(named):
            rank = int(named)
            if not 0 <= rank < len(self.lives):
                raise Problem(f"data_parallel_rank {rank} is out of range [0, {len(self.lives)}).")
            return self.lives[rank]
        order = [(self._turn + step) % len(self.lives) for step in range(len(self.lives))]
        rank = min(order, key=lambda each: self.lives[each].load)
        self._turn = rank + 1
        return self.lives[rank]

    async def idle(self) -> None:
        """Wait until nothing runs or waits."""
        await asyncio.gather(*(life.idle.wait() for life in self.lives))

    def close(self) -> None:
        """End all of them for good."""
        for life in self.lives:
            life.close()

    def truth(self) -> dict[str, object]:
        """The books: those of the only rank, or of the first, with all of them in `ranks`."""
        if len(self.lives) == 1:
            return self.first.truth()
        return {**self.first.truth(), "ranks": [life.truth() for life in self.lives]}

    def metrics(self) -> str:
        """The text of /metrics: each family once, with the series of every rank that has a label for it."""
        first, *others = [list(_families(life.metrics())) for life in self.lives]
        text = []
        for number, family in enumerate(first):
            text.append(family)
            for rank, told in enumerate(others, 1):
                lines = [line for line in told[number].splitlines() if f'engine="{rank}"' in line]
                text += [line + "\n" for line in lines]
        return "".join(text)


def _families(text: str) -> Iterator[str]:
    """An exposition in its families."""
    for part in text.split("# HELP ")[1:]:
        yield "# HELP " + part
