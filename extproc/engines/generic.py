"""Any engine with Prometheus metrics: settings say which series means what.

    running: my_running
    kv_used: my_kv_percent{device="gpu"} / 100
    kv_capacity: my_blocks{kind="max"} * 16

A field's value is a sample name as it stands in the text (counters with `_total`, histograms with `_sum` or
`_count`), perhaps labels that must have a value, perhaps one factor. Of several series the sum is taken; of
`kv_used` the mean; `block_size` and `started` must agree.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from extproc.core.sample import Sample
from extproc.engines.exposition import Reader, Reading, Series, parse_labels
from extproc.engines.following import Last
from extproc.engines.quantities import add, agreed, capacity, share, single, whole_number, without_copies

#: The fields that a setting may give a name to.
FIELDS = (
    *("running", "waiting", "hit_tokens", "query_tokens", "prompt_tokens", "generated_tokens"),
    *("ttft_sum", "ttft_count", "tpot_sum", "tpot_count", "prefill_sum", "prefill_count"),
    *("kv_used", "kv_capacity", "block_size", "max_running", "started"),
)

_SELECTOR = re.compile(
    r"\s*(?P<name>[A-Za-z_:][\w:]*)\s*(?:\{(?P<labels>.*)\})?\s*(?:(?P<sign>[*/])\s*(?P<factor>[0-9.]+))?\s*",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Selector:
    """Which series a quantity is, and what its values are multiplied with."""

    name: str
    labels: Mapping[str, str]
    factor: float

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """Read `name{label="value"} / 100`.

        Raises:
            ValueError: it is written in another way; the message shows the form.
        """
        match = _SELECTOR.fullmatch(text)
        labels = parse_labels(match["labels"].encode() if match["labels"] else None) if match else None
        if match is None or labels is None:
            raise ValueError(f'{text!r} is no metric; write name, name{{label="value"}} or name / 100')
        try:
            factor = float(match["factor"] or 1)
            return cls(match["name"], labels, 1 / factor if match["sign"] == "/" else factor)
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{text!r} has no factor that can be used: {match['factor']}") from None

    def find(self, reading: Reading) -> list[Series]:
        """The series it names, their values multiplied."""
        wanted = self.labels.items()
        series = [one for one in reading.series(self.name) if wanted <= one.labels.items() or _nameless(one)]
        return [Series(one.labels, one.value * self.factor) for one in without_copies(series)]


class Generic:
    """Reads the names it was given.

    Args:
        names: for each field of FIELDS that the engine tells, the selector of its series.

    Raises:
        ValueError: a field is not known, a selector can't be read, or there is none at all.
    """

    name = "generic"
    adapter_calls = None

    def __init__(self, names: Mapping[str, str]) -> None:
        unknown = sorted(names.keys() - set(FIELDS))
        if unknown or not names:
            what = f"{unknown[0]!r} is no field" if unknown else "no field is named"
            raise ValueError(f"{what}; known are {', '.join(sorted(FIELDS))}")
        self._selectors = {field: _selector(field, text) for field, text in names.items()}
        self.wanted = tuple(sorted({selector.name for selector in self._selectors.values()}))
        self._reader = Reader(self.wanted)

    def recognises(self, text: bytes) -> bool:
        """Whether any of the names occurs."""
        return any(True for _ in self._reader.read(text).all())

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        reading = self._reader.read(text, last)
        found = {field: selector.find(reading) for field, selector in self._selectors.items()}

        def series(field: str) -> Sequence[Series]:
            return found.get(field, [])

        def total(field: str) -> float | None:
            return add(one.value for one in series(field))

        return Sample(
            at=at,
            running=total("running"),
            waiting=total("waiting"),
            kv_used=share(_mean(series("kv_used"))),
            kv_capacity=capacity(total("kv_capacity")),
            block_size=agreed(whole_number(one.value) for one in series("block_size")),
            max_running=whole_number(total("max_running")),
            hit_tokens=total("hit_tokens"),
            query_tokens=total("query_tokens"),
            prompt_tokens=total("prompt_tokens"),
            generated_tokens=total("generated_tokens"),
            ttft_sum=total("ttft_sum"),
            ttft_count=total("ttft_count"),
            tpot_sum=total("tpot_sum"),
            tpot_count=total("tpot_count"),
            prefill_sum=total("prefill_sum"),
            prefill_count=total("prefill_count"),
            started=single(series("started")),
        )


def made_of(names: Mapping[str, str]) -> Generic:
    """The engine of these names: the same object for the same names, as its reader takes time to make.

    Raises:
        ValueError: as Generic.
    """
    return _made_of(tuple(sorted(names.items())))


@lru_cache(maxsize=64)
def _made_of(names: tuple[tuple[str, str], ...]) -> Generic:
    return Generic(dict(names))


def _selector(field: str, text: str) -> Selector:
    try:
        return Selector.parse(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _nameless(one: Series) -> bool:
    """Whether the labels can't be read, so that it might be any series of the name."""
    return not one.labels and math.isnan(one.value)


def _mean(series: Sequence[Series]) -> float | None:
    total = add(one.value for one in series)
    return None if total is None else total / len(series)
