"""A workload: its rows in the order of arrival, and the words that name it so that a run can be repeated."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from extproc.errors import KvsteerError
from extproc.sim.jobs import Row


class WorkloadError(KvsteerError):
    """A workload can't be read or made; the message says where and what would do."""


@dataclass(slots=True, frozen=True)
class Workload:
    """`name` and `facts` go into every report; `rows` makes the rows anew for every run.

    `seconds`: how long its arrivals take, about; `pauses`: and the longest session's pauses together.
    """

    name: str
    rows: Callable[[], Iterable[Row]]
    facts: dict[str, str | int | float] = field(default_factory=dict)
    seconds: float = 0.0
    pauses: float = 0.0


def shaped(
    rows: Iterable[Row], speed: float, quantum: float = 0.0, limit: int | None = None
) -> Iterator[Row]:
    """The first `limit` rows, arriving `speed` times as fast, their times rounded down to `quantum` s before that.

    Think times of sessions stay as they are.
    """
    for row in islice(rows, limit):
        at = row.at - row.at % quantum if quantum else row.at
        row.at = at / speed
        yield row
