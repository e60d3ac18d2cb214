"""Time that is a promise's own, without what the machine's other work adds to it."""

import os
import time
from pathlib import Path


class Span:
    """Seconds since it was made, less those in which these processes were ready to run and had no core.

    The kernel counts the latter (/proc/PID/schedstat, nanoseconds, of the first thread, which does a gateway's work);
    where it does not, nothing is taken off. On a quiet machine it is next to nothing.

    Args:
        pids: those whose work is measured; by default this process alone.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids or (os.getpid(),)
        self._waited = {pid: _waited(pid) for pid in self._pids}
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """What it took so far."""
        waited = sum(max(_waited(pid) - self._waited[pid], 0.0) for pid in self._pids)
        return time.monotonic() - self._began - waited


def _waited(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
