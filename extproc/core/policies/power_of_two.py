"""power_of_two: two candidates at random, the one with fewer requests in flight."""

from extproc.core.policies.base import Ask, Choice, Rng


class PowerOfTwo:
    """Less exact than a full scan, and for that reason it does not herd when the counts are old."""

    def choose(self, ask: Ask, picks: int, rng: Rng) -> Choice:
        """The lesser of two drawn; the other is the first fallback."""
        count = len(ask.replicas)
        first = int(rng.random() * count)
        if count == 1:
            return Choice([first], (), "only", {})
        second = (first + 1 + int(rng.random() * (count - 1))) % count
        if ask.replicas[second].requests < ask.replicas[first].requests:
            first, second = second, first
        rest = [i for i in range(count) if i not in (first, second)][: max(0, picks - 2)]
        return Choice([first, second, *rest][:picks], (), "lesser_of_two", {})
