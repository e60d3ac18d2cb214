"""Histograms of the hot path: plain numbers until a scrape asks, and the request that came last into each bucket."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

#: Longest request id that is shown: OpenMetrics 1.0 allows an exemplar's labels 128 characters, names included.
_LONGEST: Final = 128 - len("request_id")


class Buckets:
    """A histogram of one label at most.

    Args:
        name: of the metric.
        text: its help.
        bounds: upper ends of its buckets, rising; the last one, which takes the rest, is added.
        label: name of its label; "" for none. Values come from the configuration or a closed set.
    """

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], label: str = "") -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._labels = [label] if label else []
        #: By the label's value.
        self._rows: dict[str, Row] = {} if label else {"": Row(bounds)}

    def row(self, label: str = "") -> "Row":
        """What takes values in, of this label."""
        row = self._rows.get(label)
        if row is None:
            row = self._rows[label] = Row(self._bounds)
        return row

    def observe(self, value: float, request_id: str = "", label: str = "") -> None:
        """Take one value in, that of a request of this id, if it has one."""
        self.row(label).observe(value, request_id)

    def family(self) -> Metric:
        """As Prometheus' library wants it."""
        names = [str(bound) for bound in self._bounds] + ["+Inf"]
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for label, row in self._rows.items():
            family.add_metric([label] if self._labels else [], list(row.told(names)), row.sum)
        return family


class Row:
    """Of one label: how many values each bucket took, their sum, and who came last into each."""

    __slots__ = ("_bounds", "_counts", "_last", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._last: list[tuple[str, float] | None] = [None] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, request_id: str = "") -> None:
        """As `Buckets.observe`."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self.sum += value
        if request_id:
            self._last[place] = request_id, value

    def told(self, names: list[str]) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        """Each bucket's name, the values up to its end, and an exemplar where there is one."""
        for name, count, last in zip(names, accumulate(self._counts), self._last, strict=True):
            exemplar = _exemplar(last)
            yield (name, count) if exemplar is None else (name, count, exemplar)


def _exemplar(last: tuple[str, float] | None) -> Exemplar | None:
    """For OpenMetrics, which alone shows it. Without a time, as Prometheus takes an old one for the same then."""
    if last is None or len(last[0]) > _LONGEST:
        return None
    return Exemplar({"request_id": last[0]}, last[1])
