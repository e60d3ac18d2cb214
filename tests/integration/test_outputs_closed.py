"""What a command says and how it ends when its output can't be written, in processes of their own."""

import subprocess
import sys

import pytest

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
