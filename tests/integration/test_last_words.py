"""What a failed test tells of the processes that it used."""

import sys
from pathlib import Path

from extproc.demo.processes import Child
from tests.integration.last_words import LastWords
from tests.integration.patience import until

_SAYS = "import time; print('hello', flush=True); time.sleep(600)"


def test_those_that_run_and_those_that_ended_since_the_test_began_are_told(tmp_path: Path) -> None:
    words = LastWords()
    with words.kept():
        runs, ended, earlier = (
            Child(name, [sys.executable, "-c", _SAYS], tmp_path) for name in ("runs", "ended", "earlier")
        )
        try:
            for child in (runs, ended, earlier):
                until(lambda child=child: child.said() == "hello", 10, f"{child.name} speaks")
            earlier.kill()
            words.begin()
            ended.kill()
            told = words.told()
        finally:
            runs.kill()
    assert told[f"runs of {tmp_path.name} (runs)"] == "hello"
    assert told[f"ended of {tmp_path.name} (ended)"] == "hello"
    assert "earlier" not in str(told.keys())
    assert "load average" in told["the machine"]
