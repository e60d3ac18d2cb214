"""An engine read together with one more metric, which says what a second of a replica costs (core/bias.py)."""

from dataclasses import replace

from extproc.core.sample import Sample
from extproc.engines import Engine
from extproc.engines.exposition import Reader
from extproc.engines.following import Last
from extproc.engines.generic import Selector
from extproc.engines.quantities import add


class Factored:
    """Reads what `engine` reads, and the metric.

    Args:
        engine: who reads the rest.
        metric: `name` or `name{label="value"}`, perhaps with `* number` or `/ number`; of several series the mean.

    Raises:
        ValueError: the metric is written in another way.
    """

    def __init__(self, engine: Engine, metric: str) -> None:
        self._engine = engine
        self._selector = Selector.parse(metric)
        self._reader = Reader((self._selector.name,))
        self.name = engine.name
        self.adapter_calls = engine.adapter_calls
        self.wanted = tuple(sorted({*engine.wanted, self._selector.name}))

    def recognises(self, text: bytes) -> bool:
        """Whether a body is the engine's."""
        return self._engine.recognises(text)

    def parse(self, text: bytes, at: float, last: Last | None = None) -> Sample:
        """The sample in a body read at `at` (seconds, monotonic). Never raises."""
        series = self._selector.find(self._reader.read(text, last))
        total = add(one.value for one in series)
        return replace(
            self._engine.parse(text, at, last), factor=None if total is None else total / len(series)
        )
