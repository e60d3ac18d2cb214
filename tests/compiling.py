"""Workers share the compiling of the tests: what one has compiled, the others find."""

import contextlib
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def import_turned(config: pytest.Config) -> None:
    """Import all files that this worker of pytest-xdist is to collect, from a place of its own in their row.

    Each worker collects all files. In a fresh clone they go through the same row at the same time, and each compiles
    every file, which rewriting the asserts makes dear: two thirds of what collecting tests/unit takes. Begun apart,
    each soon finds what the others have written. Without workers this does nothing.
    """
    given = getattr(config, "workerinput", None)
    if given is None:
        return
    files = sorted(file for path in config.args for file in Path(path).glob("test_*.py"))
    first = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    for file in files[first:] + files[:first]:
        # What is wrong with a file is told when it is collected, after this.
        with contextlib.suppress(Exception, pytest.skip.Exception, pytest.fail.Exception):
            importlib.import_module(".".join(file.resolve().relative_to(ROOT).with_suffix("").parts))
