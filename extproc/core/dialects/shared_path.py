"""One path that two engines use for different APIs: the body's keys tell which it is."""

from collections.abc import Mapping

from extproc.core.dialects.base import Body, Dialect, Limits
from extproc.core.prompt import Prompt


class SharedPath:
    """Reads with the dialect whose key is in the body, else with the one left."""

    def __init__(self, path: str, by_key: Mapping[str, Dialect], otherwise: Dialect) -> None:
        self.NAME = otherwise.NAME
        self.PATHS: tuple[str, ...] = (path,)
        self._by_key = tuple(by_key.items())
        self._otherwise = otherwise

    def read(self, body: Body, limits: Limits) -> Prompt:
        """The prompt as the right dialect reads it; `Prompt.dialect` names that one."""
        for key, dialect in self._by_key:
            if key in body:
                return dialect.read(body, limits)
        return self._otherwise.read(body, limits)
