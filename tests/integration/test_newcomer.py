"""What README.md and docs/quickstart.md tell a newcomer to type is typed here, line by line, in a folder of its own.

Only addresses are changed: ports that are free, and two emulated engines in the place of 10.0.0.1 and 10.0.0.2.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from extproc.demo.processes import Child, answers, free_port, program
from tests.integration.patience import patient, until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("curl") is None, reason="there is no bash or no curl"
)


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Code blocks below a heading of the second level."""
    section = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH as after installation: kvsteer and envoy are commands."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "kvsteer").write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from extproc.cli import main; main(prog_name=\'kvsteer\')" "$@"\n'
    )
    (folder / "kvsteer").chmod(0o755)
    envoy = program("envoy")
    assert envoy is not None
    (folder / "envoy").symlink_to(envoy)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of two emulated engines."""
    words = ["engine", "--count", "2", "--prefill-speed", "1000000"]
    child = Child("engines", [sys.executable, "-m", "extproc", *words], tmp_path_factory.mktemp("engines"))
    try:
        child.wait_until(lambda: child.said(50).count('{"listening"') == 2, patient(20))
        yield re.findall(r'{"listening": "([^"]+)"', child.said(50))
    finally:
        child.stop()


class Shell:
    """Types lines into a folder, as a newcomer does; what is left running ends with it."""

    def __init__(self, folder: Path, path: str) -> None:
        self._folder, self._env = folder, os.environ | {"PATH": path}
        self._running: list[Child] = []

    def type(self, line: str) -> str:
        """Run a line to its end; what it printed. Fails where it does."""
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=patient(60),
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, line: str) -> str:
        """Type a line, in the background where it says so."""
        if not line.endswith("&"):
            return self.type(line)
        self.leave(line.removesuffix("&"))
        return ""

    def leave(self, line: str) -> None:
        """Start a line that runs on."""
        name, *words = shlex.split(line)
        found = shutil.which(name, path=self._env["PATH"])
        assert found is not None
        words = [str(self._folder / word) if (self._folder / word).is_file() else word for word in words]
        if (
            name == "envoy"
        ):  # a machine has room for one Envoy with its default base id, and others test here too
            words.append("--use-dynamic-base-id")
        self._running.append(Child(Path(name).name, [found, *words], self._folder))

    def close(self) -> None:
        """End what runs."""
        for child in reversed(self._running):
            child.stop()


def lines_of(block: str) -> list[str]:
    """What is typed, without remarks; lines that go on are joined."""
    joined = block.replace("\\\n", "").splitlines()
    return [" ".join(re.split(r"\s{2,}#", line)[0].split()) for line in joined]


def test_the_readme_and_the_quickstart_tell_the_same_way() -> None:
    (readme,) = blocks("README.md", "Use it with an Envoy of your own", "sh")
    (quickstart,) = blocks("docs/quickstart.md", "3. Your own engines", "sh")
    assert lines_of(readme) == lines_of(quickstart)


def test_the_way_to_an_envoy_of_ones_own_works_as_it_is_written(
    path: str, engines: list[str], tmp_path: Path
) -> None:
    grpc, listen, envoy_admin, admin = free_port(), free_port(), free_port(), free_port()
    places = {
        "127.0.0.1:50051": f"127.0.0.1:{grpc}",
        "0.0.0.0:8080": f"127.0.0.1:{listen}",
        "127.0.0.1:8080": f"127.0.0.1:{listen}",
        "127.0.0.1:9095": f"127.0.0.1:{admin}",
        "10.0.0.1:8000": engines[0],
        "10.0.0.2:8000": engines[1],
        "MODEL": "demo-model",
    }

    def placed(text: str) -> str:
        for shown, here in places.items():
            text = text.replace(shown, here)
        return text

    heading = "Use it with an Envoy of your own"
    (settings,), (lines,) = blocks("README.md", heading, "yaml"), blocks("README.md", heading, "sh")
    settings = placed(settings).replace("envoy: {", f'envoy: {{admin: "127.0.0.1:{envoy_admin}", ')
    (tmp_path / "kvsteer.yaml").write_text(f'{settings}admin: {{address: "127.0.0.1:{admin}"}}\n')
    shell = Shell(tmp_path, path)
    typed = lines_of(placed(lines))
    request, decisions = typed[-2:]
    try:
        said = [shell.follow(line) for line in typed[:-2]]
        until(lambda: answers(listen), 20, "Envoy listens")

        def is_steered() -> bool:  # Envoy asks a gateway once it has found it well
            assert "x-kvsteer-replica: " in shell.type(request)
            last = json.loads(shell.type(decisions))["decisions"]
            return bool(last) and last[0]["outcome"] == "steered"

        until(is_steered, 20, "requests are steered, and it can be seen")
        assert "good; pools: default (2 replicas)" in said[0]
    finally:
        shell.close()


def test_a_demo_that_is_kept_prints_lines_that_work_and_ends_with_ctrl_c(path: str, tmp_path: Path) -> None:
    """Quickstart, 2. Runs of five seconds, whose figures are of no account here."""
    began, looked, back = blocks("docs/quickstart.md", "2. Look inside", "sh")
    assert lines_of(began) == ["source .venv/bin/activate", "kvsteer demo --keep"]
    demo = Child("demo", [sys.executable, "-m", "extproc", "demo", "--keep", "--seconds", "5"], tmp_path)
    shell = Shell(tmp_path, path)
    try:
        demo.wait_until(lambda: "Ctrl-C ends it" in demo.said(200), patient(120))
        printed = demo.said(200).partition("All is running")[2]
        *lines, kill = typed_of(printed)
        assert len(lines) == 8, printed
        said = [shell.type(line) for line in lines[:5]]
        shell.type("\n".join(lines[5:]))  # in one shell, for what it exports
        assert "x-kvsteer-replica: " in said[0]
        assert json.loads(said[1])["decisions"][0]["outcome"] == "steered"
        assert "round_robin" in said[3]
        (admin,) = re.findall(r"The page: http://(\S+)/", printed)
        (settings,) = set(re.findall(r" -c (\S+)", printed))
        for line in lines_of(looked) + lines_of(back):
            assert shell.type(line.replace("127.0.0.1:9095", admin).replace("FILE", settings))
        shell.type(kill)
        until(
            lambda: re.search(r"redis died[^$]*--port .*\n", demo.said(300)), 20, "the death of Redis is told"
        )
        (again,) = typed_of(demo.said(300).partition("redis died")[2])
        assert "x-kvsteer-replica: " in shell.type(lines[0])
        shell.leave(again)
        health = f"curl -s http://{admin}/healthz"
        until(lambda: json.loads(shell.type(health))["shared"] == "ok", 30, "Redis is back")
        demo.signal(signal.SIGINT)
        until(lambda: not demo.running, 20, "the demo ends")
    finally:
        shell.close()
        with suppress(OSError):
            demo.kill()


def typed_of(said: str) -> list[str]:
    """The lines to type in what a demo says: those set in by two spaces, and by four where one goes on."""
    return re.findall(r"^  (\S(?:.*\\\n)?.*)", said, re.MULTILINE)
