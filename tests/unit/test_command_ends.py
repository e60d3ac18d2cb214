"""How commands end when something is wrong: status, one clear line on standard error, nothing on standard output."""

import json
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from extproc.cli import main as kvsteer
from extproc.cli.about import INTERRUPTED
from extproc.cli.group import ended
from tests.unit.thread_server import answering

#: Commands that ask an admin port; `record` needs a file to write.
ASKING = [
    "replicas",
    "state",
    "drain 10.0.0.1:80",
    "drain --pick 1",
    "undrain 10.0.0.1:80",
    "versions list",
    "versions set llama v2=5 --why canary",
    "versions rollback llama --why odd",
    "explain REQUEST",
    "record --for 1s -o TRACE",
]
ORDERS = [
    line for line in ASKING if line.split()[0] in ("drain", "undrain", "versions") and "list" not in line
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that the lines here name."""
    (tmp_path / "request.json").write_text('{"model": "m", "prompt": "hello"}')
    (tmp_path / "good.yaml").write_text("pools:\n  - replicas: [10.0.0.1:8000]\n")
    (tmp_path / "faulty.yaml").write_text("pools:\n  - replica: [10.0.0.1:8000]\n")
    (tmp_path / "binary").write_bytes(b"\x00\xff\xfe" * 100)
    (tmp_path / "a-folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVSTEER_TOKEN_FILE", raising=False)
    return tmp_path


def run(line: str, *more: str) -> Result:
    words = shlex.split(line.replace("REQUEST", "request.json").replace("TRACE", "trace.jsonl"))
    return CliRunner().invoke(kvsteer, [*words, *more])


def is_told(done: Result, status: int, *says: str, of: object = "") -> None:
    """It ended with this status and said why, in few lines, on standard error alone. `of` says where not."""
    assert done.exit_code == status, (of, done.output, done.exception)
    assert isinstance(done.exception, SystemExit), (of, done.exception)
    assert done.stdout == "", of
    assert 1 <= len(done.stderr.strip().splitlines()) <= 4, (of, done.stderr)
    assert "Traceback" not in done.stderr, of
    for words in says:
        assert words in done.stderr, of


def saying(status: int, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in {"content_length": str(len(body)), **headers}.items():
            to.send_header(name.replace("_", "-"), value)
        to.end_headers()
        to.wfile.write(body)

    return answer


# -- who is asked ------------------------------------------------------------------------------------------


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which nobody listens: the port is held, by a socket that does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("line", ASKING)
def test_nobody_there_ends_with_1(folder: Path, nobody: str, line: str) -> None:
    is_told(run(line, "--admin", nobody), 1, f"no gateway answers at {nobody}", "refused")


@pytest.mark.parametrize("line", ASKING)
def test_what_is_no_url_ends_with_2(folder: Path, line: str) -> None:
    for url in (
        "127.0.0.1:9095",
        "ftp://127.0.0.1",
        "http://",
        "http://h:99999",
        "http://a b",
        "http://h/\n",
    ):
        is_told(run(line, "--admin", url), 2, "is no URL of an admin port", "http://127.0.0.1:9095", of=url)


@pytest.mark.parametrize("line", ASKING)
def test_a_password_in_a_url_is_not_repeated(folder: Path, line: str) -> None:
    done = run(line, "--admin", "http://me:secret@127.0.0.1:1")
    assert done.exit_code == 2
    assert "secret" not in done.output


@pytest.mark.parametrize("line", ASKING)
def test_a_path_that_is_not_there_ends_with_1(folder: Path, line: str) -> None:
    for body in (b"<html>not found</html>", b'{"detail": "Not Found"}', b""):
        with answering(saying(404, body)) as url:
            is_told(run(line, "--admin", url), 1, url, "404", of=body)


@pytest.mark.parametrize("line", ASKING)
def test_who_does_not_answer_in_time_ends_it_with_1(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.cli.admin_port._DEADLINE", 0.05)
    monkeypatch.setattr("extproc.cli.explain._DEADLINE", 0.05)
    over = threading.Event()
    with answering(lambda _to: over.wait(60) and None) as url:
        done = run(line, "--admin", url)
        over.set()
    is_told(done, 1, f"no gateway answers at {url}", "timed out")


WRONG_TYPES = {"replicas": "x", "pools": 5, "models": 7, "picked": 1, "versions": "", "replica": []}
#: JSON of somebody who is no gateway, or one of another version.
STRANGERS: dict[str, Any] = {
    "nothing": None,
    "a list": [],
    "an empty object": {},
    "wrong types": WRONG_TYPES,
    "lists of wrong types": {name: [1] for name in WRONG_TYPES},
    "lists of empty objects": {name: [{}] for name in WRONG_TYPES},
    "a similar form": {"replicas": [{"pool": "p", "replica": "r", "state": "healthy"}]},
    "null where a number is": {
        "picked": [{"replica": "r", "seconds": None, "why": ""}],
        "versions": [{"version": "v", "share": None}],
        "pools": [{"name": "p", "traits": {}, "replicas": [{"prefill_speed": None}]}],
    },
}


@pytest.mark.parametrize("line", ASKING)
def test_json_of_somebody_else_ends_with_1(folder: Path, line: str) -> None:
    body = b""
    with answering(lambda to: saying(200, body)(to)) as url:
        for stranger, said in STRANGERS.items():
            body = json.dumps(said).encode()
            is_told(run(line, "--admin", url), 1, url, "version", of=stranger)


@pytest.mark.parametrize(
    "number", ["NaN", "1e999", "9" * 5000, '"\\ud800"'], ids=["NaN", "1e999", "digits", "surrogate"]
)
def test_what_no_json_has_ends_with_1(folder: Path, number: str) -> None:
    body = f'{{"picked": [{{"replica": "r", "seconds": {number}, "why": ""}}]}}'.encode()
    with answering(saying(200, body)) as url:
        is_told(run("drain --pick 1", "--admin", url), 1, url)


@pytest.mark.parametrize("line", ASKING)
def test_a_refusal_that_breaks_off_ends_with_1(folder: Path, line: str) -> None:
    with answering(saying(403, b'{"error": "no', content_length="1000")) as url:
        is_told(run(line, "--admin", url), 1, url)


@pytest.mark.parametrize("line", ORDERS)
def test_an_order_without_the_token_ends_with_2(folder: Path, line: str) -> None:
    refusal = json.dumps({"error": "orders need the token of admin.token_file"}).encode()
    with answering(saying(401, refusal)) as url:
        is_told(run(line, "--admin", url), 2, "orders need the token")


def test_the_token_goes_nowhere_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str | None] = []

    def note(to: BaseHTTPRequestHandler) -> None:
        heard.append(to.headers["authorization"])
        saying(200, b'{"replica": "10.0.0.1:80"}')(to)

    (folder / "token").write_text("s3cret\n")
    monkeypatch.setenv("KVSTEER_TOKEN_FILE", str(folder / "token"))
    with answering(note) as other, answering(saying(302, b"", location=f"{other}/x")) as url:
        is_told(run("undrain 10.0.0.1:80", "--admin", url), 1, "302")
    assert heard == [], "a redirect was followed"


@pytest.mark.parametrize("name", ["missing", "a-folder", "binary"])
def test_a_token_that_can_not_be_read_ends_with_2(
    folder: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KVSTEER_TOKEN_FILE", str(folder / name))
    is_told(run("undrain 10.0.0.1:80", "--admin", nobody), 2, "KVSTEER_TOKEN_FILE", name)


# -- files -------------------------------------------------------------------------------------------------

READING = [
    "check-config FILE",
    "check-config -c FILE",
    "envoy-config -c FILE",
    "serve -c FILE",
    "state -c FILE",
    "policy list -c FILE",
    "policy set random -c FILE --why so",
    "policy shadow random -c FILE --why so",
    "policy rollback -c FILE --why so",
    "explain request.json --snapshot FILE",
    "explain FILE --admin http://127.0.0.1:1",
    "simulate FILE",
    "tune FILE",
    "report 10.0.0.1:80 --gateway http://127.0.0.1:1 --token-file FILE",
    "report 10.0.0.1:80 --gateway http://127.0.0.1:1 --gateway-token-file FILE",
    "report 10.0.0.1:80 --redis redis://127.0.0.1:1 --redis-password-file FILE",
    "report 10.0.0.1:80 --url https://127.0.0.1:1 --gateway http://127.0.0.1:1 --ca-file FILE",
]


@pytest.mark.parametrize("line", READING)
@pytest.mark.parametrize("name", ["missing", "a-folder"])
def test_a_file_that_can_not_be_read_ends_with_2(folder: Path, line: str, name: str) -> None:
    is_told(run(line.replace("FILE", name)), 2, name)


@pytest.mark.parametrize(
    "line", [line for line in READING if not line.startswith(("report", "explain FILE"))]
)
def test_a_file_that_is_no_text_ends_with_2(folder: Path, line: str) -> None:
    is_told(run(line.replace("FILE", "binary")), 2, "binary")


@pytest.mark.parametrize("line", [line for line in READING if "-config" in line or "-c FILE" in line])
def test_a_faulty_configuration_ends_with_2_and_its_line(folder: Path, line: str) -> None:
    is_told(run(line.replace("FILE", "faulty.yaml")), 2, "faulty.yaml:2", "did you mean replicas?")


def test_faults_are_json_for_a_script(folder: Path) -> None:
    done = run("check-config faulty.yaml --json")
    assert done.exit_code == 2
    said = json.loads(done.stdout)
    assert (said["good"], said["faults"][0]["line"], said["pools"]) == (False, 2, [])
    assert "did you mean replicas?" in said["faults"][0]["fault"]
    good = json.loads(run("check-config good.yaml --json").stdout)
    assert good == {
        "config": "good.yaml",
        "good": True,
        "faults": [],
        "warnings": [],
        "pools": [{"pool": "default", "replicas": 1}],
    }


def test_the_faults_that_the_documentation_shows_are_those_that_are_told(folder: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
    shown = page.read_text().partition("## kvsteer check-config\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```", shown, re.MULTILINE | re.DOTALL)
    settings, told = (block for language, block in found if not language)
    (folder / "kvsteer.yaml").write_text(settings)
    done = run("check-config kvsteer.yaml")
    assert (done.exit_code, done.stderr) == (2, told)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("envoy-config -c good.yaml -o PLACE", 2),
        ("simulate --generate chat:rate=4,requests=20 --policies random --json PLACE", 2),
        ("simulate --generate chat:rate=4,requests=20 --policies random --html PLACE", 2),
        ("record --for 1s --admin http://127.0.0.1:1 -o PLACE", 2),
    ],
)
@pytest.mark.parametrize("place", ["a-folder", "missing/file"])
def test_what_can_not_be_written_is_told_before_it_takes_time(
    folder: Path, line: str, status: int, place: str
) -> None:
    is_told(run(line.replace("PLACE", place)), status, place, "can't be written")
    assert sorted(os.listdir(folder)) == ["a-folder", "binary", "faulty.yaml", "good.yaml", "request.json"]


@pytest.mark.parametrize("given", ["0", "0.5s", "8d", "9" * 400 + "h", "169h"])
def test_a_deadline_that_no_gateway_takes_is_told_in_the_words_of_the_command(
    folder: Path, nobody: str, given: str
) -> None:
    done = run(f"drain 10.0.0.1:80 --deadline {given}", "--admin", nobody)
    is_told(done, 2, "--deadline", "must be from 1s to 7d")
    assert len(done.stderr) < 200


# -- ends of any command -----------------------------------------------------------------------------------


def test_ctrl_c_ends_any_command_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert ended(interrupted) == INTERRUPTED
    assert capsys.readouterr().err == "kvsteer: interrupted\n"


def test_a_fault_of_ours_is_not_hidden() -> None:
    def fails() -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        ended(fails)
