"""round_robin: each candidate in its turn."""

from extproc.core.policies.base import Ask, Choice, Rng, rotated


class RoundRobin:
    """The turn passes on by position among the candidates, so it stays even while the fleet is the same."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The next in turn; fallbacks are those after it. The first turn is drawn at random."""
        count = len(ask.replicas)
        self._turn = int(rng.random() * count) if self._turn < 0 else self._turn + 1
        return Choice(rotated(self._turn % count, count, picks), (), "turn", {})
