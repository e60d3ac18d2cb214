"""From series to quantities: sums, means and whole numbers that are unknown as soon as a part of them is.

A replica with data-parallel ranks reports every quantity once for each rank. Adding the ranks that happen to
be readable would make a busy replica look idle, so a quantity that lacks one of the ranks seen anywhere in
the body is unknown.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from extproc.core.sample import MOST_RANKS
from extproc.engines.exposition import Reading, Series

#: How far above 1 rounding may put a share before it is no share.
_SHARE_SLACK = 1e-3

#: Largest KV cache that is believed, in tokens. A token takes some KiB, so 10^12 would be petabytes; and it keeps
#: products of two counts within 64 bits, which JSON writers need.
_MOST_TOKENS = 10**12


def plus(*parts: float | None) -> float | None:
    """The sum of parts; None where one is unknown."""
    return add([part for part in parts if part is not None]) if None not in parts else None


def add(values: Iterable[float]) -> float | None:
    """The sum; None for no values, where one of them is NaN, and beyond what a float holds."""
    every = list(values)
    try:
        total = math.fsum(every) if every else math.nan
    except OverflowError:
        return None
    return total if math.isfinite(total) else None


def single(series: Sequence[Series]) -> float | None:
    """The value of the only series there is; None for none, for several, and for one that can't be read."""
    return add(one.value for one in series) if len(series) == 1 else None


def share(value: float | None) -> float | None:
    """A value 0..1, cut to 1 for rounding errors; anything above is no share and None."""
    if value is None or value > 1 + _SHARE_SLACK:
        return None
    return min(value, 1.0)


def quotient(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where either is unknown or the whole is 0."""
    return part / whole if part is not None and whole else None


def whole_number(value: float | str | None) -> int | None:
    """A count above 0, given as a number or a label's text; None for everything else ("None", "0", NaN)."""
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return int(number) if 1 <= number < 2**53 else None


def capacity(count: float | None, size: float | None = 1) -> int | None:
    """Tokens that fit: `count` of `size` tokens each; None where one is unknown, and outside 1..10^12."""
    tokens = count * size if count is not None and size is not None else math.nan
    return int(tokens) if 1 <= tokens <= _MOST_TOKENS else None


def agreed(values: Iterable[int | None]) -> int | None:
    """The one value that all which are known agree on; None where they differ or none is known."""
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


def without_copies(series: Sequence[Series]) -> list[Series]:
    """One series of each identity, whatever its `pid`; of several the largest value.

    Processes that share one export (PROMETHEUS_MULTIPROC_DIR) each add a line for a gauge, and all but the
    one that schedules say 0.0 (vllm#28792), so the largest is the real one. A copy that can't be read hides
    which.
    """
    if len(series) < 2:
        return list(series)
    kept: dict[frozenset[tuple[str, str]], Series] = {}
    for one in series:
        identity = frozenset(item for item in one.labels.items() if item[0] != "pid")
        other = kept.get(identity)
        if other is None or one.value > other.value or math.isnan(one.value):
            kept[identity] = one
    return list(kept.values())


def every(_series: Series) -> bool:
    """Takes every series."""
    return True


def having(label: str, *values: str) -> Callable[[Series], bool]:
    """Takes the series whose label has one of the values."""
    return lambda one: one.labels.get(label) in values


_NONE_ALONE: Mapping[str, float] = {}


class Ranks:
    """The quantities of one body, over all data-parallel ranks.

    `label` names the rank; empty for engines that have none. `ranks` are its values; those seen anywhere in the
    body if left out. `pick` thins out the series of a name before they are combined. `where` takes only some of
    the series of a name.
    """

    __slots__ = ("_alone", "_label", "_pick", "_ranks", "_reading")

    def __init__(
        self,
        reading: Reading,
        label: str = "",
        pick: Callable[[Sequence[Series]], list[Series]] = without_copies,
        *,
        ranks: Set[str] | None = None,
    ) -> None:
        self._reading = reading
        self._label = label
        self._pick = pick
        self._ranks = (reading.label_values(label) if label else set()) if ranks is None else ranks
        #: Name -> its value, where the one series of a name is all there is to it: nearly every name of every engine.
        self._alone = reading.alone if len(self._ranks) < 2 and pick is without_copies else _NONE_ALONE

    def total(self, *names: str, where: Callable[[Series], bool] = every) -> float | None:
        """The sum over ranks and models of the first name that is known."""
        alone = self._alone if where is every else _NONE_ALONE
        for name in names:
            if name in alone:
                return alone[name]
            value = self._sum(name, where)
            if value is not None:
                return value
        return None

    def each(self, *names: str) -> tuple[float, ...] | None:
        """What each rank has, these names added up, in the order of the ranks.

        None where there are not several, they are not numbered from 0, or one of them does not tell one of the names.
        """
        order = [str(number) for number in range(len(self._ranks))]
        if not 2 <= len(order) <= MOST_RANKS or self._ranks != set(order):
            return None
        told = {name: self._pick(self._reading.series(name)) for name in names}
        if not all(series and self.covers(series) for series in told.values()):
            return None
        label, every_one = self._label, [one for series in told.values() for one in series]
        sums = [add(one.value for one in every_one if one.labels.get(label) == rank) for rank in order]
        known = tuple(value for value in sums if value is not None)
        return known if len(known) == len(order) else None

    def mean(self, *names: str, where: Callable[[Series], bool] = every) -> float | None:
        """The mean over ranks and models of the first name that is known."""
        alone = self._alone if where is every else _NONE_ALONE
        for name in names:
            if name in alone:
                return alone[name]
            values = self._values(name, where)
            total = add(values)
            if total is not None:
                return total / len(values)
        return None

    def optional(self, name: str, where: Callable[[Series], bool] = every) -> float | None:
        """A part that not every version has: 0 where no series tells it, None where one does and can't be read."""
        return self.total(name, where=where) if self._found(name, where) else 0.0

    def covers(self, series: Sequence[Series]) -> bool:
        """Whether every rank seen in the body has a series here, or ranks are no matter of these."""
        if len(self._ranks) < 2:
            return True
        seen = {one.labels.get(self._label) for one in series}
        return seen == {None} or self._ranks <= seen

    def _sum(self, name: str, where: Callable[[Series], bool]) -> float | None:
        return add(self._values(name, where)) if name in self._reading else None

    def _values(self, name: str, where: Callable[[Series], bool]) -> list[float]:
        series = self._pick(self._found(name, where))
        return [one.value for one in series] if self.covers(series) else []

    def _found(self, name: str, where: Callable[[Series], bool]) -> Sequence[Series]:
        """The series asked for, and those whose labels can't be read: they might be it."""
        found = self._reading.series(name)
        if where is every:
            return found
        return [one for one in found if where(one) or (not one.labels and math.isnan(one.value))]
