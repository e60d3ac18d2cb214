"""least_request: fewest requests in flight, by this gateway's books and the engine's own counts."""

from extproc.core.policies.base import Ask, Choice, Rng, lowest


class LeastRequest:
    """A full scan, ties at random."""

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The candidates with the fewest requests."""
        scores = [replica.requests for replica in ask.replicas]
        return Choice(lowest(scores, picks, rng), scores, "fewest_requests", {})
