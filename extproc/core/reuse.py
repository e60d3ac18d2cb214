"""How much a replica was given since it was last given a prompt: the prompt's reuse distance, in bytes.

A cache that evicts what was unused longest still holds an entry exactly when fewer distinct bytes than its capacity
were used since (Mattson et al., 1970: the stack distance). So a hit at distance d says that the cache holds at least
d bytes, and a miss that it holds less. The index's epochs end by new bytes alone: where sessions come back with a
little more each time, all are in one epoch, which tells nothing. So whole prompts are kept in order here.

A prompt that goes on from an earlier one takes its place, at the front. Each prompt owns the bytes that no prompt
before it had, so the sum over prompts counts each byte once. Prompts stand in generations, which end after
1/_SHARE of the configured capacity was used: a distance is the sum of the newer ones, right to within one of them.
"""

from typing import Final, NamedTuple

from extproc.core.prompt import Chain

#: Generations in a capacity, and generations kept: enough for what is used four times as long as the cache is large.
_SHARE: Final = 32
_GENERATIONS: Final = 128
#: Prompts remembered; each takes about 300 bytes.
_PROMPTS: Final = 2048


class Use(NamedTuple):
    """When a prompt was last used: bytes used since, and seconds on the caller's clock.

    `sure` says that it was seen to be in the cache then, not only brought there.
    """

    distance: float
    at: float
    sure: bool = False


class _Given:
    """A prompt a replica was given: its last hash, the one before, and the bytes that are its own."""

    __slots__ = ("at", "before", "generation", "last", "own", "sure")

    def __init__(self, chain: Chain, own: int, generation: int, at: float) -> None:
        self.last = chain.hashes[-1]
        self.before = chain.hashes[-2] if len(chain.hashes) > 1 else self.last
        self.own = own
        self.generation = generation
        self.at = at
        self.sure = False


class Reuse:
    """Prompts of one replica in the order of their last use. `capacity`: bytes its cache is configured to hold."""

    __slots__ = ("_first", "_given", "_span", "_sums", "_used")

    def __init__(self, capacity: int) -> None:
        self._span = max(capacity // _SHARE, 1)
        self.clear()

    def clear(self) -> None:
        """Forget every use."""
        self._sums = [0]  # own bytes of each generation, oldest first
        self._first = 0  # number of the oldest generation
        self._used = 0  # bytes used in the newest
        self._given: dict[int, _Given] = {}  # by last hash and by the one before; oldest use first

    def __len__(self) -> int:
        """Prompts remembered, at most twice over."""
        return len(self._given)

    def look(self, chain: Chain, depth: int) -> Use | None:
        """Last use of the first `depth` hashes together; None when no prompt remembered ended there."""
        given = self._given.get(chain.hashes[depth - 1]) if depth else None
        if given is None:
            return None
        place = given.generation - self._first
        if place < 0:
            return Use(sum(self._sums), given.at, given.sure)
        # Of its own generation, half came later as a rule; what it owns itself does not count.
        return Use(
            sum(self._sums[place + 1 :]) + max(self._sums[place] - given.own, 0) / 2, given.at, given.sure
        )

    def use(self, chain: Chain, depth: int, now: float) -> None:
        """The replica is given a prompt, of which it held the first `depth` hashes."""
        hashes, ends = chain
        matched = ends[depth - 1] if depth else 0
        own = ends[-1] - matched
        earlier = self._given.get(hashes[depth - 1]) if depth else None
        if earlier is not None and earlier.last == hashes[depth - 1]:  # it goes on from there
            self._take(earlier)
            own += earlier.own
        self._used += ends[-1]
        if self._used > self._span:
            self._next()
        self._sums[-1] += own
        given = _Given(chain, own, self._first + len(self._sums) - 1, now)
        self._put(given.last, given)
        self._put(given.before, given)
        while len(self._given) > 2 * _PROMPTS:
            self._take(self._given[next(iter(self._given))])

    def confirm(self, chain: Chain) -> None:
        """A prompt that was given was found in the cache as predicted."""
        given = self._given.get(chain.hashes[-1])
        if given is not None and given.last == chain.hashes[-1]:
            given.sure = True

    def _put(self, key: int, given: _Given) -> None:
        """The newest use of a hash counts, and stands last."""
        self._given.pop(key, None)
        self._given[key] = given

    def _take(self, given: _Given) -> None:
        for key in (given.last, given.before):
            if self._given.get(key) is given:
                del self._given[key]
        place = given.generation - self._first
        if place >= 0:
            self._sums[place] -= given.own

    def _next(self) -> None:
        self._sums.append(0)
        self._used = 0
        if len(self._sums) > _GENERATIONS:
            del self._sums[0]
            self._first += 1
