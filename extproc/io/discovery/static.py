"""The list in the configuration: always right, never changing while the gateway runs."""

from collections.abc import AsyncGenerator, Iterable

from extproc.core.membership import Endpoint
from extproc.io.discovery.base import Failed, Found


class StaticSource:
    """Yields what it was given, once."""

    name = "static"

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """The list."""
        yield Found(self._endpoints)
