"""Endpoints in a file, followed while it changes: edited, renamed into place, or swapped as ConfigMaps are.

Five times a second the file's time, size and inode are looked at, through symbolic links; a look costs 30 us and
works on every file system, where change notices do not (NFS, some overlay mounts, bind-mounted single files).
A changed file is read once it has been left alone for one look, so that a file being rewritten is not read in the
middle. What can't be read is told, and the last set stays.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

from extproc.core.membership import LIMIT
from extproc.io.discovery.base import Failed, Found, SourceFailed
from extproc.io.discovery.file_forms import read_endpoints

#: Seconds between two looks.
_POLL = 0.2
#: Longest wait for a file system to answer, in seconds.
_DEADLINE = 5.0
#: Largest file, in bytes: 10,000 endpoints in EDS form are 2 MiB.
_LARGEST = 16 * 2**20

#: What tells one state of a file from another: modification time in ns, size, device, inode.
_Signature = tuple[int, int, int, int]


class FileSource:
    """Reads a file whenever it changes.

    Args:
        path: of the file; it need not be there yet.
        cluster: which cluster of an EDS file with several.
        every: seconds between two looks.
        limit: most endpoints read.
    """

    name = "file"

    def __init__(
        self, path: str | Path, *, cluster: str = "", every: float = _POLL, limit: int = LIMIT
    ) -> None:
        self._path = str(path)
        self._cluster = cluster
        self._every = every
        self._limit = limit
        self._seen: _Signature | None = None
        self._read: _Signature | None = None
        self._said: Found | Failed | None = None

    async def watch(self) -> AsyncGenerator[Found | Failed, None]:
        """What the file says, at every look. Looks are made one at a time, however long the disk hangs."""
        look: asyncio.Future[Found | Failed | None] | None = None
        try:
            while True:
                look = look or asyncio.ensure_future(asyncio.to_thread(self._look))
                done, _ = await asyncio.wait({look}, timeout=_DEADLINE)
                said = look.result() if done else Failed("timeout", f"{self._path}: the disk does not answer")
                look = None if done else look
                if said is not None:
                    yield said
                await asyncio.sleep(self._every)
        finally:
            if look is not None:
                look.cancel()

    def _look(self) -> Found | Failed | None:
        """What to say now; None while the file is being changed."""
        try:
            signature = self._stat()
            settled, self._seen = signature == self._seen, signature
            if signature != self._read:
                if not settled and self._said is not None:
                    return None
                self._take(signature, settled)
        except SourceFailed as error:
            self._said = error.said
        except OSError as error:
            self._read = self._seen = None
            reason = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
            self._said = Failed(reason, f"{self._path}: {error.strerror}; write the file, or mend the path")
        return self._said

    def _stat(self) -> _Signature:
        found = os.stat(self._path)
        if not stat.S_ISREG(found.st_mode):  # a FIFO would keep its reader waiting for ever
            self._read = self._seen = None
            raise SourceFailed(
                "unreadable", f"{self._path}: is no regular file; write the endpoints into one"
            )
        return _signature(found)

    def _take(self, signature: _Signature, settled: bool) -> None:
        """Read the file in the state that was seen; if it is another by now, the next look sees to it.

        What is read before it has settled, the very first time, is read again when it has: two writes within
        one tick of the file system's clock have one signature.
        """
        with open(self._path, "rb", opener=_no_waiting) as file:
            text = file.read(_LARGEST + 1)
            if _signature(os.fstat(file.fileno())) != signature:
                self._seen = None
                return
        self._read = signature if settled else None
        if len(text) > _LARGEST:
            raise SourceFailed("too_large", f"{self._path}: is larger than {_LARGEST} bytes")
        try:
            self._said = Found(read_endpoints(text, self._cluster, self._limit))
        except SourceFailed as error:
            raise SourceFailed(error.reason, f"{self._path}: {error.detail}") from None


def _no_waiting(path: str, flags: int) -> int:
    """Open it even if it has become a FIFO since it was looked at; what comes then has another signature."""
    return os.open(path, flags | os.O_NONBLOCK)


def _signature(found: os.stat_result) -> _Signature:
    return found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino
