"""The unit tests in a process for each core, each with files of its own.

    python -m tests.side_by_side [options of pytest]

With pytest-xdist each worker collects every file, and one more process hears of each test: a fifth of all the time
here, where most tests take a millisecond. What the first process says is shown as it comes, what the others say at
the end. All have one seed, and the same files each time: `--randomly-seed=N` brings back the same order in each.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

UNIT = Path("tests/unit")
#: Processes at most: each takes a second to import what most files need.
MOST = 4
#: What pytest ends with when options such as `-k` leave no test in its files.
NO_TESTS = 5


def dealt(files: Sequence[Path], hands: int) -> list[list[Path]]:
    """The files in so many parts of much the same size, which is about what they take; no part is empty."""
    parts: list[list[Path]] = [[] for _ in range(min(hands, len(files)))]
    sizes = [0] * len(parts)
    for file in sorted(files, key=lambda file: (-file.stat().st_size, file)):
        least = sizes.index(min(sizes))
        parts[least].append(file)
        sizes[least] += file.stat().st_size
    return parts


def status_of(statuses: Sequence[int]) -> int:
    """0 when every process that had tests ended with 0, else the status of the first that did not (5: none had any).

    A signal's number is told as shells do, with 128 added.
    """
    failed = [status if status > 0 else 128 - status for status in statuses if status not in (0, NO_TESTS)]
    return failed[0] if failed else min(statuses)


def main(options: list[str]) -> int:
    """Run them all, and say how they ended; the exit status is that of `status_of`."""
    first, *others = dealt(sorted(UNIT.glob("test_*.py")), min(os.cpu_count() or 1, MOST))
    options = [f"--randomly-seed={random.getrandbits(32)}", *options]  # the last one counts
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        running = [stack.enter_context(_started(first, options, None))]
        for part, output in zip(others, outputs, strict=True):
            running.append(stack.enter_context(_started(part, options, output.fileno())))
        try:
            statuses = [process.wait() for process in running]
        except KeyboardInterrupt:  # the others got it too, and end by themselves
            return 130
        for output in outputs:
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
    return status_of(statuses)


def _started(files: list[Path], options: list[str], output: int | None) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "pytest", *map(str, files), *options]
    return subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT if output is not None else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
