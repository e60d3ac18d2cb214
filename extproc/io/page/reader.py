"""One open page, and how it takes what it is told."""

import asyncio
from collections.abc import Mapping


class Reader:
    """The newest messages that it has not taken, one of a kind.

    Args:
        transport: of its connection; None where that is gone already.
        came: when it came, seconds.
    """

    def __init__(self, transport: asyncio.Transport | None = None, came: float = 0.0) -> None:
        self.came = came
        self._transport = transport
        self._messages: dict[str, bytes] = {}
        self._last: bytes | None = None
        self._ended = False
        self._fresh = asyncio.Event()
        self._sent = 0
        self._most = 0
        self._took_at = came

    def give(self, messages: Mapping[str, bytes]) -> None:
        """Here are newer ones."""
        self._messages.update(messages)
        self._fresh.set()

    def end(self, last: bytes | None = None) -> None:
        """There will be no more, but for this one."""
        self._ended, self._last = True, last
        self._fresh.set()

    async def next(self) -> bytes | None:
        """Wait for one; None is the end."""
        while not self._messages and not self._ended:
            self._fresh.clear()
            await self._fresh.wait()
        if self._ended:
            last, self._last = self._last, None
            return last
        return self._messages.pop(next(iter(self._messages)))

    def sent(self, size: int) -> None:
        """So many bytes go to it now."""
        self._sent += size

    def waiting(self) -> int:
        """Bytes of what was sent that its system has not taken, beside those that ours keeps."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def stalled(self, now: float) -> float:
        """Seconds for which it has taken nothing of what waits; 0 while nothing waits. To be asked now and then."""
        waits = self.waiting()
        taken = self._sent - waits
        if not waits or taken > self._most:
            self._most, self._took_at = taken, now
        return now - self._took_at

    def abort(self) -> None:
        """End its connection, with all that waits."""
        if self._transport is not None:
            self._transport.abort()
