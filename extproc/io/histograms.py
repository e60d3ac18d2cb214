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
        #: By the label's value: how many values each bucket took, their sum, and who came last into each.
        self._rows: dict[str, _Row] = {} if label else {"": _Row(len(bounds) + 1)}

    def observe(self, value: float, request_id: str = "", label: str = "") -> None:
        """Take one value in, that of a request of this id, if it has one."""
        row = self._rows.get(label)
        if row is None:
            row = self._rows[label] = _Row(len(self._bounds) + 1)
        place = bisect_left(self._bounds, value)
        row.counts[place] += 1
        row.sum += value
        if request_id:
            row.last[place] = request_id, value

    def family(self) -> Metric:
        """As Prometheus' library wants it."""
        names = [str(bound) for bound in self._bounds] + ["+Inf"]
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for label, row in self._rows.items():
            family.add_metric([label] if self._labels else [], list(row.told(names)), row.sum)
        return family


class _Row:
    __slots__ = ("counts", "last", "sum")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.last: list[tuple[str, float] | None] = [None] * size
        self.sum = 0.0

    def told(self, names: list[str]) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        """Each bucket's name, the values up to its end, and an exemplar where there is one."""
        for name, count, last in zip(names, accumulate(self.counts), self.last, strict=True):
            exemplar = _exemplar(last)
            yield (name, count) if exemplar is None else (name, count, exemplar)


def _exemplar(last: tuple[str, float] | None) -> Exemplar | None:
    """For OpenMetrics, which alone shows it. Without a time, as Prometheus takes an old one for the same then."""
    if last is None or len(last[0]) > _LONGEST:
        return None
    return Exemplar({"request_id": last[0]}, last[1])
