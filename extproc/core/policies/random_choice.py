"""random: any candidate, all equally likely."""

from extproc.core.policies.base import Ask, Choice, Rng, rotated


class RandomChoice:
    """Draws one candidate uniformly."""

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """A uniform draw; fallbacks follow it in the list."""
        count = len(ask.replicas)
        return Choice(rotated(int(rng.random() * count), count, picks), (), "drawn", {})
