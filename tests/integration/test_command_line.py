"""The command line as a process: Ctrl-C, readers that leave, a real shell's completion, colours."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.patience import patient

PROGRAM = [sys.executable, "-c", "from extproc.cli import main; main(prog_name='kvsteer')"]
SIMULATION = ["simulate", "--generate", "chat:rate=4,requests=20", "--policies", "random,round_robin"]


def kvsteer(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run to the end, with nothing that is a terminal."""
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=patient(60), env=os.environ | env
    )


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Somebody who listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(patient(60))
        yield listening


def url_of(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def test_ctrl_c_ends_a_command_that_waits_with_130_and_a_line(silent: socket.socket) -> None:
    child = subprocess.Popen(
        [*PROGRAM, "replicas", "--admin", url_of(silent)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    accepted, _ = silent.accept()  # it is on the line now, and waits for five seconds
    with accepted:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=patient(60))
    assert (child.returncode, out) == (130, b"")
    assert err.split() == b"kvsteer: interrupted".split()


@pytest.mark.parametrize(
    "words", [["--help"], SIMULATION, [*SIMULATION, "--json", "-"], ["policy", "set", "--help"]]
)
def test_a_reader_that_left_ends_a_command_with_141_and_without_a_word(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, timeout=patient(60))
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_in_a_pipeline_the_reader_gets_its_line_and_nobody_complains() -> None:
    script = f"set -o pipefail; {sys.executable} -m extproc {' '.join(SIMULATION)} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=patient(60))
    assert done.stdout.startswith("chat at speed 1")
    assert (done.returncode in (0, 141), done.stderr) == (True, ""), (
        "it may have written all before head left"
    )


# -- completion --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH with a `kvsteer` of this tree first."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "kvsteer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{PROGRAM[2]}" "$@"\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


#: What bash does on <TAB>: it calls the function that `complete` registered for the word, which fills COMPREPLY.
TAB = """
eval "$(_KVSTEER_COMPLETE=bash_source kvsteer)"
line=$(complete -p kvsteer)
function=${line##*-F }
function=${function%% *}
COMP_WORDS=(kvsteer "$@")
COMP_CWORD=$#
"$function" kvsteer "${!#}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["dr"], ["drain"]),
        (["policy", "ro"], ["rollback"]),
        (["policy", "set", "charged"], ["charged_cost"]),
        (["drain", "--dead"], ["--deadline"]),
    ],
)
def test_bash_completes(path: str, words: list[str], found: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", TAB, "bash", *words],
        capture_output=True,
        text=True,
        timeout=patient(60),
        env=os.environ | {"PATH": path},
    )
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_source(path: str, shell: str, tmp_path: Path) -> None:
    env = os.environ | {"PATH": path, "_KVSTEER_COMPLETE": f"{shell}_source"}
    done = subprocess.run(["kvsteer"], capture_output=True, text=True, timeout=patient(60), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_KVSTEER_COMPLETE={shell}_complete" in done.stdout
    if program := shutil.which(shell):
        (tmp_path / "source").write_text(done.stdout)
        checked = subprocess.run(
            [program, "-n", tmp_path / "source"], capture_output=True, timeout=patient(60)
        )
        assert (checked.returncode, checked.stderr) == (0, b"")


# -- terminals ---------------------------------------------------------------------------------------------


def on_a_terminal(*words: str, **env: str) -> bytes:
    """What a command writes where standard output and error are one terminal."""
    ours, theirs = pty.openpty()
    try:
        child = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm-256color"} | env,
        )
    finally:
        os.close(theirs)
    parts = []
    with suppress(OSError):  # EIO: the other side was closed
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    assert child.wait(patient(60)) == 0
    return b"".join(parts)


#: Escape sequences that set a colour: SGR 30-38, 40-48, 90-97, alone or after others.
COLOUR = rb"\x1b\[(?:\d+;)*(?:[34][0-8]|9[0-7])(?:;\d+)*m"


def test_progress_and_results_do_not_mix_and_pipes_get_neither_bars_nor_colours() -> None:
    done = kvsteer(*SIMULATION, "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
    assert "\x1b" not in kvsteer(*SIMULATION).stdout


def test_no_color_takes_colours_away_on_a_terminal() -> None:
    assert re.search(COLOUR, on_a_terminal(*SIMULATION, NO_COLOR="1")) is None
