"""What happened to prompts, kept in its order until some of it is compared together.

To compare a prompt takes three times as long when other code ran before it, as a request's does: caches of processors
hold little Python. So what happens is noted, and made up for when `TOGETHER` prompts have ended, at each tick
(core/pool.py), and whenever anybody is to see or to change what is known of caches. Nothing is compared in another
order than it happened in, and nothing twice.

What was found in the index is noted with the prompt, so waiting changes no prediction. But where a cache is found
emptied, prompts that were sent there later and are still to be told of lost their entries with the others: they are
placed again, as those on their way are. With several gateways an end waits for no other: who judges for all is to
hear of it in time.
"""

from typing import Any, Final

from extproc.core.announced import ALONE
from extproc.core.index import PrefixIndex
from extproc.core.prompt import Chain
from extproc.core.truth import Truth

#: Ends that are compared together, some tens of microseconds for each, and most notes that wait for that many ends.
TOGETHER: Final = 16
_MOST: Final = 512

_SENT, _COMPUTED, _ENDED = range(3)


class Comparisons:
    """The notes of one pool, and the truth of its index beside them."""

    __slots__ = ("_ends", "_index", "_notes", "_truth")

    def __init__(self, truth: Truth, index: PrefixIndex) -> None:
        self._truth = truth
        self._index = index
        self._notes: list[tuple[int, Any]] = []
        self._ends = 0

    def __len__(self) -> int:
        """Notes that wait."""
        return len(self._notes)

    @property
    def truth(self) -> Truth:
        """Up to date, to be seen or changed."""
        if self._notes:
            self.catch_up()
        return self._truth

    def sent(self, key: int, slot: int, chain: Chain, ratio: float, now: float, held: int | None) -> None:
        """As `Truth.expect`. `held` None, which asks the index, can't wait."""
        if held is None:
            self.truth.expect(key, slot, chain, ratio, now)
            return
        self._notes.append((_SENT, (key, slot, chain, ratio, now, held)))  # as `_note` does
        if len(self._notes) >= _MOST:
            self.catch_up()

    def computed(self, key: int) -> None:
        """As `Truth.computed`."""
        self._note(_COMPUTED, key)

    def ended(self, key: int, tokens: float | None, cached: float | None, now: float) -> None:
        """As `Truth.ended`."""
        self._notes.append((_ENDED, (key, tokens, cached, now)))
        self._ends += 1
        if self._ends >= TOGETHER or self._truth.role() != ALONE:
            self.catch_up()

    def void(self, key: int, *, refused: bool = False) -> None:
        """As `Truth.void`, at once: the index is not to believe longer than must be what never was."""
        self.truth.void(key, refused=refused)

    def catch_up(self) -> None:
        """Compare all that waits."""
        notes, self._notes, self._ends = self._notes, [], 0
        truth = self._truth
        truth.cleared.clear()
        for kind, told in notes:
            if kind == _ENDED:
                truth.ended(*told)
            elif kind == _COMPUTED:
                truth.computed(told)
            elif truth.cleared and told[1] in truth.cleared:
                self._again(*told[:5])
            else:
                truth.expect(*told)

    def _note(self, kind: int, told: Any) -> None:
        self._notes.append((kind, told))
        if len(self._notes) >= _MOST:
            self.catch_up()

    def _again(self, key: int, slot: int, chain: Chain, ratio: float, at: float) -> None:
        """Its cache was found emptied after it was sent there, and before this was told."""
        self._truth.expect(key, slot, chain, ratio, at)
        self._index.place(slot, chain, at)
