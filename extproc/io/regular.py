"""Small files that are named in the settings: certificates, keys, tokens, passwords.

Each is read again while requests are served, and what lies at its path then may be anything: opening a FIFO waits for
whoever writes into it, which may be for ever, and a device may never end.
"""

import errno
import os
import stat
from typing import Final

#: Longest file that is read, in bytes; far above any chain of certificates.
LARGEST: Final = 4 * 2**20


def read_regular(path: str, most: int = LARGEST) -> bytes:
    """The content of a regular file, its first `most` bytes; never waits for a writer.

    Raises:
        OSError: it can't be read, or is something else than a regular file.
    """
    _check(path, os.stat(path))  # before it is opened: with some devices that alone does something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        _check(path, os.fstat(descriptor))  # what was there a moment ago may have been replaced
        return file.read(most)


def _check(path: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", path)
