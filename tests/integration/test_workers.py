"""Workers for real: each serves, one that is killed is back, and nobody outlives the parent."""

import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.demo.processes import Child, free_port
from tests.integration.conftest import until
from tests.integration.patience import patient


class Running:
    """A parent with two workers."""

    def __init__(self, folder: Path) -> None:
        self.grpc, self.admin = free_port(2), free_port(2)
        path = folder / "kvsteer.yaml"
        path.write_text(yaml.safe_dump({
            "workers": 2, "gateway_id": "gw", "pools": [{"replicas": ["127.0.0.1:1"]}],
            "grpc": {"address": f"127.0.0.1:{self.grpc}", "drain_notice": "0s", "drain": "1s"},
            "admin": {"address": f"127.0.0.1:{self.admin}"}, "redis": {"heartbeat": "200ms"},
        }))  # fmt: skip
        self.child = Child("serve", [sys.executable, "-m", "extproc", "serve", "-c", str(path)], folder)
        self.child.wait_until(lambda: self.ready(0) and self.ready(1), patient(30))

    def said(self) -> list[dict[str, Any]]:
        lines = self.child.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def pids(self, number: int) -> list[int]:
        return [s["pid"] for s in self.said() if s["event"] == "worker started" and s["worker"] == number]

    def redis_pid(self) -> int:
        return next(s["pid"] for s in self.said() if s["event"] == "redis started for the workers")

    def ready(self, number: int) -> bool:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.admin + number}/readyz"
            with urllib.request.urlopen(url, timeout=patient(2)) as answer:
                return bool(json.loads(answer.read())["shared"] == "ok")
        return False


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    try:
        yield made
    finally:
        pids = [pid for number in (0, 1) for pid in made.pids(number)]
        made.child.stop()
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_worker_is_back_and_a_stop_ends_all_cleanly(running: Running) -> None:
    [first] = running.pids(1)
    os.kill(first, signal.SIGKILL)
    until(lambda: len(running.pids(1)) == 2, 10, "the worker is started again")
    until(lambda: running.ready(1), 20, "it serves again, sharing as before")
    died = [s for s in running.said() if s["event"] == "worker died; it is started again"]
    assert [(s["worker"], s["status"]) for s in died] == [(1, -9)]
    assert len(running.pids(0)) == 1, "the other was not touched"
    pids = [running.pids(0)[0], running.pids(1)[-1], running.redis_pid()]
    running.child.signal(signal.SIGTERM)
    until(lambda: not running.child.running, 15, "the parent ends")
    assert running.child._process.returncode == 0
    assert not any(alive(pid) for pid in pids)


def test_a_redis_that_was_started_for_them_is_started_again(running: Running) -> None:
    os.kill(running.redis_pid(), signal.SIGKILL)
    until(lambda: "redis died" in running.child.said(100), 10, "its death is told")
    until(lambda: running.ready(0) and running.ready(1), 15, "both share again")


def test_nobody_outlives_a_killed_parent(running: Running) -> None:
    pids = [running.pids(0)[0], running.pids(1)[0], running.redis_pid()]
    running.child.kill()
    until(lambda: not any(alive(pid) for pid in pids), 15, "workers and redis end by themselves")


def test_a_port_that_is_taken_ends_all_with_status_1(running: Running, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "extproc", "serve", "-c", str(tmp_path / "kvsteer.yaml")]
    second = Child("second", argv, tmp_path)
    until(lambda: not second.running, 20, "the second set of workers gives up")
    assert second._process.returncode == 1
    assert "can't listen" in second.said(200)
