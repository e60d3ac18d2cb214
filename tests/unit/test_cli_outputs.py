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
        ["envoy-config", "-c", "deploy/compose/kvsteer.yaml"],
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


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_was_closed_is_as_dev_null(closed: str) -> None:
    line = f"{sys.executable} -m extproc --version {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("kvsteer, version" in done.stdout) == (closed in ("<&-", "2>&-"))


@pytest.mark.parametrize("words", ["envoy-config -c deploy/compose/kvsteer.yaml", "nosuch"])
def test_a_command_ends_as_ever_when_nothing_is_open(words: str) -> None:
    line = f"{sys.executable} -m extproc {words} <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", line], timeout=240)
    assert done.returncode == (2 if words == "nosuch" else 0)


def test_a_reader_that_left_envoys_configuration_ends_it_with_141_and_without_a_word() -> None:
    words = f"{sys.executable} -m extproc envoy-config -c deploy/compose/kvsteer.yaml"
    line = f"{words} | exec true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("141\n", "")
