"""A sample of the decisions that stays: at high rates all of them are forgotten within a second or two."""

from collections import deque
from itertools import islice
from typing import Final

from extproc.io.records import Kept, Records

#: Decisions taken into the sample a second, spread evenly over it; all of them where there are no more.
A_SECOND: Final = 20
#: Decisions in the sample: at high rates those of the last ten seconds.
SIZE: Final = 200


class Sample:
    """The last decisions of the sample, each with its number, oldest first.

    Args:
        records: where decisions are kept.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._seen = records.count
        self._kept: deque[tuple[int, Kept]] = deque(maxlen=SIZE)

    def tick(self) -> None:
        """Take some of those that came since; called once a second."""
        fresh = self._records.count - self._seen
        self._seen = self._records.count
        step = max(-(-fresh // A_SECOND), 1)
        self._kept.extend(reversed(list(islice(self._records.newest(fresh), 0, None, step))))

    def newest(self, most: int) -> list[tuple[int, Kept]]:
        """The newest `most`, newest first."""
        return list(islice(reversed(self._kept), most))

    def numbered(self, number: int) -> Kept | None:
        """The record of this number; None when it is not in the sample."""
        return next((kept for its, kept in self._kept if its == number), None)
