"""least_tokens: fewest tokens in flight by this gateway's books. Also what a failing policy falls back to."""

from extproc.core.policies.base import Ask, Choice, Rng, lowest


class LeastTokens:
    """A full scan over own books, which are exact at once; ties at random."""

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates with the fewest tokens in flight."""
        scores = [replica.books.tokens for replica in ask.replicas]
        return Choice(lowest(scores, picks, rng), scores, "fewest_tokens", {})
