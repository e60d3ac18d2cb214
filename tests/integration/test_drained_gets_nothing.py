"""A drained replica gets no new request behind a real Envoy: not by a retry, not while no gateway answers."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from extproc.demo.stack import Stack, StackSettings
from tests.integration.conftest import QUICK, until
from tests.integration.patience import patient


@pytest.fixture
def plain() -> Iterator[Stack]:
    """Two replicas that Envoy's bootstrap lists: it hears of no drain."""
    with Stack(StackSettings(replicas=2, engine=QUICK, redis_url="")) as running:
        yield running


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Stack]:
    """Two replicas in a file that Envoy follows."""
    envoy = {"eds_dir": str(tmp_path / "eds")}
    with Stack(StackSettings(replicas=2, engine=QUICK, redis_url="", envoy=envoy)) as running:
        yield running


def test_a_retry_does_not_lead_to_a_drained_or_removed_replica(plain: Stack) -> None:
    stays, leaves = plain.replicas
    _control(stays, {"error": {"status": 503, "share": 0.3}})
    for deadline in ((), ("--deadline", "1s")):
        _kvsteer(plain, "drain", leaves, "--no-wait", *deadline)
        if deadline:
            until(lambda: plain.admin("/replicas")["removed"], 8, "its deadline removes it")
        before = _received(leaves)
        statuses = [_ask(plain) for _ in range(40)]
        assert _received(leaves) == before
        assert statuses.count(200) > 20, "tries go on at the replica that is left"


def test_a_drain_reaches_envoys_file_and_cuts_no_response(followed: Stack, tmp_path: Path) -> None:
    stays, leaves = followed.replicas
    file = tmp_path / "eds" / "demo.yaml"
    _kvsteer(followed, "drain", stays, "--no-wait")  # so that the long answer is the other's
    until(lambda: _port(stays) not in file.read_text(), 8, "the file leaves out who drains")
    with Endless(followed.url) as answer:
        until(lambda: _running(followed, leaves) and answer.pieces, 15, "an answer without end runs")
        _kvsteer(followed, "undrain", stays)
        _kvsteer(followed, "drain", leaves, "--no-wait")
        until(lambda: _hosts(followed) == {stays}, 8, "Envoy has read who serves")
        assert _port(leaves) not in file.read_text()
        answer.goes_on()
        followed.children["gateway-0"].kill()
        until(lambda: _ask(followed) == 200, 15, "Envoy balances by itself")
        before = _received(leaves)
        assert {_ask(followed) for _ in range(20)} == {200}
        assert _received(leaves) == before
        answer.goes_on()


class Endless:
    """A streamed answer that is read until the test has seen enough of it.

    Attributes:
        pieces: how many pieces came.
    """

    def __init__(self, url: str) -> None:
        message = {"role": "user", "content": "a long one"}
        body = {"model": "demo", "messages": [message], "max_tokens": 1_000_000, "stream": True}
        self._request = _json(f"{url}/v1/chat/completions", body)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.pieces = 0

    def _read(self) -> None:
        with urllib.request.urlopen(self._request, timeout=patient(30)) as answer:
            while not self._over.is_set() and answer.readline():
                self.pieces += 1

    def goes_on(self) -> None:
        """Wait for further pieces: what was on its way before is fewer."""
        before = self.pieces
        until(lambda: self.pieces > before + 50, 15, "the answer goes on")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(patient(60))


def _port(replica: str) -> str:
    return replica.rpartition(":")[2]


def _running(stack: Stack, replica: str) -> int:
    rows = stack.admin("/replicas")["replicas"]
    return next(int(row["requests_in_flight"]) for row in rows if row["replica"] == replica)


def _kvsteer(stack: Stack, *arguments: str) -> None:
    admin = f"http://127.0.0.1:{stack.gateway_ports[0][1]}"
    argv = [sys.executable, "-m", "extproc", *arguments, "--admin", admin]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stderr


def _control(replica: str, faults: dict[str, Any]) -> None:
    with urllib.request.urlopen(_json(f"http://{replica}/_control", faults), timeout=patient(10)) as answer:
        assert answer.status == 200


def _received(replica: str) -> int:
    with urllib.request.urlopen(f"http://{replica}/_truth", timeout=patient(10)) as answer:
        return int(json.load(answer)["requests"]["received"])


def _hosts(stack: Stack) -> set[str]:
    url = f"http://127.0.0.1:{stack.envoy_admin}/clusters?format=json"
    with urllib.request.urlopen(url, timeout=patient(10)) as answer:
        clusters = json.load(answer)["cluster_statuses"]
    (ours,) = [it for it in clusters if it["name"] == "kvsteer_pool_demo"]
    sockets = [host["address"]["socket_address"] for host in ours.get("host_statuses", [])]
    return {f"{socket['address']}:{socket['port_value']}" for socket in sockets}


def _ask(stack: Stack) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    request = _json(f"{stack.url}/v1/chat/completions", body)
    try:
        with urllib.request.urlopen(request, timeout=patient(30)) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _json(url: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
