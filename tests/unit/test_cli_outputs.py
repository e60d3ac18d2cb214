"""What a command says when its output can't be written."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli import simulate, tune

KVSTEER = [sys.executable, "-m", "extproc"]
SMALL = ["--generate", "chat:rate=5,requests=40", "--seeds", "0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", *SMALL, "--policies", "random"],
        ["simulate", *SMALL, "--policies", "random", "--json", "-"],
        ["--help"],
    ],
)
def test_a_full_output_is_told_in_a_line_with_status_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*KVSTEER, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=240
        )
    assert done.returncode == 2, done.stderr
    assert "can't write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_page_on_standard_output_is_refused_before_the_run() -> None:
    done = CliRunner().invoke(simulate.command, [*SMALL, "--html", "-"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "name one" in done.stderr


def test_tune_says_when_nothing_was_measured(tmp_path: Path) -> None:
    trace = tmp_path / "one.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n')
    done = CliRunner().invoke(tune.command, [str(trace), "--seeds", "0", "--try", "gain=2:3"])
    assert "Nothing was measured" in done.stdout, done.output
