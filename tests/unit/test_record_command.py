"""kvsteer record with gateways that end well, go away in the middle, or are none."""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc.cli import record
from extproc.cli.recording import Recording
from tests.unit.thread_server import answering

REPLICA = {"prefill_speed": 8000.0, "kv_tokens": 100_000.0, "max_running": 64.0}
SNAPSHOT = {"pools": [{"name": "chat", "traits": {"prefill_doubling": None}, "replicas": [REPLICA]}]}
ROW = {
    "at": 0.5, "tokens": 100, "output": 10, "limit": None, "bytes": 400, "hashes": [7], "ends": [400], "first": 0.25,
    "cached": 0, "policy": "charged_cost", "pool": "chat",
}  # fmt: skip
LAST = {"left_out": 2}


def gateway(
    *lines: Any, then: Callable[[], object] = lambda: None, kind: str = "x-ndjson", status: int = 200
) -> AbstractContextManager[str]:
    """The admin port of a gateway whose recording has these lines and then ends; its URL."""

    def answer(to: BaseHTTPRequestHandler) -> None:
        is_snapshot = to.path == "/snapshot"
        to.send_response(200 if is_snapshot else status)
        to.send_header("content-type", f"application/{'json' if is_snapshot else kind}")
        to.end_headers()
        for each in [SNAPSHOT] if is_snapshot else lines:
            to.wfile.write(json.dumps(each).encode() + b"\n")
            to.wfile.flush()
        if not is_snapshot:
            then()

    return answering(answer)


def recorded(folder: Path, *admins: str, json_too: bool = True) -> Result:
    words = ["--for", "15s", "-o", str(folder / "trace.jsonl")]
    return CliRunner().invoke(
        record.command,
        [*words, *(word for url in admins for word in ("--admin", url)), *["--json"] * json_too],
    )


def rows(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def test_a_gateway_that_ends_well_is_told_with_what_it_left_out(tmp_path: Path) -> None:
    with gateway(ROW, ROW, LAST) as url:
        done = recorded(tmp_path, url)
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["requests"], said["left_out"], said["interrupted"], said["gone"]) == (2, 2, False, [])
    assert len(rows(tmp_path)) == 2


def test_a_gateway_that_goes_away_is_named_and_what_came_is_kept(tmp_path: Path) -> None:
    with gateway(ROW, LAST) as stays, gateway(ROW, ROW) as goes:
        done = recorded(tmp_path, stays, goes)
    assert done.exit_code == 3
    assert f"kvsteer: gateway {goes} went away after " in done.stderr
    assert " s of 15 s; what came of it is kept\n" in done.stderr
    assert stays not in done.stderr
    said = json.loads(done.stdout)
    assert ([gone["gateway"] for gone in said["gone"]], said["left_out"], said["requests"]) == (
        [goes],
        None,
        3,
    )
    assert len(rows(tmp_path)) == 3


def test_what_is_not_known_of_those_left_out_is_not_none(tmp_path: Path) -> None:
    with gateway(ROW) as url:
        done = recorded(tmp_path, url, json_too=False)
    assert "1 requests, an unknown number left out" in done.stdout


def test_a_gateway_that_goes_away_before_any_request_ended_leaves_no_trace(tmp_path: Path) -> None:
    with gateway() as url:
        done = recorded(tmp_path, url)
    assert (done.exit_code, done.stdout) == (3, "")
    assert f"gateway {url} went away after " in done.stderr
    assert "so there is no trace" in done.stderr
    assert not (tmp_path / "trace.jsonl").exists()


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_what_came_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: signal.Signals
) -> None:
    over, before = threading.Event(), signal.default_int_handler
    found = signal.signal(what, before)  # whatever a test before this one left
    take = Recording._take

    def take_and_send(self: Recording, url: str, line: bytes, late: float) -> None:
        take(self, url, line, late)
        os.kill(os.getpid(), what)

    monkeypatch.setattr(Recording, "_take", take_and_send)
    try:
        with gateway(ROW, then=lambda: over.wait(60)) as url:
            done = recorded(tmp_path, url)
            over.set()
        after = signal.getsignal(what)
    finally:
        signal.signal(what, found)
    assert (done.exit_code, done.stderr) == (0, "interrupted; what came until now is written\n")
    said = json.loads(done.stdout)
    assert (said["interrupted"], said["left_out"], said["gone"]) == (True, None, [])
    assert len(rows(tmp_path)) == 1
    assert after is before, "whoever ran the command has his own handler again"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"at": 1}, "JSON without 'tokens'"),
        ({**ROW, "hashes": ["x"]}, "JSON in which hashes.0 is not a whole number"),
        ({**ROW, "tokens": 0}, "a recording that contradicts itself"),
        ({**ROW, "ends": []}, "a recording that contradicts itself"),
        ([], "JSON without 'at'"),
    ],
)
def test_lines_of_somebody_else_end_it_with_1(tmp_path: Path, line: Any, says: str) -> None:
    with gateway(line) as url:
        done = recorded(tmp_path, url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"kvsteer: {url} is not the admin port of a gateway of this version: ")
    assert says in done.stderr
    assert not (tmp_path / "trace.jsonl").exists()


def test_what_is_no_recording_is_not_taken_for_one_that_ended(tmp_path: Path) -> None:
    with gateway(kind="json") as url:
        done = recorded(tmp_path, url)
    assert done.exit_code == 1
    assert "it answered no recording to /record?seconds=15" in done.stderr


def test_a_second_gateway_that_is_not_there_is_told_at_once_in_words(tmp_path: Path) -> None:
    with gateway(ROW, LAST) as url:
        done = recorded(tmp_path, url, "http://127.0.0.1:1")
    assert done.exit_code == 1
    assert "no gateway answers at http://127.0.0.1:1 (Connection refused)" in done.stderr


def test_a_gateway_that_is_named_twice_is_asked_once(tmp_path: Path) -> None:
    with gateway(ROW, LAST) as url:
        done = recorded(tmp_path, url, f"{url}/", url)
    assert (done.exit_code, json.loads(done.stdout)["requests"]) == (0, 1)


def test_the_gateway_that_records_for_somebody_else_is_named(tmp_path: Path) -> None:
    refusal = {"error": "somebody records already; one at a time"}
    with gateway(ROW, LAST) as free, gateway(refusal, status=409, kind="json") as taken:
        done = recorded(tmp_path, free, taken)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"kvsteer: {taken}: somebody records already; one at a time\n"
