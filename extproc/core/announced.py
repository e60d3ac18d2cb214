"""Prompts that were announced to a replica and have not ended, and what is being computed there."""

from typing import NamedTuple

from extproc.core.belief import Belief
from extproc.core.prompt import Chain
from extproc.core.reuse import Unnamed

#: An exchange of this gateway, or start and exchange of another one.
Key = int | tuple[int, int]

#: What a gateway does: it judges and acts at once; it judges for all and tells; another one judges.
ALONE, JUDGE, WATCHER = "alone", "judge", "watcher"


class Ruling(NamedTuple):
    """What was concluded of one replica.

    `step` is of the capacity believed (core/capacity.py), `scale` what a predicted token counts for, 0..1. `emptied`
    takes away all entries but those of the prompts in `kept`.
    """

    step: int
    scale: float
    emptied: bool
    kept: list[Chain]


class Announced:
    """A prompt that was announced and has not ended."""

    __slots__ = ("at", "chain", "depth", "fresh", "held", "ratio", "slot", "uses")

    def __init__(
        self, slot: "Cache", chain: Chain, held: int, depth: int, uses: list[Unnamed], ratio: float, at: float
    ) -> None:
        self.slot = slot
        self.chain = chain
        self.ratio = ratio
        self.at = at
        self.held = held  # leading hashes that the index says are held
        self.depth = depth  # those that lean on no prompt still being computed
        self.uses = uses  # last uses of what is within them
        self.fresh: int | None = None  # the first hash it brings, while it is being computed

    def end(self, depth: int) -> int:
        """Bytes of the first `depth` hashes."""
        return self.chain.ends[depth - 1] if depth else 0


class Cache:
    """One incarnation, and what is being computed there."""

    __slots__ = ("alone", "arriving", "belief", "number", "told")

    def __init__(self, number: int, belief: Belief) -> None:
        self.number = number
        self.told: tuple[int, float] | None = None  # step and scale that all gateways go by
        #: Prompts sent since its entries went while this gateway was alone, which others are still to hear.
        self.alone: list[Chain] | None = None
        self.belief = belief
        self.arriving: dict[
            int, int
        ] = {}  # first hash that a prompt being computed brings -> how many bring it

    @property
    def state(self) -> tuple[int, float]:
        """Step and scale that hold, concluded or not."""
        return self.told or (self.belief.capacity.step, self.belief.scale)

    def sends(self, chain: Chain, held: int, ratio: float, at: float) -> Announced:
        """A prompt is given to it, of which the index says that it held so many hashes, and is being computed."""
        (hashes, _), arriving = chain, self.arriving
        depth = held
        if held and arriving and not arriving.keys().isdisjoint(hashes[:held]):
            depth = next(place for place, key in enumerate(hashes) if key in arriving)
        prompt = Announced(self, chain, held, depth, self.belief.use(chain, held, at, depth), ratio, at)
        if held < len(hashes):
            prompt.fresh = held
            first = hashes[held]
            arriving[first] = arriving.get(first, 0) + 1
        return prompt

    def came(self, prompt: Announced) -> None:
        """It is computed, or will never be."""
        if prompt.fresh is not None:
            arriving, (hashes, _) = self.arriving, prompt.chain
            first = hashes[prompt.fresh]
            left = arriving[first] - 1
            if left:
                arriving[first] = left
            else:
                del arriving[first]
            prompt.fresh = None
